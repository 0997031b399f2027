# SPDX-License-Identifier: Apache-2.0
"""Resizing: each element of the result is a weighted sum of elements whose places are known when compiling.

One dimension after the other. The gradient takes the same way back: each element's share is added where it came from.
`trn.resize` has it of the last two dimensions, along rows first, as PyTorch; what is rounded is rounded once, to the
format of the operand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Value
from trnlab.graph.ops import RESIZING
from trnlab.numerics.dtypes import float32, int32

Ints = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float32]]
_MOST_PIECES = 8  # slices that are joined rather than rows fetched by number


@dataclass(frozen=True)
class ResampleTerm:
    """One term of every element along a dimension: places [n] in the input, and weights [n], None for ones."""

    places: Ints
    weights: Floats | None = None


Taps = Sequence[ResampleTerm]
Rule = Callable[[int, int, "float | None"], Taps]
"""rule(size, out, scale): from so many elements to so many, by sizes where there is no scale."""


# -- along one dimension --------------------------------------------------------------------------------------------


def resized(b: GraphBuilder, x: Value, dim: int, taps: Taps) -> Value:
    """The weighted sums along `dim`."""
    terms = [_weighted(b, _taken(b, x, dim, tap.places), dim, tap.weights) for tap in taps]
    return reduce(b.add, terms)


def given_back(b: GraphBuilder, grad: Value, dim: int, taps: Taps, size: int) -> Value:
    """Gradient of `resized` by its input, which has `size` elements along `dim`."""
    shares = [_put(b, _weighted(b, grad, dim, tap.weights), dim, tap.places, size) for tap in taps]
    return reduce(b.add, shares)


def _weighted(b: GraphBuilder, x: Value, dim: int, weights: Floats | None) -> Value:
    """x times weights along `dim`; what has no weight is zero, whatever x is there."""
    if weights is None:
        return x
    shape = [n if d == dim else 1 for d, n in enumerate(x.shape)]
    product = b.multiply(x, b.reshape(b.constant(weights, float32), shape))
    if weights.all():
        return product
    return b.select(b.broadcast_to(b.reshape(b.constant(weights != 0), shape), x.shape), product, 0.0)


def repeats(places: Ints, size: int) -> int:
    """How often each of the places 0, 1, ... comes, one after the other; 0 where they are other places."""
    each = len(places) // size if size else 0
    return each if each and np.array_equal(places, np.repeat(np.arange(size), each)) else 0


def _runs(places: Ints) -> list[tuple[int, int, int]]:
    """First place, step and length of runs of equal steps, none of them backwards."""
    runs, i = [], 0
    while i < len(places):
        step = int(places[i + 1] - places[i]) if i + 1 < len(places) else 1
        end = i + 1
        while step >= 0 and end < len(places) and places[end] - places[end - 1] == step:
            end += 1
        runs.append((int(places[i]), max(step, 1) if end == i + 1 else step, end - i))
        i = end
    return runs


def _taken(b: GraphBuilder, x: Value, dim: int, places: Ints) -> Value:
    size = x.shape[dim]
    each, runs = repeats(places, size), _runs(places)
    if each:
        shape = [*x.shape[: dim + 1], each, *x.shape[dim + 1 :]]
        wide = b.broadcast_in_dim(x, shape, [d for d in range(len(shape)) if d != dim + 1])
        return b.reshape(wide, [*x.shape[:dim], size * each, *x.shape[dim + 1 :]])
    if len(runs) <= _MOST_PIECES:
        pieces = [_run(b, x, dim, *run) for run in runs]
        return pieces[0] if len(pieces) == 1 else b.concatenate(pieces, dim)
    order = [dim, *(d for d in range(len(x.shape)) if d != dim)]
    first = b.transpose(x, order)
    rows = b.take_rows(b.reshape(first, (size, -1)), b.constant(places.astype(np.int32), int32))
    return b.transpose(b.reshape(rows, (len(places), *first.shape[1:])), np.argsort(order).tolist())


def _run(b: GraphBuilder, x: Value, dim: int, first: int, step: int, count: int) -> Value:
    if step:
        return b.slice_dim(x, dim, first, first + (count - 1) * step + 1, step)
    one = b.slice_dim(x, dim, first, first + 1)
    return b.broadcast_in_dim(one, [count if d == dim else n for d, n in enumerate(x.shape)], range(len(x.shape)))


def _put(b: GraphBuilder, grad: Value, dim: int, places: Ints, size: int) -> Value:
    each = repeats(places, size)
    if each:
        apart = b.reshape(grad, [*grad.shape[:dim], size, each, *grad.shape[dim + 1 :]])
        return b.reduce(apart, [dim + 1])
    runs = _runs(places)
    if len(runs) == 1 and (runs[0][1] or runs[0][2] == 1):
        first, step, count = runs[0]
        low, high, inside = ([0] * len(grad.shape) for _ in range(3))
        low[dim], high[dim], inside[dim] = first, size - first - (count - 1) * step - 1, step - 1
        return b.pad(grad, low, high, inside)
    order = [dim, *(d for d in range(len(grad.shape)) if d != dim)]
    moved = b.transpose(grad, order)
    rows = b.reshape(moved, (len(places), -1))
    summed = b.scatter_add_rows(b.constant(places.astype(np.int32), int32), rows, size)
    return b.transpose(b.reshape(summed, (size, *moved.shape[1:])), np.argsort(order).tolist())


# -- where elements come from ---------------------------------------------------------------------------------------
# All in float32, in which PyTorch computes places too.


def _step(size: int, out: int, scale: float | None, align_corners: bool = False) -> np.float32:
    if align_corners:
        return np.float32(size - 1) / np.float32(out - 1) if out > 1 else np.float32(0)
    return np.float32(1.0 / scale) if scale is not None and scale > 0 else np.float32(size) / np.float32(out)


def nearest(size: int, out: int, scale: float | None, middle: bool = False) -> Taps:
    """The element below (of the middle of each result, with `middle`)."""
    at = (np.arange(out, dtype=np.float32) + np.float32(0.5 if middle else 0.0)) * _step(size, out, scale)
    return [ResampleTerm(np.minimum(np.floor(at).astype(np.int64), size - 1))]


def _source(size: int, out: int, align_corners: bool, scale: float | None) -> Floats:
    j, step = np.arange(out, dtype=np.float32), _step(size, out, scale, align_corners)
    return j * step if align_corners else (j + np.float32(0.5)) * step - np.float32(0.5)


def linear(align_corners: bool, size: int, out: int, scale: float | None) -> Taps:
    """The two neighbours by their distance."""
    at = np.maximum(_source(size, out, align_corners, scale), np.float32(0))
    below = np.minimum(at.astype(np.int64), size - 1)
    share = np.clip(at - below.astype(np.float32), np.float32(0), np.float32(1))
    above = np.minimum(below + 1, size - 1)
    return [ResampleTerm(below, np.float32(1) - share), ResampleTerm(above, share)]


def _near(d: Floats, a: np.float32) -> Floats:
    """Keys' polynomial at most one element away."""
    return ((a + 2) * d - (a + 3)) * d * d + 1


