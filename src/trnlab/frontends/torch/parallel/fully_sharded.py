# SPDX-License-Identifier: Apache-2.0
"""`fully_shard` (FSDP2) within a captured step: what its hooks gather and reduce are collectives of the program.

Eager FSDP resizes storages and runs collectives on streams, from hooks of modules and of autograd. Within
`captured_units` the same hooks of modules find the parameters of their unit in one `_Gather`: an all-gather of its
shards in `param_dtype`, whose gradient is a reduce-scatter in `reduce_dtype` (and an all-reduce over replicas). What
is saved of gathered parameters for the backward pass is gathered again there, where the unit reshards after its
forward pass, so that no parameter stays in memory from one to the other (ADR 56).

FSDP's own names are used: a unit is its parameter group, what one call of `fully_shard` gathers together.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from trnlab.errors import UnsupportedOpError
from trnlab.frontends.torch.parallel import shards
from trnlab.frontends.torch.recomputation import RecomputedParts, computed_again

Full = list[Tensor]
# Of a parameter group: what its setters set and a captured step reads.
_READ = (
    "reduce_grads",
    "all_reduce_grads",
    "_reshard_after_forward",
    "gradient_divide_factor",
    "force_sum_reduction_for_comms",
)


def settle(model: nn.Module) -> None:
    """Bring fully sharded modules into the state in which a step finds them: initialized, and sharded."""
    for state in _states(model):
        if state._is_root is None:
            state._lazy_init()
        for group in state._fsdp_param_groups:
            if not group.is_sharded:
                group._to_sharded()


@contextmanager
def captured_units(model: nn.Module, again: RecomputedParts) -> Iterator[None]:
    """Within the block forward and backward passes gather and reduce by operators that a trace sees.

    Raises UnsupportedOpError (TRN267) for what of FSDP a captured step does not do.
    """
    _refuse_first_version(model)
    units = {group: ShardedUnit(group, again) for state in _states(model) for group in state._fsdp_param_groups}
    if not units:
        yield
        return
    walk = _Walk(units)
    with ExitStack() as stack:
        for kind, name, replacement in walk.replacements():
            stack.enter_context(patch.object(kind, name, replacement))
        try:
            yield
            walk.check_reduced()
        finally:
            walk.end()


def settings(model: nn.Module) -> dict[str, Hashable]:
    """What a captured step takes for granted of fully sharded modules, by names for people."""
    found: dict[str, Hashable] = {}
    for i, state in enumerate(_states(model)):
        found[f"fully sharded module {i}'s mixed precision"] = repr(state._mp_policy)
        for j, group in enumerate(state._fsdp_param_groups):
            label = f"group {j} of fully sharded module {i}"
            found |= {f"{label}: {name}": value for name, value in _settings_of(group).items()}
    return found


def _settings_of(group: Any) -> dict[str, Hashable]:
    from trnlab.frontends.torch.pytorch.sharding import policies

    found: dict[str, Hashable] = {name.strip("_"): getattr(group, name) for name in _READ}
    found["mesh"] = group.mesh_info.mesh
    found["mixed precision"] = " and ".join(map(repr, policies(group)))
    found["collectives"] = tuple(
        type(x).__name__ for x in (group._all_gather_comm, group._reduce_scatter_comm, group._all_reduce_hook)
    )
    return found


def _states(model: nn.Module) -> list[Any]:
    """The states of fully sharded modules, outer ones first."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None:
        return []
    found = [m._get_fsdp_state() for m in model.modules() if isinstance(m, fsdp.FSDPModule)]
    return list(dict.fromkeys(found))


