# SPDX-License-Identifier: Apache-2.0
"""The forms of what an operator makes, from PyTorch's own kernels on tensors without data: once per form of call."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor

from trnlab.frontends.torch.device.dispatch import tracing_allowed
from trnlab.frontends.torch.device.dlpack import as_neuron
from trnlab.frontends.torch.device.host_ops import give_memory, without_garbage
from trnlab.frontends.torch.device.types import has_format
from trnlab.frontends.torch.geometry import TensorMeta, form_of
from trnlab.frontends.torch.pytorch import pytree
from trnlab.frontends.torch.pytorch.fakes import FakeTensorMode, unlogged
from trnlab.frontends.torch.recording.operators import OperatorSchema, is_factor, plain


@dataclass(frozen=True, eq=False)
class Tensors:
    """In place of the tensor of that number among those of a call; `Factor`: of a float."""

    number: int


@dataclass(frozen=True, eq=False)
class Factor:
    """In place of the float of that number among those that may be inputs."""

    number: int


@dataclass(frozen=True, eq=False)
class OperatorForm:
    """A call of an operator in one form: `number` tells it from others."""

    number: int
    forms: tuple[TensorMeta, ...]  # of new results, in order
    template: dict[str, Any]  # the arguments by name
    written: frozenset[int]
    returned: Callable[[Iterator[Tensor], dict[str, Any]], Any]

    def results(self, about: OperatorSchema, result: Any) -> list[Tensor]:
        """The new tensors with elements among what the operator returned."""
        parts = [result] if len(about.returned) == 1 else list(result or ())
        lists = [r if isinstance(r, (list, tuple)) else [r] for r, same in zip(parts, about.returned) if same is None]
        new = [t for r in lists for t in r if t is not None]
        return [t for t, form in zip(new, self.forms, strict=True) if form.size]

    def arguments(self, tensors: Sequence[Any], numbers: Sequence[Any]) -> dict[str, Any]:
        """The arguments by name, with these tensors and floats."""

        return {name: _filled(value, tensors, numbers) for name, value in self.template.items()}


def _filled(value: Any, tensors: Sequence[Any], numbers: Sequence[Any]) -> Any:
    if isinstance(value, Tensors):
        return tensors[value.number]
    if isinstance(value, Factor):
        return numbers[value.number]
    return [_filled(v, tensors, numbers) for v in value] if isinstance(value, list) else value


_known: dict[Hashable, OperatorForm | None] = {}
_numbers = count()


def results_of(
    about: OperatorSchema, key: Hashable, args: Sequence[Any], kwargs: dict[str, Any], tensors: Sequence[Tensor]
) -> OperatorForm | None:
    """What is known of such a call; None where the host has to compute it, or to say what is wrong with it.

    An empty tensor that the caller gives for a result gets memory of the right size.
    """
    known = _known.get(key, _known)
    if known is _known:
        known = _known[key] = _learn(about, args, kwargs, tensors)
    return known  # type: ignore[return-value]


def forget(made: OperatorForm) -> None:
    """Such calls are left to the host from now on."""
    for key in [key for key, known in _known.items() if known is made]:
        _known[key] = None


def _learn(
    about: OperatorSchema, args: Sequence[Any], kwargs: dict[str, Any], tensors: Sequence[Tensor]
) -> OperatorForm | None:
    named = dict(zip(about.names, args)) | kwargs
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with unlogged(), tracing_allowed(), mode, torch.no_grad():
            fakes = {id(t): _fake(t) for t in tensors}
            given = pytree.tree_map(lambda x: fakes[id(x)] if isinstance(x, Tensor) else x, named)
            before = [(f.shape, f.stride()) for f in fakes.values()]
            result = plain(about, given)
            if [(f.shape, f.stride()) for f in fakes.values()] != before:
                return None
    except Exception:  # whatever is wrong, the host's kernel says it in PyTorch's words
        return None
    forms = _forms(about, result, set(map(id, fakes.values())))
    if forms is None or (forms and not any(form.size for form in forms)):
        return None
    # By place: what is also the result of this call (x += 1) is only read in a later one of the same form.
    names = [name for name, value in named.items() for t in pytree.tree_leaves(value) if isinstance(t, Tensor)]
    return OperatorForm(
        next(_numbers),
        tuple(forms),
        _template(about, named),
        frozenset(i for i, name in enumerate(names) if name in about.written),
        _returning(about, result),
    )


def _fake(tensor: Tensor) -> Tensor:
    """On the host, whose shapes and strides these tensors have."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")


