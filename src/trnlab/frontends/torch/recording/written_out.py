# SPDX-License-Identifier: Apache-2.0
"""A recording as an FX graph: each operator in terms of the memory that it reads and writes, without writes.

Memory is a contiguous tensor; an operator's tensors are views of it, and what an operator writes are new contents.
Operators of one form on tensors of one form become the same nodes, which are traced once (`pieces`). An operator over
lists is one for each of their elements.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

from trnlab.frontends.torch.capture.tracing import functional_of_new_ones
from trnlab.frontends.torch.geometry import MemoryRegion, TensorMeta, seen_as, shown, view_of
from trnlab.frontends.torch.graph_templates import GraphTemplate, pieces
from trnlab.frontends.torch.pytorch.fakes import FakeTensorMode
from trnlab.frontends.torch.pytorch.graphs import module_of
from trnlab.frontends.torch.recording.forms import Factor, OperatorForm, Tensors
from trnlab.frontends.torch.recording.operators import FOREACH, MODERATE, OperatorSchema, call
from trnlab.frontends.torch.recording.recorder import RecordedOperator

Place = tuple[int, TensorMeta | None, Any]  # memory by number, and how a view lies in it; without a form all of it
_Float = tuple[float, int | None]  # and which input of the graph it is
Numbers = Mapping[int, int]  # which inputs of a graph floats are, by their places among those of a recording


@dataclass(frozen=True, eq=False)
class MemoryView:
    """A view of memory. where: the user's line."""

    place: Place
    where: str | None
    floats: tuple[int, ...] = ()

    @property
    def given(self) -> tuple[Place, ...]:
        """The memory."""
        return ((self.place[0], None, None),)

    @property
    def makes(self) -> tuple[Place, ...]:
        """The view."""
        return (self.place,)

    def likes(self, given: Sequence[Tensor]) -> list[Tensor]:
        """Tensors such as those that it makes of tensors such as these."""
        _, form, _ = self.place
        assert form is not None
        return [torch.empty_strided(form.shape, form.strides, dtype=form.dtype, device=given[0].device)]

    def key(self, likes: Sequence[Tensor]) -> Hashable:
        """What is the same for views that become the same nodes."""
        return MemoryView, *self.place[1:], *map(_form, likes)

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The view of a tensor such as the memory."""
        (memory,), (_, form, where) = tensors, self.place
        assert form is not None
        if isinstance(where, MemoryRegion):
            return [seen_as(view_of(memory, where, form.memory), form)]
        return [seen_as(shown(memory, form.memory, where), form)]


@dataclass(frozen=True, eq=False)
class OperatorCall:
    """An operator."""

    about: OperatorSchema
    made: OperatorForm  # its arguments, and the forms of what it makes
    given: tuple[Place, ...]  # what it reads, and memory that it writes to
    views: tuple[Place, ...]  # for each of its tensors the place in `given`, and where it lies in that memory
    written: tuple[int, ...]  # places in `given`
    numbers: tuple[tuple[float, int | None], ...]  # its floats, and which inputs of the graph they are
    results: tuple[tuple[int, TensorMeta], ...]  # memory that it makes
    where: str | None  # the user's line

    @property
    def floats(self) -> tuple[int, ...]:
        """Inputs of the graph with floats, each once."""
        return tuple(sorted({i for _, i in self.numbers if i is not None}))

    @property
    def makes(self) -> tuple[Place, ...]:
        """Memory that it makes, and memory that it writes to."""
        return (*((at, None, None) for at, _ in self.results), *(self.given[at] for at in self.written))

    def likes(self, given: Sequence[Tensor]) -> list[Tensor]:
        """Tensors such as those that it makes of tensors such as these."""
        lie = (form.memory for _, form in self.results)
        new = (torch.empty(lies.packed, dtype=lies.dtype, device="neuron") for lies in lie)
        return [*new, *(given[at] for at in self.written)]

    def key(self, likes: Sequence[Tensor]) -> Hashable:
        """What is the same for calls that become the same nodes. likes: tensors such as `given`."""
        order = self.floats
        floats = tuple(x.hex() if i is None else order.index(i) for x, i in self.numbers)
        arguments = tuple((name, _key(value)) for name, value in self.made.template.items())
        forms = tuple(form for _, form in self.results)
        return self.about.number, arguments, tuple(map(_form, likes)), self.views, self.written, floats, forms

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """What is made and what is written, as contiguous memory. Raises NotImplementedError."""
        given, floats = tensors[: len(self.given)], dict(zip(self.floats, tensors[len(self.given) :]))
        operands = [
            given[at] if form is None else seen_as(shown(given[at], form.memory, where), form)
            for at, form, where in self.views
        ]
        numbers = [x if i is None else floats[i] for x, i in self.numbers]
        result = call(self.about, self.made.arguments(operands, numbers), bool(floats))
        made = zip(self.made.results(self.about, result), self.results)
        return [*(_packed(x, form, self.about) for x, (_, form) in made), *(given[at] for at in self.written)]


def _key(value: Any) -> Hashable:
    if isinstance(value, list):
        return tuple(map(_key, value))
    if isinstance(value, (Tensors, Factor)):
        return type(value), value.number
    if isinstance(value, complex):
        return complex, value.real.hex(), value.imag.hex()
    return type(value), value.hex() if isinstance(value, float) else value


def _form(tensor: Tensor) -> Hashable:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device


def _packed(tensor: Tensor, form: TensorMeta, about: OperatorSchema) -> Tensor:
    if tensor.shape != form.shape:  # what PyTorch decomposes it into says less than the operator does
        raise NotImplementedError(f"{about.name} has other shapes in its parts")
    if tensor.dtype is not form.dtype:  # a float that is an input is no Python number, which gives way
        tensor = tensor.to(form.dtype)
    made = (tensor.permute(form.order) if form.order != tuple(range(len(form.order))) else tensor).contiguous()
    return torch.view_as_real(made.resolve_conj()) if form.dtype.is_complex else made


# -- what a recording is made of ------------------------------------------------------------------------------------


def calls(
    nodes: Iterable[RecordedOperator], places: Iterable[Sequence[Any]], inputs: Numbers
) -> Iterator[MemoryView | OperatorCall]:
    """What operators compute, in order, with the views that they read. places: see `NumberedRecording`."""
    seen: dict[int, set[Place]] = {}  # views that are made, by memory
    first = 0
    for node, of_node in zip(nodes, places):
        numbers = [(x, inputs.get(first + i)) for i, x in enumerate(node.numbers)]
        first += len(node.numbers)
        for made, results in _each(node, of_node[len(node.refs) :]):
            found = _call(node, made, of_node[: len(node.refs)], numbers, results)
            for place in found.given:
                made_of = seen.setdefault(place[0], set())
                if place[1] is not None and place not in made_of:
                    made_of.add(place)
                    yield MemoryView(place, node.where)
            yield found
            for at in found.written:
                del seen[found.given[at][0]]


def _each(node: RecordedOperator, results: Sequence[Any]) -> Iterator[tuple[OperatorForm, Sequence[Any]]]:
    """An operator over lists as one for each of their elements, on lists of one."""
    made = node.made
    lengths = {len(value) for value in made.template.values() if isinstance(value, list)}
    count = max(lengths, default=0)
    plain = node.about.name.startswith(FOREACH) and lengths == {count} and len(results) == len(made.forms)
    if count < 2 or not plain or len(results) not in (0, count):
        yield made, results
        return
    for i in range(count):
        template = {name: [v[i]] if isinstance(v, list) else v for name, v in made.template.items()}
        yield replace(made, template=template, forms=made.forms[i : i + 1]), results[i : i + 1]


def _call(
    node: RecordedOperator,
    made: OperatorForm,
    operands: Sequence[Any],
    numbers: Sequence[tuple[float, int | None]],
    results: Sequence[Any],
) -> OperatorCall:
    """A call with its own tensors and floats alone, numbered in the order of its arguments."""
    tensors: list[int] = []
    floats: list[int] = []

    def renumbered(value: Any) -> Any:
        if isinstance(value, list):
            return [renumbered(v) for v in value]
        if not isinstance(value, (Tensors, Factor)):
            return value
        found = tensors if isinstance(value, Tensors) else floats
        found.append(value.number)
        return type(value)(len(found) - 1)

    own = replace(made, template={name: renumbered(value) for name, value in made.template.items()})
    changed = {operands[i][0] for i in tensors if i in made.written}
    read = [(operands[i][0], None, None) if operands[i][0] in changed else operands[i] for i in tensors]
    given = tuple(dict.fromkeys(read))
    views = (
        (given.index(of), *(operands[i][1:] if of[0] in changed else (None, None))) for of, i in zip(read, tensors)
    )
    return OperatorCall(
        node.about,
        own,
        given,
        tuple(views),
        tuple(i for i, of in enumerate(given) if of[0] in changed),
        tuple(numbers[i] for i in floats),
        tuple(result[:2] for result in results),
        node.where,
    )


# -- the graph ------------------------------------------------------------------------------------------------------


def written_out(
    found: Sequence[MemoryView | OperatorCall],
    memory: Mapping[int, Tensor],
    floats: Sequence[tuple[Tensor, bool]],
    outputs: Sequence[int],
    mode: FakeTensorMode,
) -> fx.GraphModule:
    """The graph of calls, whose inputs are memory and floats, in this order, and whose results are memory.

    memory, floats: tensors without data, of all memory that is read before it is made; with a float whether it is one
    that something is divided by. Raises NotImplementedError, UnsupportedOpError.
    """
    keys, of_key = _traced(found, memory, mode)
    graph = fx.Graph()
    now: dict[Place, Any] = {
        (at, None, None): _input(graph, f"tensor_{i}", x) for i, (at, x) in enumerate(memory.items())
    }
    given = [_input(graph, f"number_{i}", x) for i, (x, _) in enumerate(floats)]
    numbers = [of_key[None].put(graph, [x], {}) if bound else x for x, (_, bound) in zip(given, floats)]
    for each, key in zip(found, keys):
        operands = [*(now[place] for place in each.given), *(numbers[i] for i in each.floats)]
        made = of_key[key].put(graph, operands, {"stack_trace": each.where} if each.where is not None else {})
        now.update(zip(each.makes, made, strict=True))
    graph.output([now[at, None, None] for at in outputs])
    graph.eliminate_dead_code()
    return module_of(graph)


def _traced(
    found: Sequence[MemoryView | OperatorCall], memory: Mapping[int, Tensor], mode: FakeTensorMode
) -> tuple[list[Hashable], dict[Hashable, GraphTemplate]]:
    """What each call is the same as, and the nodes of that; by None those of `_moderate`."""
    likes: dict[Place, Tensor] = {(at, None, None): x for at, x in memory.items()}
    number = torch.empty((), dtype=torch.float32)
    wanted: dict[Hashable, tuple[Any, list[Tensor]]] = {None: (_moderate, [number])}
    keys = []
    for each in found:
        of = [likes[place] for place in each.given]
        keys.append(each.key(of))
        wanted.setdefault(keys[-1], (each, [*of, *(number for _ in each.floats)]))
        with mode:
            likes.update(zip(each.makes, each.likes(of), strict=True))
    functions, forms = zip(*wanted.values())
    return keys, dict(zip(wanted, pieces(functions, forms, functional_of_new_ones(mode)), strict=True))


def _input(graph: fx.Graph, name: str, like: Tensor) -> fx.Node:
    node = graph.placeholder(name)
    node.meta["val"] = like
    return node


def _moderate(tensors: Sequence[Tensor]) -> Tensor:
    """Which it is, and tells the compiler that the sum of a root of squares and a little has an inverse."""
    return tensors[0].clamp(1 / MODERATE, MODERATE)
