# SPDX-License-Identifier: Apache-2.0
"""What an optimizer does to a parameter, as one operator of a traced step.

PyTorch's optimizers do the same to each parameter, of which a model has hundreds, and all it hangs on are the
parameter, its gradient, its state and the numbers of its group. So the step has an operator for each parameter, and
what that consists of is traced once for each form of its arguments (`without_writes`).
"""

from __future__ import annotations

import inspect
import operator
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, fx
from torch.optim import SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop

from trnlab.frontends.torch.capture.copies import form_of
from trnlab.frontends.torch.capture.scalars import tensors_as_numbers
from trnlab.frontends.torch.capture.subject import Place
from trnlab.frontends.torch.findings.locations import user_line_noted
from trnlab.frontends.torch.pytorch.dispatcher import functions_not_overridden
from trnlab.frontends.torch.pytorch.fakes import FakeTensor, new_like
from trnlab.frontends.torch.pytorch.graphs import node_of, put_node

_KNOWN = ("torch", "typing", "typing_extensions", "functools")  # where the functions of PyTorch's modules come from
# Those whose steps keep parameters apart, and change nothing but tensors once a parameter has its state.
_EACH_ALONE = (Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, RAdam, RMSprop, SGD)


@dataclass(frozen=True, eq=False)
class ParameterUpdate:
    """The step of an optimizer for one parameter of a group: a function of tensors, which stay as they are."""

    optimizer: Optimizer
    group: Mapping[str, Any]  # its settings, without parameters
    # where those of them stand that are arguments, and what is known of their values
    numbers: Sequence[tuple[str, int | None, float | None]]
    state: tuple[str, ...]  # names of the parameter's state

    __name__ = "parameter_update"  # FX names nodes so

    def __call__(self, x: Tensor, gradient: Tensor, *given: Tensor) -> list[Tensor]:
        """x, its gradient, its state, numbers of the group: the new parameter, and its new state."""
        x, state = x.clone(), {key: value.clone() for key, value in zip(self.state, given)}
        numbers = given[len(self.state) :]
        group = {**self.group, "params": [x]}
        for (key, at, _), number in zip(self.numbers, numbers):
            held = group[key]
            group[key] = number if at is None else type(held)(number if k == at else v for k, v in enumerate(held))
        alone = object.__new__(type(self.optimizer))
        vars(alone).update(vars(self.optimizer), param_groups=[group], state=defaultdict(dict, {x: state}))
        x.grad = gradient
        known = {id(t): value for (*_, value), t in zip(self.numbers, numbers) if value is not None}
        run_optimizer(alone, known)
        after = alone.state[x]
        return [x, *(after[key] for key in self.state)]


def run_optimizer(optimizer: Optimizer, known: Mapping[int, float] | None = None) -> None:
    """The optimizer's own step, without the profiling and the hooks around it. known: see `tensors_as_numbers`."""
    with tensors_as_numbers(known):
        inspect.unwrap(type(optimizer).step)(optimizer)


def put_updates(optimizer: Optimizer, numbers: Mapping[Place, Tensor], known: Mapping[int, float]) -> bool:
    """Put the step of an optimizer into the active trace, parameter by parameter; False where it has to be run.

    numbers: of its groups, that are inputs of the step. known: see `tensors_as_numbers`.
    """
    if type(optimizer) not in _EACH_ALONE or not _is_pytorchs(type(optimizer)):
        return False
    with functions_not_overridden():
        calls = list(_calls(optimizer, numbers, known))
        if any(call is None for call in calls):
            return False
        with user_line_noted():
            for call in calls:
                assert call is not None
                call.put()
    return True


def _is_pytorchs(kind: type[Optimizer]) -> bool:
    """Whether a class of optimizers, and the functions that its step calls, are PyTorch's: nobody has put others in
    their places."""
    module = sys.modules[inspect.unwrap(kind.step).__module__]
    held = [*vars(module).values(), *(value for base in kind.__mro__[:-1] for value in vars(base).values())]
    functions = (inspect.unwrap(value) for value in held if isinstance(value, FunctionType))
    return all(function.__module__.partition(".")[0] in _KNOWN for function in functions)


@dataclass(frozen=True, eq=False)
class _Call:
    """The update of one parameter. tensors: the parameter and its state, which it writes to."""

    update: ParameterUpdate
    tensors: Sequence[Tensor]
    arguments: Sequence[fx.Node]
    likes: Sequence[Tensor]  # of the tensors' forms

    def put(self) -> None:
        made = put_node(self.update, tuple(self.arguments))
        parameter, _, *rest = self.arguments
        for i, (tensor, node, like) in enumerate(zip(self.tensors, (parameter, *rest), self.likes)):
            item = put_node(operator.getitem, (made, i))
            item.meta["val"] = like
            written = put_node(torch.ops.aten.copy_.default, (node, item))
            written.meta["val"] = node.meta["val"]
            torch.autograd.graph.increment_version(tensor)


def _calls(
    optimizer: Optimizer, numbers: Mapping[Place, Tensor], known: Mapping[int, float]
) -> Iterator[_Call | None]:
    """An update for each parameter that has a gradient; None for one of which no operator can be made."""
    updates: dict[Any, ParameterUpdate] = {}
    likes: dict[Any, Tensor] = {}
    for i, group in enumerate(optimizer.param_groups):
        # what schedulers and users have added to a group, the optimizer does not read
        settings = {key: value for key, value in group.items() if key in optimizer.defaults}
        given = {(key, at): t for (g, key, at), t in numbers.items() if g == i and key in settings}
        plain = not settings.get("differentiable") and not _other_tensors(settings, given)
        for x in group["params"]:
            if x.grad is None:
                continue
            state = optimizer.state.get(x, {})
            tensors = [x, *state.values()]
            arguments = [*tensors[:1], x.grad, *tensors[1:], *given.values()]
            nodes = [node_of(t) if _is_plain(t) else None for t in arguments]
            if not plain or None in nodes or not (state or _keeps_nothing(optimizer, group)):
                yield None
                return
            key = i, tuple(state)
            if key not in updates:
                places = [(*place, known.get(id(t))) for place, t in given.items()]
                updates[key] = ParameterUpdate(optimizer, settings, places, tuple(state))
            forms = list(map(form_of, tensors))
            for form, t in zip(forms, tensors):
                likes[form] = likes[form] if form in likes else new_like(t)
            yield _Call(updates[key], tensors, nodes, [likes[form] for form in forms])


def _is_plain(value: Any) -> bool:
    return type(value) is FakeTensor and value.layout is torch.strided and not value.is_conj() and not value.is_neg()


def _other_tensors(settings: Mapping[str, Any], given: Mapping[tuple[str, int | None], Tensor]) -> bool:
    """Whether a group has tensors that are no arguments of its updates."""
    own = {id(t) for t in given.values()}
    held = [v for value in settings.values() for v in (value if isinstance(value, (list, tuple)) else [value])]
    return any(isinstance(v, Tensor) and id(v) not in own for v in held)


def _keeps_nothing(optimizer: Optimizer, group: Mapping[str, Any]) -> bool:
    """Whether parameters of a group have no state; others get theirs in a first step, which is unlike the next."""
    return isinstance(optimizer, SGD) and group["momentum"] == 0
