# SPDX-License-Identifier: Apache-2.0
"""Delayed scales: the largest magnitudes of the steps before, and what is made of them.

The histories of all operands of a graph are one state, float32 [N, history], the latest first, that the graph reads
at its beginning and overwrites at its end; zero where nothing was seen. So there is one reduction over all
histories, and one that finishes the largest magnitudes of this step: whoever makes an operand leaves the largest of
each of its rows while they pass, and nothing is read twice.

Before the first step there is nothing to look back on: `Histories.first_step` makes a graph that scales by what the
operands hold now, and leaves the same state. So did torchao's delayed scaling (`is_amax_initialized` of
torchao/float8/float8_linear.py, up to its version 0.7); Transformer Engine begins with scales of one, with which the
first gradients vanish in E5M2.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import groupby
from math import prod

import ml_dtypes
import numpy as np

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, TensorType, Value
from trnlab.graph.passes.dead import remove_dead_ops
from trnlab.numerics.dtypes import DType, bfloat16, float32

SMALLEST_AMAX = 1e-12
STATE = "amax"  # how the state's name begins
_NUMBER = TensorType((), float32)
MOST_ROWS = 4096  # of an operand, each with a largest magnitude of its own on the way


def largest(kind: DType) -> float:
    """The largest finite value of a format."""
    return float(ml_dtypes.finfo(kind.numpy).max)  # type: ignore[no-untyped-call]


def amax_of(wide: Value, b: GraphBuilder) -> Value:
    """The largest magnitude of all elements, a number."""
    return b.reduce(b.abs(wide), range(len(wide.shape)), "maximum")


def bounds_of(scale: Value, end: Value | float, b: GraphBuilder) -> tuple[Value, Value]:
    """Where to cut values of bfloat16 before they are scaled to a format whose largest value is `end`."""
    high = b.minimum(b.divide(end, scale), largest(bfloat16))
    return b.negate(high), high


@dataclass
class _Entry:
    """An operand."""

    kind: DType
    layer: str
    rows: Value  # the largest magnitude of each of its rows now
    scale: Value  # a number, in the end made of the state
    bounds: tuple[Value, Value]  # `bounds_of` the scale, where somebody asked for them
    bounded: bool = False
    place: int = 0


@dataclass
class _Pair:
    """A product of two operands: what undoes both scales."""

    sides: tuple[_Entry, _Entry]
    inverse: Value


class Histories:
    """The histories of one graph."""

    def __init__(self, graph: Graph, length: int) -> None:
        self.graph, self.length = graph, length
        self._entries: list[_Entry] = []
        self._pairs: dict[tuple[Value, Value], _Pair] = {}

    def scale(self, wide: Value, kind: DType, b: GraphBuilder) -> Value:
        """The scale of an operand, a number that `write` will compute."""
        layer = b.loc.layer if b.loc is not None and b.loc.layer else "model"
        self._entries.append(_Entry(kind, layer, _rows(wide, b), Value(_NUMBER), (Value(_NUMBER), Value(_NUMBER))))
        return self._entries[-1].scale

    def bounds(self, scale: Value) -> tuple[Value, Value]:
        """`bounds_of` a scale, numbers that `write` will compute."""
        entry = next(e for e in self._entries if e.scale is scale)
        entry.bounded = True
        return entry.bounds

    def inverse(self, lhs: Value, rhs: Value) -> Value:
        """What undoes two scales, a number that `write` will compute."""
        if (lhs, rhs) not in self._pairs:
            by_scale = {e.scale: e for e in self._entries}
            self._pairs[lhs, rhs] = _Pair((by_scale[lhs], by_scale[rhs]), Value(_NUMBER))
        return self._pairs[lhs, rhs].inverse

    def write(self) -> Value | None:
        """Have the graph compute all scales from a state, and the state's successor; returns the state.

        Inverses of all pairs are one small product: each by itself would be a loop that its product waits for.
        """
        if not self._entries:
            return None
        self._entries.sort(key=lambda e: e.rows.type.size)  # stable: those of as many rows are finished together
        count = len(self._entries)
        said = "|".join(f"{e.layer} {e.kind.name}" for e in self._entries)
        name = f"{STATE}.{hashlib.sha256(said.encode()).hexdigest()[:8]}"
        state = Value(TensorType((count, self.length), float32), None, len(self.graph.inputs), name)
        self.graph.inputs.append(state)
        head, tail = GraphBuilder("head"), GraphBuilder("tail")
        self._scales(state, head)
        after = self._after(state, tail)
        self.graph.ops = [*head.graph.ops, *self.graph.ops, *tail.graph.ops]
        self.graph.aliases[len(self.graph.outputs)] = state.index
        self.graph.outputs.append(after)
        self.graph.output_names.append(name)
        return state

    def _scales(self, state: Value, b: GraphBuilder) -> None:
        most = b.reduce(state, (1,), "maximum")
        seen, safe = b.compare(most, "GT", 0.0), b.maximum(most, SMALLEST_AMAX)
        ends = [largest(e.kind) for e in self._entries]
        end, share = (b.constant(np.array(x, np.float32)) for x in (ends, [1 / x for x in ends]))
        scales = b.select(seen, b.divide(end, safe), 1.0)
        inverses = b.select(seen, b.multiply(safe, share), 1.0)
        bounds = bounds_of(scales, end, b)
        count = len(self._entries)
        both = b.multiply(*(b.broadcast_in_dim(inverses, (count, count), (d,)) for d in (0, 1)))
        instead = {}
        for i, e in enumerate(self._entries):
            e.place = i
            instead[e.scale] = b.reshape(b.slice(scales, (i,), (i + 1,)), ())
            e.scale = instead[e.scale]
            if e.bounded:
                low, high = (b.reshape(b.slice(v, (i,), (i + 1,)), ()) for v in bounds)
                instead |= zip(e.bounds, (low, high))
                e.bounds = low, high
        for pair in self._pairs.values():
            i, j = (e.place for e in pair.sides)
            instead[pair.inverse] = b.reshape(b.slice(both, (i, j), (i + 1, j + 1)), ())
            pair.inverse = instead[pair.inverse]
        self.graph.replace(instead)

    def _after(self, state: Value, b: GraphBuilder) -> Value:
        """The histories with the largest magnitudes of now, where those are finite."""
        count = len(self._entries)
        parts = []
        for size, entries in groupby(self._entries, key=lambda e: e.rows.type.size):
            lines = [b.reshape(e.rows, (1, size)) for e in entries]
            parts.append(b.reduce(lines[0] if len(lines) == 1 else b.concatenate(lines, 0), (1,), "maximum"))
        amax = parts[0] if len(parts) == 1 else b.concatenate(parts, 0)
        latest = b.reshape(b.slice(state, (0, 0), (count, 1)), (count,))
        now = b.reshape(b.select(b.is_finite(amax), amax, latest), (count, 1))
        if self.length == 1:
            return now
        return b.concatenate([now, b.slice(state, (0, 0), (count, self.length - 1))], 1)

    def first_step(self, graph: Graph) -> Graph:
        """What to run instead of the finished graph as long as its state is zero: a copy that scales by now."""
        copy = graph.copy()
        copy.name = f"{graph.name}.first"
        same = dict(zip(graph.values(), copy.values()))
        entries = {same[e.rows]: e for e in self._entries if e.rows in same and e.scale in same}
        pairs = [pair for pair in self._pairs.values() if pair.inverse in same]
        late = {same[e.scale].op for e in entries.values()} | {same[pair.inverse].op for pair in pairs}
        late |= {same[v].op for e in entries.values() for v in e.bounds if v in same}
        ops, copy.ops = copy.ops, []
        inverses: dict[int, Value] = {}  # by place, of those that are known so far
        for op in ops:
            if op in late:
                continue
            copy.ops.append(op)
            e = entries.get(op.results[0])
            if e is None:
                continue
            b = GraphBuilder("now")
            inverses[e.place] = _scaled_by_now(op.result, e.kind, same[e.scale], b)
            if e.bounded:
                for value, made in zip(e.bounds, bounds_of(same[e.scale], largest(e.kind), b)):
                    _becomes(same[value], made, b)
            for pair in pairs:
                places = [side.place for side in pair.sides]
                if e.place in places and all(place in inverses for place in places):
                    _becomes(same[pair.inverse], b.multiply(*(inverses[place] for place in places)), b)
            copy.ops += b.graph.ops
        remove_dead_ops(copy)
        return copy


def _scaled_by_now(rows: Value, kind: DType, scale: Value, b: GraphBuilder) -> Value:
    """Let `scale` be made of an operand's largest magnitudes; returns its inverse."""
    amax = b.reduce(rows, (0,), "maximum")
    usable = b.and_(b.is_finite(amax), b.compare(amax, "GT", 0.0))
    safe = b.maximum(amax, SMALLEST_AMAX)
    _becomes(scale, b.select(usable, b.divide(largest(kind), safe), 1.0), b)
    return b.select(usable, b.multiply(safe, 1 / largest(kind)), 1.0)


def _becomes(value: Value, made: Value, b: GraphBuilder) -> None:
    """Let a value be the result of the op of `b` that has made another, and be read instead of it."""
    assert made.op is not None
    b.graph.replace({made: value})
    value.op, value.index, made.op.results = made.op, 0, (value,)


def _rows(wide: Value, b: GraphBuilder) -> Value:
    """The largest magnitude of each row, [R]: along the last dimension, and more where rows would be very many."""
    kept = max(len(wide.shape) - 1, 0)
    while kept > 1 and prod(wide.shape[:kept]) > MOST_ROWS:
        kept -= 1
    found = b.reduce(b.abs(wide), range(kept, len(wide.shape)), "maximum")
    return b.reshape(found, (found.type.size,))
