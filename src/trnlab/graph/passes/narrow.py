# SPDX-License-Identifier: Apache-2.0
"""All that a graph stores in float32 in bfloat16 instead: what XLA_USE_BF16 makes of a program.

Each op still computes in float32 what it reads in bfloat16, and its result is rounded. Float32 stay: single numbers
(losses, learning rates, counts), what is made of bits (random numbers), and what is computed from nothing but these;
operands and results of kernels; inputs that the caller names.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, Op, TensorType, Value
from trnlab.graph.loops import Body
from trnlab.graph.ops import CALL, COLLECTIVE, OPS
from trnlab.numerics.dtypes import bfloat16, float32

GIVEN = ("constant", "iota")
OF_BITS = ("bitcast_convert", "trn.rng_uniform", "trn.rng_philox")


def narrow(graph: Graph, kept: Container[Value] = ()) -> None:
    """Change a graph in place; inputs and outputs of one dimension or more become bfloat16, but for those `kept`."""
    _Narrower(graph).run(kept)


class _Narrower:
    def __init__(self, graph: Graph) -> None:
        self.graph, self.b = graph, GraphBuilder(graph.name)
        self.low: dict[Value, Value] = {}  # in bfloat16, of values that were rounded
        self.wide: dict[Value, Value] = {}  # what ops read in place of a value
        self.exact: set[Value] = set()

    def run(self, kept: Container[Value]) -> None:
        """Inputs, ops, outputs."""
        for value in self.graph.inputs:
            if value in kept or not _is_stored(value):
                self.exact.add(value)
                continue
            value.type = TensorType(value.shape, bfloat16)
            self.low[value], self.wide[value] = value, self.b.convert(value, float32)
        for op in self.graph.ops:
            self.b.loc, self.b.origin = op.loc, op.origin
            self._loop(op) if op.name == "loop" else self._computed(op)
        aliased = {i: self.graph.inputs[j] for i, j in self.graph.aliases.items()}
        self.graph.outputs = [
            self.wide.get(v, v) if aliased.get(i) in self.exact and aliased.get(i) in kept else self._lowered(v)
            for i, v in enumerate(self.graph.outputs)
        ]
        self.graph.ops = self.b.graph.ops

    def _lowered(self, value: Value) -> Value:
        """A value as it is stored."""
        if value in self.low or not _is_stored(value):
            return self.low.get(value, value)
        self.low[value] = self.b.convert(self.wide.get(value, value), bfloat16)
        return self.low[value]

    def _computed(self, op: Op) -> None:
        given = [v for v in op.operands if v.dtype is float32 or v in self.low]
        exact = op.name in OF_BITS or (bool(given) and all(v in self.exact for v in given))
        op.operands = tuple(self.wide.get(v, v) for v in op.operands)
        self.b.graph.ops.append(op)
        as_they_are = op.name in GIVEN or exact
        for value in op.results:
            if as_they_are or not _is_stored(value):
                self.exact.add(value)
            elif OPS[op.name].kind not in (CALL, COLLECTIVE):
                self._rounded(value)

    def _rounded(self, value: Value) -> None:
        self.low[value] = self.b.convert(value, bfloat16)
        self.wide[value] = self.b.convert(self.low[value], float32)

    def _loop(self, op: Op) -> None:
        body: Body = op.attrs["body"]
        round_ = body.graph.copy()
        narrow(round_)
        operands = [self._lowered(v) for v in op.operands]
        made = self.b.append("loop", operands, {**op.attrs, "body": replace(body, graph=round_, _memo={})}).results
        for old, value in zip(op.results, made):
            if _is_stored(old):
                self.low[old], self.wide[old] = value, self.b.convert(value, float32)
            else:
                self.wide[old] = value
                self.exact.add(old)


def _is_stored(value: Value) -> bool:
    return value.dtype is float32 and bool(value.shape)
