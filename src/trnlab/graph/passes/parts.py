# SPDX-License-Identifier: Apache-2.0
"""Sums of values that are zero but for a part each, as gradients of slices are: their parts, put side by side.

The gradient of q, k, v = x[0], x[1], x[2] is such a sum of three. Zero is still added, which makes zero of minus
zero.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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
    """What is not zero in each row of a value, from `start` on. added: whether zero is added to it."""

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
    """[a, 0] + [0, b] = [a, b] + 0, and [a, b] + [0, c] = [a + 0, b + c]."""
    divided = [_parts(v) for v in op.operands if not is_zero(v)]
    found = [each for each in divided if each is not None]
    if len(found) < len(divided) or len({whole.rows for whole, _ in found}) != 1:
        return None
    whole = found[0][0]
    if all(sum(part.columns for part in parts) == whole.columns for _, parts in found):
        return None
    parts = _sums(b, [part for _, each in found for part in each])
    if any(a.stop > c.start for a, c in pairwise(parts)):
        return None
    ends = [0, *(end for part in parts for end in (part.start, part.stop)), whole.columns]
    if any(end % whole.inner for end in ends):
        whole = _Whole((whole.rows, whole.columns), 1)
    return b.reshape(_side_by_side(b, whole, parts, ends), op.result.shape)


def _sums(b: GraphBuilder, parts: list[_Part]) -> list[_Part]:
    """Parts in order: the sums of those that have the same columns, and zero added to those that are alone.

    (a + 0) + c is (a + c) + 0, whatever a and c are.
    """
    places: dict[tuple[int, int], list[_Part]] = {}
    for part in parts:
        places.setdefault((part.start, part.columns), []).append(part)
    found = []
    for (start, columns), (part, *others) in sorted(places.items()):
        value = part.value
        for other in others:  # in the shape in which one of them was computed
            value = b.add(value, b.reshape(other.value, value.shape))
        found.append(_Part(start, value, columns, not others or any(p.added for p in (part, *others))))
    return found


def _side_by_side(b: GraphBuilder, whole: _Whole, parts: list[_Part], ends: list[int]) -> Value:
    """The parts with zeros between them; zero is added to all together where it is to each."""
    gaps = [stop - start for start, stop in zip(ends[::2], ends[1::2])]
    together = not any(gaps) and all(part.added for part in parts)
    values = list[Value]()
    for part, gap in zip([*parts, None], gaps):
        if gap:
            values.append(b.constant(0, parts[0].value.dtype, whole.shape_of(gap)))
        if part is not None:
            x = b.reshape(part.value, whole.shape_of(part.columns))
            values.append(_added(b, x) if part.added and not together else x)
    joined = b.concatenate(values, whole.axis)
    return _added(b, joined) if together else joined


def _added(b: GraphBuilder, x: Value) -> Value:
    return b.add(x, b.constant(0, x.dtype, x.shape)) if x.dtype.is_float else x


def _without_zero(value: Value) -> tuple[Value, bool]:
    """What zero is added to, behind reshapes, and whether it is."""
    value = _source(value)
    added = made_by(value, "add")
    zeros = [is_zero(v) for v in added.operands] if added is not None else []
    if added is None or not any(zeros):
        return value, False
    return _source(added.operands[zeros.index(True) - 1]), True


def _source(value: Value) -> Value:
    """What is behind reshapes."""
    while (reshape := made_by(value, "reshape")) is not None:
        value = reshape.operands[0]
    return value


def _parts(value: Value) -> tuple[_Whole, list[_Part]] | None:
    """How a value is divided that is zero but for some columns of each row, or that was put together, and these; None
    of any other."""
    value, added = _without_zero(value)
    op = value.op
    if op is None or not value.type.size:
        return None
    found = None
    if op.name == "concatenate":
        found = _concatenated(op)
    elif op.name == "pad" and is_zero(op.operands[1]):
        found = _padded(op)
    if found is None or not added:
        return found
    return found[0], [replace(part, added=True) for part in found[1]]


def _concatenated(op: Op) -> tuple[_Whole, list[_Part]]:
    whole = _Whole(op.result.shape, op.attrs["dimension"])
    parts, start = list[_Part](), 0
    for value in op.operands:
        columns = value.type.size // whole.rows
        if not is_zero(value):
            source, added = _without_zero(value)
            parts.append(_Part(start, source, columns, added))
        start += columns
    return whole, parts


def _padded(op: Op) -> tuple[_Whole, list[_Part]] | None:
    x = op.operands[0]
    low, high, inside = (op.attrs[n] for n in ("edge_padding_low", "edge_padding_high", "interior_padding"))
    axes = [i for i in range(len(low)) if low[i] or high[i] or (inside[i] and x.shape[i] > 1)]
    if len(axes) != 1 or min(low[axes[0]], high[axes[0]]) < 0 or inside[axes[0]]:
        return None
    whole = _Whole(op.result.shape, axes[0])
    return whole, [_Part(low[axes[0]] * whole.inner, _source(x), x.shape[axes[0]] * whole.inner)]
