# SPDX-License-Identifier: Apache-2.0
"""Sums of values that are zero but for a part each, as gradients of slices are: their parts, put side by side.

The gradient of q, k, v = x[0], x[1], x[2] is such a sum of three. Zero is still added, which makes zero of minus
zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.passes.rewrite import is_zero, made_by, rewrite


@dataclass(frozen=True)
class _Whole:
    """A value whose rows, of all dimensions from an axis on, are divided along it."""

    shape: tuple[int, ...]
    axis: int

    @property
    def rows(self) -> int:
        return prod(self.shape[: self.axis])

    @property
    def columns(self) -> int:
        """How many a row has."""
        return prod(self.shape[self.axis :])

    @property
    def inner(self) -> int:
        """Columns of one place along the axis."""
        return prod(self.shape[self.axis + 1 :])

    def shape_of(self, columns: int) -> tuple[int, ...]:
        """The shape of so many columns of each row."""
        return (*self.shape[: self.axis], columns // self.inner, *self.shape[self.axis + 1 :])


@dataclass(frozen=True)
class _Part:
    """What is not zero in each row of a value, from `start` on. added: whether zero was added to it already."""

    start: int
    value: Value  # [rows, columns] but for its shape
    columns: int
    added: bool = False

    @property
    def stop(self) -> int:
        return self.start + self.columns


def join_parts(graph: Graph) -> bool:
    """One walk over the additions."""
    return rewrite(graph, {"add": _add})


def _add(op: Op, b: GraphBuilder) -> Value | None:
    """[a, 0] + [0, b] = [a, b] + 0."""
    divided = [_parts(v) for v in op.operands if not is_zero(v)]
    found = [each for each in divided if each is not None]
    if len(found) < len(divided) or len({whole.rows for whole, _ in found}) != 1:
        return None
    whole, parts = found[0][0], sorted((p for _, each in found for p in each), key=lambda part: part.start)
    if any(a.stop > c.start for a, c in pairwise(parts)):
        return None
    ends = [0, *(end for part in parts for end in (part.start, part.stop)), whole.columns]
    if any(end % whole.inner for end in ends):
        whole = _Whole((whole.rows, whole.columns), 1)
    gaps = [stop - start for start, stop in zip(ends[::2], ends[1::2])]
    if not any(gaps):
        joined = [b.reshape(_without_zero(part), whole.shape_of(part.columns)) for part in parts]
        return b.reshape(_added(b, b.concatenate(joined, whole.axis)), op.result.shape)
    values = list[Value]()
    for part, gap in zip([*parts, None], gaps):
        if gap:
            values.append(b.constant(0, op.result.dtype, whole.shape_of(gap)))
        if part is not None:
            x = b.reshape(part.value, whole.shape_of(part.columns))
            values.append(x if part.added else _added(b, x))
    return b.reshape(b.concatenate(values, whole.axis), op.result.shape)


def _added(b: GraphBuilder, x: Value) -> Value:
    return b.add(x, b.constant(0, x.dtype, x.shape)) if x.dtype.is_float else x


def _without_zero(part: _Part) -> Value:
    """What zero was added to, if it was: it is added to the whole."""
    value = part.value
    while part.added and (reshape := made_by(value, "reshape")) is not None:
        value = reshape.operands[0]
    added = made_by(value, "add") if part.added else None
    return next(v for v in added.operands if not is_zero(v)) if added is not None else value


def _parts(value: Value) -> tuple[_Whole, list[_Part]] | None:
    """How a value that is zero but for some columns of each row is divided, and these; None of any other."""
    while (reshape := made_by(value, "reshape")) is not None:
        value = reshape.operands[0]
    op = value.op
    if op is None or not value.type.size:
        return None
    if op.name == "concatenate":
        return _concatenated(op)
    if op.name == "pad" and is_zero(op.operands[1]):
        return _padded(op)
    return None


def _concatenated(op: Op) -> tuple[_Whole, list[_Part]] | None:
    whole = _Whole(op.result.shape, op.attrs["dimension"])
    sizes = [v.type.size // whole.rows for v in op.operands]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    zeros = [is_zero(v) for v in op.operands]
    if not any(zeros):
        return None
    parts = zip(op.operands, starts, sizes, zeros)
    return whole, [_Part(start, v, size, _is_added(v)) for v, start, size, zero in parts if not zero]


def _padded(op: Op) -> tuple[_Whole, list[_Part]] | None:
    x = op.operands[0]
    low, high, inside = (op.attrs[n] for n in ("edge_padding_low", "edge_padding_high", "interior_padding"))
    axes = [i for i in range(len(low)) if low[i] or high[i] or (inside[i] and x.shape[i] > 1)]
    if len(axes) != 1 or min(low[axes[0]], high[axes[0]]) < 0 or inside[axes[0]]:
        return None
    whole = _Whole(op.result.shape, axes[0])
    return whole, [_Part(low[axes[0]] * whole.inner, x, x.shape[axes[0]] * whole.inner)]


def _is_added(value: Value) -> bool:
    """Whether zero was added to it, by `_added`."""
    while (reshape := made_by(value, "reshape")) is not None:
        value = reshape.operands[0]
    added = made_by(value, "add")
    return added is not None and any(is_zero(v) for v in added.operands)
