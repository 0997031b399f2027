# SPDX-License-Identifier: Apache-2.0
"""Operators outside of compiled code as programs of their own.

A loop around `torch.compile` leaves some operators to eager mode: a loss that the model does not compute, zeros for
an optimizer's state, sums of gradients, clipping. They are part of the step. So from the first compiled program of a
session on, an operator on `neuron` tensors is a program with one operator, compiled once per form of its arguments,
executed and timed like any other. What has no such form (values that only the host knows, formats that the chip
lacks, random numbers of a generator) stays with the host, which counts it.

Programs are functional: an operator that writes to its arguments computes their new values, which are then stored.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx

from trnlab.errors import NumericsError, TrnlabError
from trnlab.frontends.common import engine
from trnlab.frontends.torch.capture.import_fx import Imported, import_fx
from trnlab.frontends.torch.capture.tracing import fake_like, functional
from trnlab.frontends.torch.decompositions import factors
from trnlab.frontends.torch.device.buffers import ChipArray, tensor_from
from trnlab.frontends.torch.device.dispatch import tracing_allowed
from trnlab.frontends.torch.device.dlpack import as_host
from trnlab.frontends.torch.device.host_ops import NOT_HERE, give_memory
from trnlab.frontends.torch.device.types import unnarrowed
from trnlab.frontends.torch.pytorch import pytree
from trnlab.frontends.torch.pytorch.fakes import FakeTensorMode
from trnlab.frontends.torch.recording.choice import otherwise
from trnlab.graph.ir import Graph, Value
from trnlab.runtime import session

_MOST_VARIANTS = 32  # of one operator on tensors of one form, told apart by numbers that are part of the program
_ASK_THE_HOST = ("TRN210", "TRN211", "TRN213")  # integers of more than 32 bits, and indices out of range
_HOST_TAGS = (
    torch.Tag.nondeterministic_seeded,
    torch.Tag.dynamic_output_shape,
    torch.Tag.data_dependent_output,
)


@dataclass(frozen=True)
class _Number:
    """In place of a number that is an input of the program: another value needs no other program."""


@dataclass(frozen=True)
class _Form:
    """What a program depends on of a tensor. `first`: where the same tensor stood before."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    first: int


@dataclass
class _Programs:
    """The programs of one engine and session, None for what the host has to compute."""

    engine: engine.GraphEngine
    session: session.Session | None
    known: dict[Hashable, _Program | None] = field(default_factory=dict)
    variants: Counter[Hashable] = field(default_factory=Counter)
    names: Counter[str] = field(default_factory=Counter)

    def name(self, call: _Call) -> str:
        """A name of its own for the program of a call: a second one would look like the first, compiled again."""
        self.names[str(call)] += 1
        count = self.names[str(call)]
        return str(call) if count == 1 else f"{call} {count}"


_now: _Programs | None = None
_busy = threading.local()


def begin() -> None:
    """Compiled code of this session runs: from here on operators beside it run on the chip, too."""
    global _now
    if _now is None or _now.engine is not engine.current() or _now.session is not session.active():
        _now = _Programs(engine.current(), session.active())
        otherwise(run)