def _far(d: Floats, a: np.float32) -> Floats:
    """Keys' polynomial from one to two elements away."""
    return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a


def cubic(align_corners: bool, size: int, out: int, scale: float | None) -> Taps:
    """Four neighbours, weighted by Keys' polynomials with a = -0.75, as in PyTorch."""
    at = _source(size, out, align_corners, scale)
    below = np.floor(at).astype(np.int64)
    t, a = at - below.astype(np.float32), np.float32(-0.75)
    weights = (_far(t + 1, a), _near(t, a), _near(1 - t, a), _far(2 - t, a))
    return [
        ResampleTerm(np.clip(below + k, 0, size - 1), w.astype(np.float32)) for k, w in zip((-1, 0, 1, 2), weights)
    ]


def _triangle(d: Floats) -> Floats:
    return np.maximum(np.float32(1) - np.abs(d), np.float32(0))


def _keys(d: Floats) -> Floats:
    """Keys' polynomial with a = -0.5, as in Pillow and in PyTorch where it smooths."""
    a, d = np.float32(-0.5), np.abs(d)
    return np.where(d < 1, _near(d, a), np.where(d < 2, _far(d, a), 0)).astype(np.float32)


def smoothed(
    window: Callable[[Floats], Floats], reach: int, align_corners: bool, size: int, out: int, scale: float | None
) -> Taps:
    """Weighted means of all elements under a window of `reach` elements to either side, which is as much wider as the
    result is smaller: `antialias=True`."""
    step = _step(size, out, scale, align_corners)
    wider = max(step, np.float32(1))
    support, middle = reach * wider, step * (np.arange(out, dtype=np.float32) + np.float32(0.5))
    first = np.maximum((middle - support + np.float32(0.5)).astype(np.int64), 0)
    end = np.minimum((middle + support + np.float32(0.5)).astype(np.int64), size)
    places = first[:, None] + np.arange(max(int((end - first).max()), 1))
    weights = window((places.astype(np.float32) - middle[:, None] + np.float32(0.5)) / wider)
    weights = np.where(places < end[:, None], weights, 0).astype(np.float32)
    weights /= weights.sum(1, keepdims=True)
    return [ResampleTerm(np.minimum(at, size - 1), weight) for at, weight in zip(places.T, weights.T)]