class _Walk:
    """One forward and backward pass over units."""

    def __init__(self, units: dict[Any, ShardedUnit]) -> None:
        self.units = units
        self.depth = 0
        self.keeper: saved_tensors_hooks | None = None

    def replacements(self) -> list[tuple[type, str, Any]]:
        """(class, name, function) of what FSDP calls from hooks of modules."""
        from trnlab.frontends.torch.pytorch.sharding import FSDPParamGroup, FSDPState

        def nothing(*_: Any, **__: Any) -> None:
            return None

        return [
            (FSDPState, "_root_pre_forward", lambda state, module, args, kwargs: (args, kwargs)),
            (FSDPState, "_register_pre_backward_hook", lambda state, output: self._returned(state, output)),
            (FSDPParamGroup, "pre_forward", lambda group, module, args, kwargs: self._enter(group, args, kwargs)),
            (FSDPParamGroup, "post_forward", lambda group, module, given, output: self._leave(group, output)),
            (FSDPParamGroup, "_prefetch_unshard", staticmethod(nothing)),
            (FSDPParamGroup, "unshard", nothing),
            (FSDPParamGroup, "wait_for_unshard", nothing),
            (FSDPParamGroup, "reshard", nothing),
        ]

    def _enter(self, group: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        if self.depth == 0 and not any(unit.backward for unit in self.units.values()):
            self.keeper = saved_tensors_hooks(self._pack, _unpack)
            self.keeper.__enter__()
        self.depth += 1
        self.units[group].entered += 1
        self.units[group].enter()
        return args, kwargs

    def _leave(self, group: Any, output: Any) -> Any:
        unit = self.units[group]
        self.depth -= unit.entered  # a unit of several modules is entered with each, and left with the last
        unit.entered = 0
        if self.depth == 0 and self.keeper is not None:
            self.keeper.__exit__(None, None, None)
            self.keeper = None
        unit.leave()
        return output

    def _returned(self, state: Any, output: Any) -> Any:
        """The backward pass of a unit begins where the gradient of what it returned is there."""
        from trnlab.frontends.torch.pytorch.sharding import collect_grad_tensors

        units = [self.units[group] for group in state._fsdp_param_groups]

        def begin(gradient: Tensor) -> Tensor:
            for unit in units:
                unit.begin_backward()
            return gradient

        for tensor in collect_grad_tensors(output) if torch.is_grad_enabled() else ():
            tensor.register_hook(begin)
        return output

    def _pack(self, saved: Tensor) -> Any:
        for unit in self.units.values():
            found = unit.recipe(saved)
            if found is not None:
                return found
        return saved

    def check_reduced(self) -> None:
        """Raises UnsupportedOpError where gradients of a unit were accumulated and never reduced."""
        for unit in self.units.values():
            if unit.unreduced:
                raise _refused(
                    unit.group,
                    "does not reduce its gradients",
                    "set_requires_gradient_sync(False)",
                    "reduce them in the last micro-batch of the step",
                )

    def end(self) -> None:
        """Put everything back."""
        if self.keeper is not None:
            self.keeper.__exit__(None, None, None)
        for unit in self.units.values():
            unit.end()


def _unpack(saved: Any) -> Tensor:
    tensor: Tensor = saved() if callable(saved) else saved
    return tensor


class ShardedUnit:
    """The parameters that are gathered together, and where they stand within a step."""

    def __init__(self, group: Any, parts: RecomputedParts) -> None:
        _check(group)
        self.group, self.parts = group, parts
        self.params = group.fsdp_params
        self.reshards: bool = group._reshard_after_forward
        self.sharded = [getattr(p._module_info.module, p._module_info.param_name) for p in self.params]
        self.forward: Full | None = None  # gathered, with a gradient, while the unit holds on to it
        self.again: Full | None = None  # gathered again for the backward pass
        self.known: dict[int, tuple[Tensor, int]] = {}  # what was gathered, and of which parameter, by identity
        self.backward = self.unreduced = False
        self.entered = 0

    def enter(self) -> None:
        """Before the forward pass of a module: it finds whole parameters."""
        if self.backward and self.again is not None:  # a checkpoint computes it again
            self._place(self.again)
            return
        if self.forward is None:
            self.forward = self._gathered()
        self.unreduced = not self.group.reduce_grads
        self._place(self.forward)

    def leave(self) -> None:
        """After it: shards again, unless another use's gradients go into the same reduction."""
        if self.backward:
            return
        self._place(self.sharded)
        if self.reshards and not self.unreduced:
            self.forward = None

    def begin_backward(self) -> None:
        """Before the unit's backward pass, in which a checkpoint may run its modules once more."""
        if not self.backward:
            self.backward = True
            with torch.no_grad():
                self._place(self._whole_again() if self.reshards else self.forward or self.sharded)

    def end_backward(self) -> None:
        """Its gradients are there."""
        self.backward, self.again, self.forward = False, None, None
        self._place(self.sharded)

    def end(self) -> None:
        """The step is captured: nothing of it stays."""
        self._place(self.sharded)
        for state in {id(s): s for s in map(_state_of, self.group.modules)}.values():
            state._modules_to_run_forward.clear()

    def recipe(self, saved: Tensor) -> Callable[[], Tensor] | None:
        """How to make a tensor of the forward pass again that is a gathered parameter, or a view of one."""
        base = saved._base if saved._base is not None else saved
        _, place = self.known.get(id(base), (None, -1))
        if place < 0 or not self.reshards:
            return None
        if base is saved:
            return lambda: _base_of(self._whole_again()[place])
        return lambda: saved._view_func_unsafe(_base_of(self._whole_again()[place]))  # type: ignore[attr-defined, no-any-return]

    def _gathered(self) -> Full:
        parts = [shards.local_part(x) for x in self.sharded]
        full = [shards.placed(p, x) for p, x in zip(self.params, _Gather.apply(self, *parts))]  # type: ignore[no-untyped-call]
        self.known |= {id(_base_of(x)): (_base_of(x), i) for i, x in enumerate(full)}
        return full

    def _whole_again(self) -> Full:
        if self.again is None:
            with torch.no_grad(), computed_again(self.parts.new()):
                parts = [shards.local_part(x) for x in self.sharded]
                found = [shards.placed(p, x) for p, x in zip(self.params, shards.gather(self.group, parts))]
            self.again = [x.requires_grad_(p.sharded_param.requires_grad) for p, x in zip(self.params, found)]
        return self.again

    def _place(self, tensors: Sequence[Tensor]) -> None:
        """Give the modules these in the place of their parameters."""
        for param, tensor in zip(self.params, tensors):
            info = param._module_info
            names = [(info.module, info.param_name), *zip(info.shared_modules, info.shared_param_names)]
            for module, name in names:
                module._parameters[name] = tensor


def _base_of(tensor: Tensor) -> Tensor:
    return tensor._base if tensor._base is not None else tensor


class _Gather(torch.autograd.Function):
    """The parameters of a unit from its shards; gradients are reduced once, when all of them are there."""

    @staticmethod
    def forward(ctx: Any, unit: ShardedUnit, *parts: Tensor) -> tuple[Tensor, ...]:
        ctx.unit = unit
        ctx.set_materialize_grads(False)
        full = shards.gather(unit.group, parts)
        ctx.mark_non_differentiable(*(x for x, part in zip(full, parts) if not part.requires_grad))
        return tuple(full)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        reduced = shards.reduce(ctx.unit.group, gradients)
        ctx.unit.end_backward()
        return None, *reduced


# -- what is refused ------------------------------------------------------------------------------------------------


def _state_of(module: nn.Module) -> Any:
    return module._get_fsdp_state()  # type: ignore[operator]


def _check(group: Any) -> None:
    """Raises UnsupportedOpError for what a group would do in eager code alone."""
    from trnlab.frontends.torch.pytorch.sharding import DefaultAllGather, DefaultReduceScatter

    if any(p.offload_to_cpu for p in group.fsdp_params):
        raise _refused(group, "keeps its shards on the host", "CPUOffloadPolicy", "leave offload_policy out")
    if any(hasattr(p._sharded_local_tensor, "fsdp_pre_all_gather") for p in group.fsdp_params):
        raise _refused(
            group, "gathers tensors of a kind of their own", "fsdp_pre_all_gather", "gather in param_dtype"
        )
    if group._all_reduce_hook is not None:
        raise _refused(
            group, "has a hook on its reductions", "set_all_reduce_hook", "shard on a mesh of two dimensions"
        )
    own = (group._all_gather_comm, DefaultAllGather), (group._reduce_scatter_comm, DefaultReduceScatter)
    for comm, kind in own:
        if type(comm) is not kind:
            raise _refused(group, "has collectives of its own", type(comm).__name__, "leave set_custom_* out")
    if group._is_hsdp and not group.all_reduce_grads:
        raise _refused(
            group,
            "leaves replicas apart",
            "set_requires_all_reduce(False)",
            "accumulate within the step: let the loss function go over the micro-batches",
        )


def _refused(group: Any, what: str, got: str, remedy: str) -> UnsupportedOpError:
    return UnsupportedOpError(
        f"fully sharded module {group._module_fqn or 'model'!r} {what}, which is eager code",
        code="TRN267",
        limit="fully_shard with its own collectives, on the device",
        got=got,
        remedy=remedy,
    )


def _refuse_first_version(model: nn.Module) -> None:
    fsdp = sys.modules.get("torch.distributed.fsdp")
    for name, module in model.named_modules() if fsdp is not None else ():
        if isinstance(module, fsdp.FullyShardedDataParallel):  # type: ignore[union-attr]
            raise UnsupportedOpError(
                f"module {name or 'model'!r} is fully sharded by the first version of FSDP",
                code="TRN267",
                limit="fully_shard (FSDP2)",
                got="FullyShardedDataParallel",
                remedy="shard it with torch.distributed.fsdp.fully_shard",
            )
