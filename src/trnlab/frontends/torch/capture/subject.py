# SPDX-License-Identifier: Apache-2.0
"""What a step trains: parameters, buffers and the optimizer's state, in a fixed order, and the settings of them."""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from trnlab.errors import UsageError
from trnlab.frontends.torch.capture import hooks
from trnlab.frontends.torch.parallel import data_parallel, fully_sharded, sharded
from trnlab.frontends.torch.sparse.parts import is_sparse, members

RATES = (2.0**-40, 2.0**20)  # where learning rates lie in training; a rate of 0 is that of a warm-up's first step
COUNTS = (0.0, 2.0**24)  # steps that a float counts exactly
_INPUTS = ("params", "lr", "initial_lr")  # of a group: what is no setting, but an input of the program

Place = tuple[int, str, int | None]
"""A number of an optimizer: its group's position, its key there, and which of several it is, as in `betas`."""


@dataclass
class Subject:
    """What is trained, in a fixed order: parameters, buffers, and where the optimizer keeps what.

    Parameters are the model's, then those that only the optimizer has.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer | None
    # step counts that the optimizer keeps as Python numbers are settings of a program, not inputs, which makes a
    # program of each step
    exact_counts: bool = False
    # numbers of the optimizer's groups that are inputs as learning rates are, because they change between steps
    scheduled: frozenset[Place] = frozenset()
    parameters: dict[str, Tensor] = field(init=False)
    buffers: dict[str, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.parameters = dict(self.model.named_parameters())
        # A sparse buffer is met where the step reads it, as the tensors that it is made of.
        self.buffers = {name: t for name, t in self.model.named_buffers() if t.layout is torch.strided}
        known = set(map(id, self.parameters.values()))
        for g, group in enumerate(self.optimizer.param_groups if self.optimizer else ()):
            for i, p in enumerate(group["params"]):
                if id(p) not in known:
                    self.parameters[f"optimizer.param_groups[{g}]['params'][{i}]"] = p

    @property
    def tensors(self) -> list[tuple[str, str, Tensor]]:
        """(kind, name, tensor) of all parameters and buffers."""
        kinds = (("parameter", self.parameters), ("buffer", self.buffers))
        return [(kind, name, t) for kind, named in kinds for name, t in named.items()]

    def state(self) -> Iterator[tuple[int, str, Tensor]]:
        """(parameter position, key, tensor) of the optimizer's state, step counts left out."""
        if self.optimizer is not None:
            for i, p in enumerate(self.parameters.values()):
                for key, value in self.optimizer.state.get(p, {}).items():
                    if isinstance(value, Tensor) and key != "step":
                        yield i, key, value

    def counts(self) -> list[tuple[int, ...]]:
        """Positions of parameters with equal step counts, together."""
        together: dict[float, list[int]] = {}
        if self.optimizer is not None:
            for i, p in enumerate(self.parameters.values()):
                count = self.optimizer.state.get(p, {}).get("step")
                if isinstance(count, Tensor) or (is_number(count) and not self.exact_counts):
                    together.setdefault(float(count), []).append(i)
        return [tuple(group) for group in together.values()]

    def python_counts(self) -> bool:
        """Whether the optimizer keeps a step count as a Python number."""
        states = self.optimizer.state.values() if self.optimizer is not None else ()
        return any(is_number(state.get("step")) for state in states)

    def rates(self) -> dict[int, float]:
        """The learning rates of the groups that have one."""
        groups = self.optimizer.param_groups if self.optimizer is not None else ()
        return {i: float(group["lr"]) for i, group in enumerate(groups) if group.get("lr") is not None}

    def numbers(self) -> dict[Place, float]:
        """The numbers of the groups that are inputs: learning rates, then what a schedule changes besides."""
        found: dict[Place, float] = {(i, "lr", None): rate for i, rate in self.rates().items()}
        others = settable(self.optimizer)
        return found | {place: others[place] for place in sorted(self.scheduled, key=str) if place in others}

    def ordinary_rates(self) -> bool:
        """Whether every learning rate lies within `RATES`, which the program may then take for granted."""
        return all(RATES[0] <= rate <= RATES[1] for rate in self.rates().values())

    def settings(self) -> dict[str, Hashable]:
        """What a captured step takes for granted of all this, by names for people."""
        found: dict[str, Hashable] = {}
        for kind, name, tensor in self.tensors:
            found[f"{kind} {name!r}"] = form(tensor)
            if tensor._backward_hooks or tensor._post_accumulate_grad_hooks:
                found[f"hooks on {name!r}"] = tuple(tuple(table) for table in hooks.gradient_hooks(tensor))
        found |= data_parallel.settings(self.model) | fully_sharded.settings(self.model)
        if self.optimizer is not None:
            self._add_optimizer(self.optimizer, found)
        return found

    def _add_optimizer(self, optimizer: torch.optim.Optimizer, found: dict[str, Hashable]) -> None:
        place = {id(p): i for i, p in enumerate(self.parameters.values())}
        for g, group in enumerate(optimizer.param_groups):
            label = f"optimizer.param_groups[{g}]"
            found[f"{label}['params']"] = tuple(place[id(p)] for p in group["params"])
            for key, value in group.items():
                if key not in _INPUTS:
                    found[f"{label}[{key!r}]"] = self._setting(g, key, value)
            if group.get("lr") is None:
                found[f"{label}['lr']"] = None
        found["every learning rate between 2^-40 and 2^20"] = self.ordinary_rates()
        found["hooks of the optimizer"] = tuple(map(id, hooks.pre_hooks(optimizer)))
        found["parameters with the same count of steps"] = tuple(self.counts())
        for name, p in self.parameters.items():
            state = optimizer.state.get(p)
            if state:
                found[f"state of {name!r}"] = tuple([(k, self._state_form(k, v)) for k, v in state.items()])

    def _setting(self, group: int, key: str, value: Any) -> Hashable:
        """A setting of a group; of a scheduled number only its sign, for which optimizers ask."""
        if (group, key, None) in self.scheduled:
            return "scheduled", _sign(value)
        if isinstance(value, (list, tuple)):
            parts = [
                ("scheduled", _sign(x)) if (group, key, i) in self.scheduled else exactly(x)
                for i, x in enumerate(value)
            ]
            return type(value).__name__, tuple(parts)
        return exactly(value)

    def _state_form(self, key: str, value: Any) -> Hashable:
        if key == "step" and (isinstance(value, Tensor) or (is_number(value) and not self.exact_counts)):
            return "count"
        return value.dtype if isinstance(value, Tensor) else exactly(value)