def averages(size: int, out: int, scale: float | None = None) -> Taps:
    """Averages over `out` windows that cover the input, of sizes that differ by one at most."""
    start = np.arange(out) * size // out
    count = -(-(np.arange(out) + 1) * size // out) - start
    return [
        ResampleTerm(
            np.minimum(start + k, size - 1),
            np.where(k < count, np.float32(1) / count.astype(np.float32), 0).astype(np.float32),
        )
        for k in range(int(count.max()))
    ]


# -- as sums --------------------------------------------------------------------------------------------------------

Terms = tuple[tuple[int, float], ...]
"""Elements that one is a sum of, and their weights: none of them zero."""


def terms_of(taps: Taps) -> list[Terms]:
    """What each element of the result is a sum of."""
    weights = [np.ones(len(t.places), np.float32) if t.weights is None else t.weights for t in taps]
    columns = [t.places for t in taps]
    return [
        tuple((int(at[j]), float(w[j])) for at, w in zip(columns, weights) if w[j]) for j in range(len(columns[0]))
    ]


def terms_back(taps: Taps, size: int) -> list[Terms]:
    """What the gradient of each of `size` elements of the input is a sum of."""
    found: list[list[tuple[int, float]]] = [[] for _ in range(size)]
    for place, terms in enumerate(terms_of(taps)):
        for at, weight in terms:
            found[at].append((place, weight))
    return [tuple(terms) for terms in found]


def reach(taps: Taps, size: int) -> tuple[int, int]:
    """From the first to the last element that one is a sum of at most: of the result, and of the gradient."""
    sides = terms_of(taps), terms_back(taps, size)
    forward, back = (max((t[-1][0] - t[0][0] + 1 for t in map(sorted, side) if t), default=1) for side in sides)
    return forward, back


# -- as an op -------------------------------------------------------------------------------------------------------

RULES: Mapping[str, Rule] = {
    "nearest": nearest,
    "nearest_middle": partial(nearest, middle=True),
    "linear": partial(linear, False),
    "linear_corners": partial(linear, True),
    "cubic": partial(cubic, False),
    "cubic_corners": partial(cubic, True),
    "smooth_linear": partial(smoothed, _triangle, 1, False),
    "smooth_linear_corners": partial(smoothed, _triangle, 1, True),
    "smooth_cubic": partial(smoothed, _keys, 2, False),
    "smooth_cubic_corners": partial(smoothed, _keys, 2, True),
    "average": averages,
}

assert set(RULES) == set(RESIZING)


def taps_of(attrs: Mapping[str, Any], size: Sequence[int]) -> list[Taps]:
    """Those of `trn.resize` over an operand whose last two dimensions are `size`: along columns, and along rows."""
    rule, scales = RULES[attrs["rule"]], (attrs["row_scale"], attrs["column_scale"])
    return [rule(n, out, scale or None) for n, out, scale in zip(size, attrs["places"], scales)]


def define_resize(b: GraphBuilder, operands: Sequence[Value], attrs: Mapping[str, Any]) -> tuple[Value, ...]:
    """`trn.resize` in terms of other ops."""
    y, taps = b.convert(operands[0], float32), taps_of(attrs, operands[0].shape[-2:])
    rank = len(y.shape)
    for d in (1, 0):
        y = resized(b, y, rank - 2 + d, taps[d])
    return (y,)


def define_resize_backward(b: GraphBuilder, operands: Sequence[Value], attrs: Mapping[str, Any]) -> tuple[Value, ...]:
    """`trn.resize_backward` in terms of other ops."""
    y, size = b.convert(operands[0], float32), attrs["size"]
    taps, rank = taps_of(attrs, size), len(operands[0].shape)
    for d in (1, 0):
        y = given_back(b, y, rank - 2 + d, taps[d], size[d])
    return (y,)