def run(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The operator's result, computed on the chip; `NOT_HERE` where the host has to compute it."""
    programs = _now
    if programs is None or not _eligible(op) or getattr(_busy, "compiling", False):
        return NOT_HERE
    if programs.engine is not engine.current() or programs.session is not session.active():
        return NOT_HERE
    call = _Call(op, args, kwargs)
    if not call.possible:
        return NOT_HERE
    if call.key not in programs.known:
        programs.known[call.key] = _compiled(call, programs)
    program = programs.known[call.key]
    try:
        return NOT_HERE if program is None else program.run(call)
    except NumericsError as error:
        if error.code not in _ASK_THE_HOST:
            raise
        return NOT_HERE


@cache
def _eligible(op: Any) -> bool:
    """Whether an operator may have a program at all."""
    return not any(tag in op.tags for tag in _HOST_TAGS)


class _Call:
    """One call of an operator: its tensors and numbers, and the rest as the key of a program."""

    def __init__(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self.op = op
        named = _named(op, args, kwargs)
        self.leaves, self.spec = pytree.tree_flatten(named)
        numbers = [name in _numbers(op) for name, value in named.items() for _ in pytree.tree_leaves(value)]
        self.inputs: list[Tensor] = []
        self.forms = [self._form(leaf, number) for leaf, number in zip(self.leaves, numbers)]
        plain = all(isinstance(f, Hashable) and not isinstance(f, torch.Generator) for f in self.forms)
        # Of no elements nothing is to be computed, unless the operator makes them: `arange`, into an empty result.
        self.possible = plain and (any(t.numel() for t in self.inputs) or _is_source(named))
        self.tensors_key = (op, self.spec_key, tuple(f for f in self.forms if isinstance(f, _Form)))
        self.key = (op, self.spec_key, tuple((type(f), f) for f in self.forms)) if self.possible else None

    @property
    def spec_key(self) -> str:
        """The nesting of the arguments."""
        return str(self.spec)

    def _form(self, leaf: Any, number: bool) -> Any:
        if isinstance(leaf, float) and number:
            self.inputs.append(torch.tensor(leaf, dtype=torch.float32))
            return _Number()
        if not isinstance(leaf, Tensor):
            return leaf
        if leaf.dtype is torch.float64 and leaf.dim() == 0 and leaf.device.type == "cpu":
            leaf = leaf.float()  # a Python number that was made a tensor
        first = next((i for i, t in enumerate(self.inputs) if t is leaf), len(self.inputs))
        if first == len(self.inputs):
            self.inputs.append(leaf)
        return _Form(tuple(leaf.shape), tuple(leaf.stride()), leaf.dtype, first)

    def __str__(self) -> str:
        kinds = [str(t.dtype).removeprefix("torch.") + str(list(t.shape)) for t in self.inputs]
        given = kinds if len(kinds) <= 4 else [*kinds[:3], f"{len(kinds) - 3} more"]
        return f"{self.op._schema.name.removeprefix('aten::')}({', '.join(given)})"


def _named(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by name, in the order of the schema."""
    names = [argument.name for argument in op._schema.arguments]
    given = dict(zip(names, args)) | kwargs
    return {name: given[name] for name in names if name in given}


_numbers = cache(factors.arguments)


@cache
def _written(op: Any) -> tuple[str, ...]:
    """Arguments that the operator writes to."""
    return tuple(a.name for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write)


def _compiled(call: _Call, programs: _Programs) -> _Program | None:
    """The program of a call, None where there is none."""
    programs.variants[call.tensors_key] += 1
    if programs.variants[call.tensors_key] > _MOST_VARIANTS:
        return None
    _busy.compiling = True
    try:
        with tracing_allowed():
            return _Program(call, programs.name(call))
    except (TrnlabError, NotImplementedError, RuntimeError):  # PyTorch's own, where it cannot follow without values
        return None
    finally:
        _busy.compiling = False


class _Program:
    """An operator on tensors of one form."""

    def __init__(self, call: _Call, name: str) -> None:
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        fakes = [fake_like(mode, t, "neuron") for t in call.inputs]

        def compute(*inputs: Tensor) -> list[Tensor | None]:
            return _computed(call, inputs)

        module = functional(compute, fakes, mode)
        _forget_writes(module)
        output = next(n for n in module.graph.nodes if n.op == "output")
        self._fakes: list[Any] = [n.meta["val"] if n is not None else None for n in output.args[0]]
        self._inputs = {n.name: i for i, n in enumerate(n for n in module.graph.nodes if n.op == "placeholder")}
        self._exact = _of_numbers(module)
        with unnarrowed() if self._exact else nullcontext():
            self._imported: Imported = import_fx(module, name)
        if None in self._imported.inputs:
            raise NotImplementedError("draws random numbers")
        self._read = [v in _operands(self._imported.graph) for v in self._imported.graph.inputs]
        self._place = {place: i for i, place in enumerate(self._imported.outputs)}
        self._program = engine.current().compile(self._imported.graph)

    def run(self, call: _Call) -> Any:
        """Execute, store what was written, and return what the operator returns."""
        given = [call.inputs[self._inputs[name]] for name in self._imported.inputs if name is not None]
        values = [t if read else torch.zeros_like(as_host(t)) for t, read in zip(given, self._read)]
        arrays = self._program([ChipArray(t, exact=self._exact).array() for t in values])
        named = pytree.tree_unflatten(call.leaves, call.spec)
        old = [t for name in _written(call.op) for t in pytree.tree_leaves(named[name]) if isinstance(t, Tensor)]
        for i, tensor in enumerate(old):
            if tensor.shape != self._fakes[i].shape:
                give_memory(tensor, tensor_from(arrays[self._place[i]], self._fakes[i].dtype))
            elif i in self._place:
                as_host(tensor).copy_(tensor_from(arrays[self._place[i]], self._fakes[i].dtype, "cpu"))
        made = [self._made(i, arrays) for i in range(len(old), len(self._fakes))]
        return _returned(call.op, named, made)

    def _made(self, i: int, arrays: Sequence[Any]) -> Tensor | None:
        fake = self._fakes[i]
        if fake is None:
            return None
        made = tensor_from(arrays[self._place[i]], fake.dtype)
        if made.stride() == fake.stride():
            return made
        strided = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device="neuron")
        as_host(strided).copy_(as_host(made))
        return strided


def _computed(call: _Call, inputs: Sequence[Tensor]) -> list[Tensor | None]:
    """New values of what the operator writes to, and then what it makes."""
    rest = iter(inputs)
    met: list[Tensor] = []

    def leaf(form: Any) -> Any:
        if not isinstance(form, (_Form, _Number)):
            return form
        if isinstance(form, _Number) or form.first == len(met):
            met.append(next(rest))
            return met[-1]
        return met[form.first]

    named = pytree.tree_unflatten([leaf(form) for form in call.forms], call.spec)
    result = factors.call(call.op, named, resizes=_resizes(named))
    if _resizes(named):
        return [result]
    written = [t for name in _written(call.op) for t in pytree.tree_leaves(named[name]) if isinstance(t, Tensor)]
    returns = call.op._schema.returns
    results = [result] if len(returns) == 1 else list(result or ())
    fresh = [r for r, about in zip(results, returns) if about.alias_info is None]
    return [*written, *(t for r in fresh for t in (r if isinstance(r, (list, tuple)) else [r]))]


def _operands(graph: Graph) -> set[Value]:
    """What the graph reads. Of some inputs it needs the shape alone; what is in their memory may be anything."""
    return {*(v for op in graph.ops for v in op.operands), *graph.outputs}


def _resizes(named: dict[str, Any]) -> bool:
    """Whether the caller gave an empty tensor for a result."""
    out = named.get("out")
    return isinstance(out, Tensor) and out.numel() == 0


def _is_source(named: dict[str, Any]) -> bool:
    """Whether an empty result is the only tensor that an operator is given."""
    return _resizes(named) and sum(isinstance(v, Tensor) for v in pytree.tree_leaves(list(named.values()))) == 1


def _of_numbers(module: fx.GraphModule) -> bool:
    """Whether all floats that go in and come out are without dimensions, as where an optimizer counts its steps: they
    stay float32 where all else is bf16, in which a count would stop at 256."""
    ends = [n for n in module.graph.nodes if n.op in ("placeholder", "output")]
    given = [n.meta.get("val") for n in ends if n.op == "placeholder"]
    made = [n.meta.get("val") for n in ends[-1].all_input_nodes]
    floats = [t for t in pytree.tree_leaves([given, made]) if isinstance(t, Tensor) and t.is_floating_point()]
    return bool(floats) and all(t.dim() == 0 for t in floats)


def _forget_writes(module: fx.GraphModule) -> None:
    """The new values are results; nothing else has to be written."""
    for node in reversed(module.graph.nodes):
        if node.target is torch.ops.aten.copy_.default:
            node.replace_all_uses_with(node.args[1])
            module.graph.erase_node(node)


def _returned(op: Any, named: dict[str, Any], made: list[Tensor | None]) -> Any:
    """In the form of the schema: arguments that were written to are returned as themselves."""
    fresh = iter(made)
    results: list[Any] = []
    for about in op._schema.returns:
        if about.alias_info is not None:
            results.append(_same(op, named, about.alias_info))
        elif str(about.type) == "List[Tensor]":
            results.append(list(fresh))
        else:
            results.append(next(fresh))
    return None if not results else results[0] if len(results) == 1 else tuple(results)


def _same(op: Any, named: dict[str, Any], about: Any) -> Any:
    """The argument that a result is."""
    return next(
        named[a.name]
        for a in op._schema.arguments
        if a.alias_info is not None and a.alias_info.before_set == about.before_set
    )
