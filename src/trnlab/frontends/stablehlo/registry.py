# SPDX-License-Identifier: Apache-2.0
"""The table of lowerings: for each op of StableHLO and CHLO a function that says what it is in terms of the graph's.

    @lowers("stablehlo.cbrt")
    def cbrt(site):
        ...

A lowering takes an `OpSite` and returns an entry, or one per result. What it cannot express it refuses by raising
`UnsupportedForm(reason, do)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trnlab.frontends.stablehlo import mlir
from trnlab.frontends.stablehlo.entries import TracedValue
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import TensorType, Value

Lowering = Callable[..., Any]
LOWERINGS: dict[str, Lowering] = {}


class UnsupportedForm(Exception):  # noqa: N818
    """This form of the op has no lowering: the reason, and what to do instead."""

    def __init__(self, reason: str, do: str = "", code: str = "TRN231") -> None:
        super().__init__(reason)
        self.reason, self.do, self.code = reason, do, code


def lowers(*names: str) -> Callable[[Lowering], Lowering]:
    """Register a lowering for ops of these names."""

    def register(function: Lowering) -> Lowering:
        LOWERINGS.update(dict.fromkeys(names, function))
        return function

    return register


class OpSite:
    """One op being read: the tracer (`tracer.Tracer`), its operands, and what the module says about it."""

    def __init__(
        self, tracer: Any, op: Any, operands: Sequence[TracedValue], around: Mapping[Any, TracedValue]
    ) -> None:
        self.t, self.raw, self.operands, self.around = tracer, op, list(operands), around

    @property
    def b(self) -> GraphBuilder:
        """The builder of the graph."""
        return self.t.b

    @property
    def type(self) -> TensorType:
        """Type of the first result."""
        return mlir.type_of(self.raw.results[0].type)

    @property
    def types(self) -> list[TensorType]:
        """Types of all results."""
        return [mlir.type_of(v.type) for v in self.raw.results]

    def op(self, name: str, *operands: TracedValue, **attrs: Any) -> TracedValue:
        """See `Tracer.op`."""
        return self.t.op(name, *operands, **attrs)

    def values(self, *operands: TracedValue) -> list[Value]:
        """Operands (all of the op's where none are given) as values of the graph."""
        return [self.t.use(e) for e in operands or self.operands]

    def written(
        self, write: Callable[..., Any], *operands: TracedValue, kinds: Sequence[TensorType] | None = None
    ) -> Any:
        """What `write` makes of operands as values: an entry, or a list of them, of `kinds` (the op's own types).

        For what is easier said with the builder than op by op; nothing is computed at once.
        """
        kinds = self.types if kinds is None else kinds
        for kind in kinds:
            self.t._check_runtime(kind, self.raw.operation.name)
        begin = len(self.b.graph.ops)
        given = operands or tuple(self.operands)
        with self.b.at(*self.t.place):
            found = write(*self.values(*given))
        for kind in kinds:
            self.t.follow(begin, given, kind)
        if isinstance(found, (list, tuple)):
            return [self.t.entry(v, TensorType(v.shape, k.dtype)) for v, k in zip(found, kinds)]
        return self.t.entry(found, TensorType(found.shape, kinds[0].dtype))

    def region(self, number: int, *arguments: TracedValue) -> list[TracedValue]:
        """What a region of the op returns for its arguments."""
        return self.t.block(self.raw.regions[number].blocks[0], arguments, self.around)
