# SPDX-License-Identifier: Apache-2.0
"""torch_xla.distributed.zero_redundancy_optimizer: each rank keeps the optimizer's state of its part of the weights.

Gradients are reduced and scattered along the first dimension, which is padded to a multiple of the ranks; the
optimizer steps on the parts, in `optimizer_dtype`; the weights are gathered from them. Names of attributes and of
methods with an underscore are those of torch_xla, for the vendor's libraries extend this class by them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.optim import Optimizer

from trnlab.frontends.torch.xla import collectives, ranks
from trnlab.frontends.torch.xla.names import refusing
from trnlab.frontends.torch.xla.steps import mark_step

__all__ = ["ZeroRedundancyOptimizer"]
Scheme = list[dict[str, Any]]


class ZeroRedundancyOptimizer(Optimizer):
    """An optimizer of parts. Arguments of torch_xla; what says how collectives are put together changes nothing."""

    def __init__(
        self,
        params: Any,
        optimizer_class: Callable[..., Optimizer],
        optimizer_dtype: torch.dtype | None = None,
        grad_clipping: bool = True,
        max_norm: float | None = None,
        pin_layout: bool = True,
        sharding_groups: Any = None,
        grad_norm_groups: Any = None,
        lazy_init: bool = False,
        bucket_cap_mb_all_gather: int = 0,
        bucket_cap_mb_reduce_scatter: int = 0,
        use_grad_acc_hook: bool = False,
        save_master_weights: bool = False,
        higher_cc_precision: bool = False,
        coalesce_cc: bool = False,
        cc_op_name: str | None = None,
        **defaults: Any,
    ) -> None:
        super().__init__(params, defaults)
        self.global_world_size, self.global_rank = ranks.world_size(), ranks.ordinal()
        self._sharding_groups = sharding_groups or [list(range(self.global_world_size))]
        self._grad_norm_groups = grad_norm_groups
        self.optimizer_class, self.defaults = optimizer_class, defaults
        self.optimizer_dtype = optimizer_dtype or torch.float32
        self.grad_clipping, self.max_norm = grad_clipping, 1.0 if max_norm is None else max_norm
        self.pin_layout, self.use_grad_acc_hook = pin_layout, use_grad_acc_hook
        self.save_master_weights, self.higher_cc_precision = save_master_weights, higher_cc_precision
        self.grad_acc_hooks: list[Any] = []
        self._grad_norm: Tensor | None = None
        self.inited = self._follows = False
        if not lazy_init:
            self.init_zero()

    @property
    def grad_norm(self) -> Tensor | None:
        """The norm that gradients had before they were clipped."""
        return self._grad_norm

    @property
    def sharding_groups(self) -> Any:
        """The ranks that share weights."""
        return self._sharding_groups

    @sharding_groups.setter
    def sharding_groups(self, groups: Any) -> None:
        assert not self.inited, "already inited, cannot change sharding_groups"
        self._sharding_groups = groups

    # -- parts ------------------------------------------------------------------------------------------------------
    def init_zero(self) -> None:
        """Take this rank's parts of the weights, and make the optimizer of them."""
        self.remove_hooks()
        self.local_world_size = len(self.sharding_groups[0])
        mine = next((list(group) for group in self.sharding_groups if self.global_rank in group), None)
        if mine is None:
            raise ValueError(f"rank {self.global_rank} is in none of the sharding_groups {self.sharding_groups}")
        self.local_rank = mine.index(self.global_rank)
        self.base_optimizer = self.optimizer_class(self._shard_parameters(), **self.defaults)
        self._sync_param_groups(self.param_groups, self.base_optimizer.param_groups)
        self.inited = True

    @staticmethod
    def _sync_param_groups(source: list[dict[str, Any]], target: list[dict[str, Any]]) -> None:
        for ours, theirs in zip(source, target, strict=True):
            theirs.update({name: value for name, value in ours.items() if name != "params"})

    def _pad_to_world_size(self, tensor: Tensor, world_size: int) -> Tensor:
        missing = -tensor.size(0) % world_size
        return functional.pad(tensor, [0, 0] * (tensor.dim() - 1) + [0, missing]) if missing else tensor

    def _shard_tensor(self, tensor: Tensor) -> Tensor:
        return self._pad_to_world_size(tensor, self.local_world_size).chunk(self.local_world_size)[self.local_rank]

    def _shard_parameters(self) -> list[dict[str, Any]]:
        every = [param for group in self.param_groups for param in group["params"]]
        assert len({param.device for param in every}) <= 1, "Params should on the same device."
        self.device = every[0].device if every else torch.device("neuron")
        made = []
        for group in self.param_groups:
            part = copy.copy(group)
            part["params"] = [self._part_of(param) for param in group["params"]]
            made.append(part)
        return made

    def _part_of(self, param: Tensor) -> Tensor:
        own = self._shard_tensor(param.detach()).to(self.optimizer_dtype).clone(memory_format=torch.contiguous_format)
        shard = torch.nn.Parameter(own, requires_grad=param.requires_grad)
        if self.use_grad_acc_hook and param.requires_grad:
            self.grad_acc_hooks.append(param.register_post_accumulate_grad_hook(self._accumulating(shard)))
        return shard

    def _accumulating(self, shard: Any) -> Callable[[Any], None]:
        """A hook that adds gradients up in the optimizer's format."""

        def hook(param: Any) -> None:
            if not hasattr(shard, "main_grad"):
                param.main_grad = shard.main_grad = torch.zeros_like(param, dtype=self.optimizer_dtype)
            shard.main_grad.add_(param.grad.detach().to(self.optimizer_dtype))
            param.grad = None

        return hook

    def remove_hooks(self) -> None:
        """Have gradients left where PyTorch puts them."""
        for hook in self.grad_acc_hooks:
            hook.remove()
        self.grad_acc_hooks = []

    def _pairs(self) -> Iterator[tuple[Any, Any]]:
        """Weights with their parts."""
        for ours, theirs in zip(self.param_groups, self.base_optimizer.param_groups, strict=True):
            yield from zip(ours["params"], theirs["params"], strict=True)

    def _gradient(self, param: Any, shard: Any) -> Tensor | None:
        return getattr(shard, "main_grad", None) if self.use_grad_acc_hook else param.grad

    # -- a step -----------------------------------------------------------------------------------------------------
    @torch.no_grad()
    def _calc_grad_norm(self, norm_type: float = 2.0) -> Tensor:
        if norm_type != 2.0:
            raise RuntimeError(f"only norm type 2 is supported, getting {norm_type}")
        squares = torch.zeros([], dtype=self.optimizer_dtype, device=self.device)
        for group in self.base_optimizer.param_groups:
            for part in group["params"]:
                if part.grad is not None:
                    squares += (part.grad * part.grad).sum()
        collectives.all_reduce(collectives.REDUCE_SUM, [squares], groups=self._sharding_groups)
        if self._grad_norm_groups is not None:
            collectives.all_reduce(collectives.REDUCE_SUM, [squares], groups=self._grad_norm_groups)
        return squares.sqrt()

    @torch.no_grad()
    def _clip_grad_norm(self, max_norm: float, norm_type: float = 2.0) -> Any:
        self._grad_norm = self._calc_grad_norm(float(norm_type))
        factor = (float(max_norm) / (self._grad_norm + 1e-6)).clamp(max=1.0)
        for group in self.base_optimizer.param_groups:
            for part in group["params"]:
                if part.grad is not None:
                    part.grad.mul_(factor)

    def _get_sharding_scheme(self, named: dict[str, Any]) -> Scheme:
        whole = {"scale_factor": 1.0, "sharding_group": self.sharding_groups, "group_size": self.local_world_size}
        scheme: Scheme = named.get("sharding_scheme") or [whole]
        return scheme

    def _reduce_gradients(self, **named: Any) -> None:
        scheme = self._get_sharding_scheme(named)
        self._sync_param_groups(self.param_groups, self.base_optimizer.param_groups)
        self._follow()
        for param, shard in self._pairs():
            gradient = self._gradient(param, shard)
            if gradient is None:
                continue
            part = self._pad_to_world_size(gradient, self.local_world_size)
            part = part.to(self.optimizer_dtype) if self.higher_cc_precision else part
            for each in scheme:
                scale = each["scale_factor"] / each["group_size"]
                part = collectives.reduce_scatter(
                    collectives.REDUCE_SUM, part, scale, 0, each["group_size"], each["sharding_group"]
                )
            shard.grad = part.to(self.optimizer_dtype)

    def _follow(self) -> None:
        """Take the parts anew after a state without weights was loaded: libraries load the model after that."""
        for param, shard in self._pairs() if self._follows else ():
            shard.data.copy_(self._shard_tensor(param.detach()))
        self._follows = False

    def _update_parameters(self, **named: Any) -> None:
        scheme = self._get_sharding_scheme(named)
        named.pop("sharding_scheme", None)
        self.base_optimizer.step(closure=None, **named)
        self.base_optimizer.zero_grad(set_to_none=True)
        self.allgather_weights_and_update_full_parameter(scheme)
        self._sync_param_groups(self.base_optimizer.param_groups, self.param_groups)

    def allgather_weights_and_update_full_parameter(self, sharding_scheme: Scheme | None = None) -> None:
        """Put the weights together from the parts, where they have gradients."""
        self._gather(sharding_scheme, lambda param, shard: self._gradient(param, shard) is not None)

    @torch.no_grad()
    def _gather(self, scheme: Scheme | None, wanted: Callable[[Any, Any], bool]) -> None:
        for param, shard in self._pairs():
            if wanted(param, shard):
                whole = shard.detach().to(param.dtype)
                for each in reversed(scheme or self._get_sharding_scheme({})):
                    whole = collectives.all_gather(whole, 0, each["sharding_group"])
                param.copy_(whole[: param.size(0)])

    @torch.no_grad()
    def step(self, closure: Any = None, **named: Any) -> Any:  # type: ignore[override]
        """Reduce gradients, clip them, step on the parts, and gather the weights."""
        assert self.inited, "must call init_zero() first"
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._reduce_gradients(**named)
        if self.grad_clipping:
            self._clip_grad_norm(max_norm=self.max_norm)
        self._update_parameters(**named)
        return loss

    def zero_grad(self, set_to_none: bool = False) -> None:
        """No gradients, nor what was added up of them."""
        super().zero_grad(set_to_none=set_to_none)
        for _, shard in self._pairs() if self.use_grad_acc_hook and self.inited else ():
            if hasattr(shard, "main_grad"):
                shard.main_grad.zero_()

    # -- state ------------------------------------------------------------------------------------------------------
    def get_shape_info(self) -> dict[int, torch.Size]:
        """Shapes of the weights by their numbers."""
        every = [param for group in self.param_groups for param in group["params"]]
        return {number: param.shape for number, param in enumerate(every)}

    def state_dict(self) -> dict[str, Any]:
        """The state of this rank's parts, by torch_xla's keys."""
        state = super().state_dict()
        state["base_state"] = self.base_optimizer.state_dict()["state"]
        state["shape_info"] = self.get_shape_info()
        if self.save_master_weights:
            parts = [shard for _, shard in self._pairs()]
            state["sharded_master_weights"] = {number: shard.data for number, shard in enumerate(parts)}
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the state of this rank's parts, and the weights from them where they are in it."""
        told = copy.deepcopy(state_dict)
        base_state, weights = told.pop("base_state"), told.pop("sharded_master_weights", None)
        told.pop("shape_info", None)
        super().load_state_dict(told)
        self.init_zero()
        base = self.base_optimizer.state_dict()
        self.base_optimizer.load_state_dict({**base, "state": base_state, "param_groups": told["param_groups"]})
        self._follows = weights is None
        if weights is None:
            return
        numbers = [number for group in told["param_groups"] for number in group["params"]]
        with torch.no_grad():
            for (_, shard), number in zip(self._pairs(), numbers, strict=True):
                shard.copy_(weights[number])
        mark_step()
        self._gather(None, lambda param, shard: True)
        mark_step()


__getattr__ = refusing("torch_xla.distributed.zero_redundancy_optimizer", "there is ZeroRedundancyOptimizer")