# What these return beside their result, means and deviations for their gradients, is float32 on devices, whatever the
# format of what is normalised. PyTorch's own shapes without memory say for the host that it has that format.
_NORMS = frozenset(
    {
        "aten::native_batch_norm",
        "aten::_native_batch_norm_legit",
        "aten::_native_batch_norm_legit_no_training",
        "aten::native_layer_norm",
    }
)


def _forms(about: OperatorSchema, result: Any, given: set[int]) -> list[TensorMeta] | None:
    forms: list[TensorMeta] = []
    for made, same in zip(_results(about, result), about.returned):
        for t in made if isinstance(made, (list, tuple)) else [made]:
            if same is not None or t is None:
                continue
            if not isinstance(t, Tensor) or id(t) in given:
                return None
            if t.layout is not torch.strided or not has_format(t.dtype) or t.is_conj() or t.is_neg():
                return None
            is_statistic = forms and about.name in _NORMS and t.dtype in (torch.bfloat16, torch.float16)
            form = form_of(tuple(t.shape), tuple(t.stride()), torch.float32 if is_statistic else t.dtype)
            if not form.dense:
                return None
            forms.append(form)
    return forms


def _results(about: OperatorSchema, result: Any) -> list[Any]:
    return [result] if len(about.returned) == 1 else list(result or ())


def _returning(about: OperatorSchema, result: Any) -> Callable[[Iterator[Tensor], dict[str, Any]], Any]:
    """How results are put into the form that the schema asks for."""
    plan = [
        same if same is not None else len(made) if isinstance(made, (list, tuple)) else made is not None
        for made, same in zip(_results(about, result), about.returned)
    ]

    def one(how: Any, new: Iterator[Tensor], named: dict[str, Any]) -> Any:
        if isinstance(how, str):
            return named[how]
        if isinstance(how, bool):
            return next(new) if how else None
        return [next(new) for _ in range(how)]

    def returned(new: Iterator[Tensor], named: dict[str, Any]) -> Any:
        found = [one(how, new, named) for how in plan]
        return None if not found else found[0] if len(found) == 1 else tuple(found)

    return returned


def _template(about: OperatorSchema, named: dict[str, Any]) -> dict[str, Any]:
    tensors: list[Tensor] = []
    floats = count()
    return {name: _stand_in(about, name, value, tensors, floats) for name, value in named.items()}


def _stand_in(about: OperatorSchema, name: str, value: Any, tensors: list[Tensor], floats: Iterator[int]) -> Any:
    """An argument with what is another in other calls taken out."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return Tensors(len(tensors) - 1)
    if isinstance(value, (list, tuple)):
        return [_stand_in(about, name, v, tensors, floats) for v in value]
    number = type(value) in (float, int) and is_factor(about, name, value, tensors)
    return Factor(next(floats)) if number else value


def make_room(about: OperatorSchema, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Give empty tensors for results the memory that the results need."""
    given = [kwargs.get(name) for name in about.outs]
    empty = [t for g in given for t in (g if isinstance(g, list) else (g,)) if _is_room(t)]
    if not empty:
        return
    named = dict(zip(about.names, args)) | kwargs
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with unlogged(), tracing_allowed(), mode, torch.no_grad():
            fakes = {id(t): _fake(t) for t in pytree.tree_leaves(named) if isinstance(t, Tensor)}
            plain(about, pytree.tree_map(lambda x: fakes[id(x)] if isinstance(x, Tensor) else x, named))
    except Exception:  # the host's kernel says it in PyTorch's words
        return
    for t in empty:
        made = fakes[id(t)]
        if made.numel():
            room = torch.empty_strided(made.shape, made.stride(), dtype=made.dtype)
            give_memory(t, as_neuron(without_garbage(room)))


def _is_room(tensor: Any) -> bool:
    return isinstance(tensor, Tensor) and tensor.device.type == "neuron" and not tensor.numel()
