# SPDX-License-Identifier: Apache-2.0
"""The tensor-level IR: a functional graph of ops named and defined as in StableHLO.

The specification: https://openxla.org/stablehlo/spec. A graph is a list of ops in topological order over typed
values. Nothing here is computed: ops are listed in `ops`, shapes are in `infer`, rules in `verify`, meaning in
`interpret`, text in `text`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Protocol

from trnlab.errors import Location
from trnlab.numerics.dtypes import DType


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and element format of a value. Shapes are static."""

    shape: tuple[int, ...]
    dtype: DType

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.dtype.itemsize

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def __str__(self) -> str:
        return f"tensor<{'x'.join([*map(str, self.shape), self.dtype.name])}>"


@dataclass(eq=False, slots=True)
class Value:
    """The result of an op, or a graph input (`op` is None). Compared by identity. `name` is a hint for people."""

    type: TensorType
    op: Op | None = None
    index: int = 0
    name: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the dimensions."""
        return self.type.shape

    @property
    def dtype(self) -> DType:
        """Element format."""
        return self.type.dtype

    def __repr__(self) -> str:
        made_by = f"{self.op.name}[{self.index}]" if self.op is not None else f"input {self.index}"
        return f"<{self.name or 'value'}: {self.type} of {made_by}>"


@dataclass(eq=False, slots=True)
class Op:
    """One operation. Attribute values are ints, floats, bools, strings, tuples of these, DTypes, NumPy arrays
    or a `Callee`.

    `loc` is the user's line; `origin` the framework's own name for the op, e.g. "aten.gelu".
    """

    name: str
    operands: tuple[Value, ...]
    attrs: dict[str, Any]
    results: tuple[Value, ...]
    loc: Location | None = None
    origin: str = ""

    @property
    def result(self) -> Value:
        """The first result."""
        return self.results[0]

    def __repr__(self) -> str:
        return f"<{self.name}({', '.join(str(v.type) for v in self.operands)})>"


class Callee(Protocol):
    """What a custom_call executes: code that was scheduled already, into which the graph does not look.

    digest: 64 hexadecimal digits, the same for equal code. flops: operations that the model asks for by calling it.
    """

    @property
    def name(self) -> str:
        """For people."""
        ...

    @property
    def digest(self) -> str:
        """What it is, in a few digits."""
        ...

    @property
    def operands(self) -> tuple[TensorType, ...]:
        """Types of the operands."""
        ...

    @property
    def results(self) -> tuple[TensorType, ...]:
        """Types of the results."""
        ...

    @property
    def flops(self) -> int:
        """Operations of its matrix products."""
        ...

    def execute(self, arrays: Sequence[Any]) -> list[Any]:
        """Results from operands, in the NumPy dtypes of their formats; nothing is overwritten."""
        ...


@dataclass(frozen=True, slots=True)
class Check:
    """Something that must hold of values: the framework's name of the op and the user's line, for messages.

    rule: what must hold: "fits" (an integer stays within its format), "index" (low <= index < high, or `exempt`), or
    "holds" (a condition of the program, whose message is the origin).
    """

    origin: str
    where: Location | None
    rule: str = "fits"
    low: int = -(2**31)
    high: int = 2**31
    exempt: int | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """What to run instead of a graph, with the same inputs and outputs, as long as its input `state` is zero."""

    state: int
    graph: Graph


@dataclass(eq=False)
class Graph:
    """A function of tensors. `aliases[i] = j`: output i overwrites input j in place (a donated buffer).

    When there are `checks`, the last output is int32 [len(checks)]: not zero where a check failed (`overflow`).
    `limits[j]`: what must hold of input j; whoever runs the graph looks before it runs. `bounds[i] = (low, high)`:
    whoever calls it promises that each element of input i is NaN or within.
    """

    name: str
    inputs: list[Value] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    output_names: list[str] = field(default_factory=list)
    aliases: dict[int, int] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    limits: dict[int, list[Check]] = field(default_factory=dict)
    bounds: dict[int, tuple[float, float]] = field(default_factory=dict)
    # of a graph with a state of its own; whoever runs the graph looks, compiling sees the graph alone
    start: Start | None = None
    # so many of the last outputs are there for whoever inspects what is computed. They keep values alive, and
    # decide nothing: a pass that asks who reads a value does what it does without them.
    num_probes: int = 0

    def wanted(self) -> set[Value]:
        """The outputs that are results, not taps."""
        return set(self.outputs[: len(self.outputs) - self.num_probes])

    def users(self) -> dict[Value, list[Op]]:
        """For each value the ops that read it, in order (outputs of the graph are not ops): those that a result
        hangs on, and no op that only taps keep alive."""
        alive, needed = self.wanted(), set[Op]()
        for op in reversed(self.ops):
            if not alive.isdisjoint(op.results):
                needed.add(op)
                alive.update(op.operands)
        found: dict[Value, list[Op]] = {}
        for op in self.ops:
            for operand in dict.fromkeys(op.operands) if op in needed else ():
                found.setdefault(operand, []).append(op)
        return found

    def read_once(self) -> set[Value]:
        """Values that one op reads and that are no result: whoever changes that op may change them."""
        return {v for v, ops in self.users().items() if len(ops) == 1} - self.wanted()

    def copy(self) -> Graph:
        """The same graph in objects of its own; attribute values are shared."""
        new = {v: Value(v.type, v.op, v.index, v.name) for v in self.inputs}
        ops = []
        for op in self.ops:
            made = Op(op.name, tuple([new[v] for v in op.operands]), dict(op.attrs), (), op.loc, op.origin)
            made.results = tuple([Value(v.type, made, v.index, v.name) for v in op.results])
            new.update(zip(op.results, made.results))
            ops.append(made)
        outputs = [new[v] for v in self.outputs]
        return Graph(
            self.name,
            [new[v] for v in self.inputs],
            ops,
            outputs,
            list(self.output_names),
            dict(self.aliases),
            self.checks,
            self.limits,
            dict(self.bounds),
            num_probes=self.num_probes,
        )

    def values(self) -> Iterator[Value]:
        """Inputs, then results in order."""
        yield from self.inputs
        for op in self.ops:
            yield from op.results

    def replace(self, mapping: Mapping[Value, Value]) -> None:
        """Make every reader of a key read its replacement instead, chains followed."""

        def final(value: Value) -> Value:
            while value in mapping:
                value = mapping[value]
            return value

        for op in self.ops:
            if any(v in mapping for v in op.operands):
                op.operands = tuple(final(v) for v in op.operands)
        self.outputs = [final(v) for v in self.outputs]