def settable(optimizer: torch.optim.Optimizer | None) -> dict[Place, float]:
    """Every number of an optimizer's groups besides learning rates: what a schedule may change."""
    found: dict[Place, float] = {}
    for i, group in enumerate(optimizer.param_groups if optimizer is not None else ()):
        for key, value in group.items():
            if key not in _INPUTS:
                parts = enumerate(value) if isinstance(value, (list, tuple)) else [(None, value)]
                found |= {(i, key, at): part for at, part in parts if is_number(part)}
    return found


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def is_number(value: Any) -> bool:
    """Whether it is a number of Python, flags left out."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def form(tensor: Tensor) -> Hashable:
    """What a program takes for granted of a tensor: not its values."""
    if tensor.layout is not torch.strided:
        return tensor.shape, tensor.dtype, tensor.device.type, tensor.requires_grad, tensor.layout, _parts(tensor)
    strides = None if tensor.is_contiguous() else tensor.stride()
    plain = tensor.shape, tensor.dtype, tensor.device.type, tensor.requires_grad, strides
    return (*plain, sharded.placed(tensor)) if sharded.is_sharded(tensor) else plain


def _parts(tensor: Tensor) -> Hashable:
    """The forms of what a sparse tensor is made of, and whether its elements are merged."""
    if not is_sparse(tensor):
        return None
    return tensor.layout is torch.sparse_coo and tensor.is_coalesced(), tuple(map(form, members(tensor)))


def exactly(value: Any) -> Hashable:
    """A plain value so that == tells -0.0, True, 1 and 1.0 apart; a tensor counts by identity."""
    if isinstance(value, (list, tuple)):
        return type(value).__name__, tuple(map(exactly, value))
    if isinstance(value, dict):
        return "dict", tuple((k, exactly(v)) for k, v in value.items())
    if isinstance(value, (int, float, complex, str, bytes, type(None))):
        return type(value).__name__, repr(value)
    return type(value).__name__, id(value), form(value) if isinstance(value, Tensor) else None


def check_devices(subject: Subject) -> None:
    """Raises UsageError for a parameter or buffer that is not on the device."""
    for kind, name, tensor in subject.tensors:
        if tensor.device.type != "neuron":
            raise UsageError(
                f"{kind} {name!r} is not on the device",
                code="TRN111",
                got=tensor.device,
                remedy='move the model with model.to("neuron") before the optimizer is made',
            )


def prepare(optimizer: torch.optim.Optimizer) -> None:
    """Make the optimizer create the state that it would create in its first step."""
    for group in optimizer.param_groups:
        missing = [p for p in group["params"] if p.requires_grad and not optimizer.state.get(p)]
        if isinstance(optimizer, torch.optim.SGD):
            if group["momentum"] != 0 and group["dampening"] == 0:  # else the first step differs from the others
                for p in missing:
                    optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)
        elif hasattr(optimizer, "_init_group") and missing:
            with _zero_gradients(missing):
                lists = len(inspect.signature(optimizer._init_group).parameters) - 1
                optimizer._init_group({**group, "params": missing}, *([] for _ in range(lists)))


@contextmanager
def _zero_gradients(parameters: Sequence[Tensor]) -> Iterator[None]:
    """Within the block every parameter has a gradient, for optimizers pass over those without."""
    kept = [p.grad for p in parameters]
    for p in parameters:
        p.grad = torch.zeros((), dtype=p.dtype, device=p.device).expand(p.shape)
    try:
        yield
    finally:
        for p, grad in zip(parameters, kept):
            p.grad = grad
