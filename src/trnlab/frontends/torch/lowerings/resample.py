# SPDX-License-Identifier: Apache-2.0
"""Resizing: each element of the result is a weighted sum of elements whose places are known when compiling.

One dimension after the other. The gradient takes the same way back: each element's share is added where it came from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from trnlab.frontends.torch.lowerings.registry import LoweringSite, UnsupportedOperatorForm, lowers
from trnlab.graph.ir import Value
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


# -- along one dimension --------------------------------------------------------------------------------------------


def resized(site: LoweringSite, x: Value, dim: int, taps: Taps) -> Value:
    """The weighted sums along `dim`."""
    terms = [_weighted(site, _taken(site, x, dim, tap.places), dim, tap.weights) for tap in taps]
    return reduce(site.b.add, terms)


def given_back(site: LoweringSite, grad: Value, dim: int, taps: Taps, size: int) -> Value:
    """Gradient of `resized` by its input, which has `size` elements along `dim`."""
    shares = [_put(site, _weighted(site, grad, dim, tap.weights), dim, tap.places, size) for tap in taps]
    return reduce(site.b.add, shares)


def _weighted(site: LoweringSite, x: Value, dim: int, weights: Floats | None) -> Value:
    """x times weights along `dim`; what has no weight is zero, whatever x is there."""
    if weights is None:
        return x
    b, shape = site.b, [n if d == dim else 1 for d, n in enumerate(x.shape)]
    product = b.multiply(x, b.reshape(b.constant(weights, float32), shape))
    if weights.all():
        return product
    return b.select(b.broadcast_to(b.reshape(b.constant(weights != 0), shape), x.shape), product, 0.0)


def _repeats(places: Ints, size: int) -> int:
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


def _taken(site: LoweringSite, x: Value, dim: int, places: Ints) -> Value:
    b, size = site.b, x.shape[dim]
    each, runs = _repeats(places, size), _runs(places)
    if each:
        shape = [*x.shape[: dim + 1], each, *x.shape[dim + 1 :]]
        wide = b.broadcast_in_dim(x, shape, [d for d in range(len(shape)) if d != dim + 1])
        return b.reshape(wide, [*x.shape[:dim], size * each, *x.shape[dim + 1 :]])
    if len(runs) <= _MOST_PIECES:
        pieces = [_run(site, x, dim, *run) for run in runs]
        return pieces[0] if len(pieces) == 1 else b.concatenate(pieces, dim)
    order = [dim, *(d for d in range(len(x.shape)) if d != dim)]
    first = b.transpose(x, order)
    rows = b.take_rows(b.reshape(first, (size, -1)), b.constant(places.astype(np.int32), int32))
    return b.transpose(b.reshape(rows, (len(places), *first.shape[1:])), np.argsort(order).tolist())


def _run(site: LoweringSite, x: Value, dim: int, first: int, step: int, count: int) -> Value:
    if step:
        return site.b.slice_dim(x, dim, first, first + (count - 1) * step + 1, step)
    one = site.b.slice_dim(x, dim, first, first + 1)
    return site.b.broadcast_in_dim(
        one, [count if d == dim else n for d, n in enumerate(x.shape)], range(len(x.shape))
    )


def _put(site: LoweringSite, grad: Value, dim: int, places: Ints, size: int) -> Value:
    b, each = site.b, _repeats(places, size)
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


def linear(size: int, out: int, align_corners: bool, scale: float | None) -> Taps:
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


def cubic(size: int, out: int, align_corners: bool, scale: float | None) -> Taps:
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


def smoothed(window: Callable[[Floats], Floats], reach: int) -> Callable[..., Taps]:
    """Weighted means of all elements under a window of `reach` elements to either side, which is as much wider as the
    result is smaller: `antialias=True`."""

    def rule(size: int, out: int, align_corners: bool, scale: float | None) -> Taps:
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

    return rule


def averages(size: int, out: int) -> Taps:
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


# -- operators ------------------------------------------------------------------------------------------------------

Rule = Callable[[int, int, "float | None"], Taps]


def _resize(site: LoweringSite, x: Value, rule: Rule, scales: Sequence[float | None]) -> Value:
    first = len(x.shape) - len(scales)
    taps = [rule(x.shape[first + d], site.shape[first + d], scale) for d, scale in enumerate(scales)]
    if all(tap.weights is None for each in taps for tap in each):
        y = x  # picks elements, whatever their format
    elif x.dtype.is_float:
        y = site.wide(x)
    else:
        raise UnsupportedOperatorForm(
            "a weighted mean of integers is rounded differently by each device", "resize x.float(), and round"
        )
    for d, each in enumerate(taps):
        y = resized(site, y, first + d, each)
    return site.cast(y)


def _resize_backward(
    site: LoweringSite, grad: Value, size: Sequence[int], rule: Rule, scales: Sequence[float | None]
) -> Value:
    rank, y = len(scales), site.wide(grad)
    for d, scale in reversed(list(enumerate(scales))):
        dim = len(size) - rank + d
        y = given_back(site, y, dim, rule(size[dim], grad.shape[dim], scale), size[dim])
    return site.cast(y)


def _register(name: str, rank: int, rule: Callable[..., Taps], cornered: bool) -> None:
    """An operator and its gradient; with `cornered` they say whether the corners of both grids meet."""

    def of(corners: Sequence[bool]) -> Rule:
        return lambda size, out, scale: rule(size, out, *corners, scale)

    @lowers(f"{name}.default")
    def forward(site, x, output_size, *rest):
        corners, scales = (rest[:1], rest[1:]) if cornered else ((), rest)
        return _resize(site, x, of(corners), [*scales, *[None] * (rank - len(scales))])

    @lowers(f"{name}_backward.default")
    def backward(site, grad, output_size, input_size, *rest):
        corners, scales = (rest[:1], rest[1:]) if cornered else ((), rest)
        return _resize_backward(site, grad, input_size, of(corners), [*scales, *[None] * (rank - len(scales))])


for _rank in (1, 2, 3):
    _register(f"upsample_nearest{_rank}d", _rank, nearest, False)
    _register(
        f"_upsample_nearest_exact{_rank}d", _rank, lambda size, out, scale: nearest(size, out, scale, True), False
    )
for _name, _rank in (("upsample_linear1d", 1), ("upsample_bilinear2d", 2), ("upsample_trilinear3d", 3)):
    _register(_name, _rank, linear, True)
_register("upsample_bicubic2d", 2, cubic, True)
_register("_upsample_bilinear2d_aa", 2, smoothed(_triangle, 1), True)
_register("_upsample_bicubic2d_aa", 2, smoothed(_keys, 2), True)


def _average(size: int, out: int, scale: float | None) -> Taps:
    return averages(size, out)


@lowers("_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default")
def adaptive_avg_pool(site, x, output_size):
    """Averages over windows that cover the input."""
    b, rank = site.b, len(output_size)
    lead, space, places = x.shape[:-rank], x.shape[-rank:], site.shape[-rank:]
    if any(n % m for n, m in zip(space, places)):
        return _resize(site, x, _average, [None] * rank)
    split = [v for n, m in zip(space, places) for v in (m, n // m)]
    apart = b.reshape(site.wide(x), (*lead, *split))
    total = b.reduce(apart, [len(lead) + 2 * d + 1 for d in range(rank)])
    return site.cast(b.divide(total, float(np.prod([n // m for n, m in zip(space, places)]))))


@lowers("_adaptive_avg_pool2d_backward.default", "_adaptive_avg_pool3d_backward.default")
def adaptive_avg_pool_backward(site, grad, x):
    rank = 3 if "3d" in str(site.node.target) else 2
    return _resize_backward(site, grad, x.shape, _average, [None] * rank)
