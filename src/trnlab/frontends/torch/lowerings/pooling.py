# SPDX-License-Identifier: Apache-2.0
"""Pooling over windows: the largest element, or the average; adaptive forms, too.

A window is walked element by element: for each, a strided slice holds it for all places at once. On the way back each
element's share goes to its places; by residues of the strides, so that no zeros are written between.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from weakref import WeakKeyDictionary

import numpy as np

from trnlab.frontends.torch.lowerings.registry import LoweringSite, lowers
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Value
from trnlab.numerics.dtypes import bfloat16, float32, int32

_NUMBERS: WeakKeyDictionary[GraphBuilder, dict[Value, tuple[Value, PoolingWindows]]] = WeakKeyDictionary()
"""Of each graph, for numbers of largest elements: the tensor, and the windows."""
Element = tuple[int, ...]


@dataclass(frozen=True)
class PoolingWindows:
    """Windows over the last dimensions of a tensor; `places` of them in each."""

    size: tuple[int, ...]
    window: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    places: tuple[int, ...]

    @property
    def rank(self) -> int:
        """Dimensions of space."""
        return len(self.size)

    def whole(self, x: Value) -> bool:
        """Whether `trn.max_pool` says it: floats, windows without gaps, each with an element."""
        seen = ((m - 1) * s - p < n for m, s, p, n in zip(self.places, self.strides, self.padding, self.size))
        padded = (p < k for p, k in zip(self.padding, self.window))
        return x.dtype in (bfloat16, float32) and set(self.dilation) == {1} and all(seen) and all(padded)

    def attrs(self) -> dict[str, tuple[int, ...]]:
        """Those of `trn.max_pool`."""
        return {
            "window": self.window,
            "window_strides": self.strides,
            "padding_low": self.padding,
            "places": self.places,
        }

    def elements(self) -> Iterator[Element]:
        """Elements of the window, in row-major order."""
        return product(*map(range, self.window))

    def first(self, element: Element) -> list[int]:
        """Where an element of the window lies in place 0."""
        return [e * d - p for e, d, p in zip(element, self.dilation, self.padding)]

    def padded(self, site: LoweringSite, x: Value, value: float | int) -> Value:
        """x with `value` around it, as far as windows reach."""
        reach = [
            (n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip(self.places, self.strides, self.window, self.dilation)
        ]
        lead = [0] * (len(x.shape) - self.rank)
        high = [r - p - n for r, p, n in zip(reach, self.padding, self.size)]
        return site.b.pad(x, [*lead, *self.padding], [*lead, *high], value=value)

    def at(self, site: LoweringSite, padded: Value, element: Element) -> Value:
        """One element of all windows, [..., places]."""
        lead = len(padded.shape) - self.rank
        start = [e * d for e, d in zip(element, self.dilation)]
        limit = [a + (n - 1) * s + 1 for a, n, s in zip(start, self.places, self.strides)]
        strides = [1] * lead + list(self.strides)
        return site.b.slice(padded, [0] * lead + start, [*padded.shape[:lead], *limit], strides)

    def numbers(self, element: Element) -> np.ndarray:
        """Row-major numbers, within the input, of one element of all windows; -1 outside. int32 [places]."""
        axes = [a + np.arange(n) * s for a, n, s in zip(self.first(element), self.places, self.strides)]
        grid = np.meshgrid(*axes, indexing="ij")
        inside = np.logical_and.reduce([(g >= 0) & (g < n) for g, n in zip(grid, self.size)])
        flat = sum(g * prod(self.size[i + 1 :]) for i, g in enumerate(grid))
        return np.where(inside, flat, -1).astype(np.int32)

    def back(self, site: LoweringSite, share: Callable[[Element], Value]) -> Value:
        """[..., size]: the sum, at each element of the input, of the shares [..., places] that windows have in it."""
        b = site.b
        counts = [-(-n // s) for n, s in zip(self.size, self.strides)]
        sums: dict[Element, Value] = {}
        for element in self.elements():
            first = self.first(element)
            residue = tuple(f % s for f, s in zip(first, self.strides))
            low = [f // s for f, s in zip(first, self.strides)]
            given = share(element)
            lead = [0] * (len(given.shape) - self.rank)
            high = [m - n - a for m, n, a in zip(counts, self.places, low)]
            moved = b.pad(given, [*lead, *low], [*lead, *high])
            sums[residue] = b.add(sums[residue], moved) if residue in sums else moved
        some = next(iter(sums.values()))
        zeros = b.constant(0.0, some.dtype, some.shape)
        parts = [sums.get(r, zeros) for r in product(*map(range, self.strides))]
        return b.interleave(parts, self.strides, self.size)


def _pool(
    x: Value,
    shape: Sequence[int],
    rank: int,
    window: list[int],
    stride: list[int],
    padding: list[int],
    dilation: Sequence[int] = (1,),
) -> PoolingWindows:
    """Windows over x that give a result of `shape`; one number stands for all dimensions."""
    each = (tuple(v) * (rank if len(v) == 1 else 1) for v in (window, stride or window, padding, dilation))
    kernel, strides, before, apart = each
    return PoolingWindows(tuple(x.shape[-rank:]), kernel, strides, before, apart, tuple(shape[-rank:]))


# -- the largest ----------------------------------------------------------------------------------------------------


def _max_pool(site, x, rank, window, stride=(), padding=(0,), dilation=(1,)):
    """The largest element of each window, and its number within the input; NaN is larger than all."""
    return _largest_of(site, x, _pool(x, site.shape, rank, window, stride, padding, dilation))


def _largest_of(site: LoweringSite, x: Value, pool: PoolingWindows) -> tuple[Value, Value]:
    b = site.b
    lowest = -math.inf if x.dtype.is_float else int(x.dtype.limits[0])
    padded = pool.padded(site, x, lowest)
    numbers = {e: pool.numbers(e) for e in pool.elements()}
    first = np.full(pool.places, -1, np.int32)
    for number in reversed(list(numbers.values())):  # where nothing is above the lowest, the first that is inside
        first = np.where(number >= 0, number, first)
    best = b.constant(lowest, x.dtype, site.shape)
    place = b.broadcast_to(b.constant(first, int32), site.shape)
    for element, number in numbers.items():
        seen = pool.at(site, padded, element)
        larger = b.compare(seen, "GT", best)
        if x.dtype.is_float:
            larger = b.or_(larger, b.compare(seen, "NE", seen))
        best = b.select(larger, seen, best)
        place = b.select(larger, b.broadcast_to(b.constant(number, int32), site.shape), place)
    return best, place


def _max_pool_backward(site, grad, x, rank, window, stride, padding, dilation, indices):
    b, pool = site.b, _pool(x, grad.shape, rank, window, stride, padding, dilation)
    grad, indices = site.wide(grad), b.convert(indices, int32)

    def share(element: Element) -> Value:
        mine = b.compare(indices, "EQ", b.broadcast_to(b.constant(pool.numbers(element), int32), indices.shape))
        return b.select(mine, grad, 0.0)

    return site.cast(pool.back(site, share))


@lowers("max_pool2d_with_indices.default")
def max_pool2d(site, x, kernel_size, stride=(), padding=(0,), dilation=(1,), ceil_mode=False):
    """Numbers of the largest elements are dead code where only the gradient asks for them: it finds them itself."""
    best, place = _max_pool(site, x, 2, kernel_size, stride, padding, dilation)
    pool = _pool(x, site.shape, 2, kernel_size, stride, padding, dilation)
    if pool.whole(x):
        best = site.b.op("trn.max_pool", x, **pool.attrs())
        _NUMBERS.setdefault(site.b, {})[place] = x, pool
    return best, place


@lowers("max_pool3d_with_indices.default")
def max_pool3d(site, x, kernel_size, stride=(), padding=(0,), dilation=(1,), ceil_mode=False):
    return _max_pool(site, x, 3, kernel_size, stride, padding, dilation)


@lowers("max_pool2d_with_indices_backward.default")
def max_pool2d_backward(site, grad, x, kernel_size, stride, padding, dilation, ceil_mode, indices):
    """Where the numbers are those of the same windows over the same tensor, the kernel finds them again."""
    pool = _pool(x, grad.shape, 2, kernel_size, stride, padding, dilation)
    if _NUMBERS.get(site.b, {}).get(indices) == (x, pool) and grad.dtype is x.dtype:
        return site.cast(site.b.op("trn.max_pool_backward", grad, x, **pool.attrs()))
    return _max_pool_backward(site, grad, x, 2, kernel_size, stride, padding, dilation, indices)


@lowers("max_pool3d_with_indices_backward.default")
def max_pool3d_backward(site, grad, x, kernel_size, stride, padding, dilation, ceil_mode, indices):
    return _max_pool_backward(site, grad, x, 3, kernel_size, stride, padding, dilation, indices)


# -- the average ----------------------------------------------------------------------------------------------------


def _average_attrs(pool: PoolingWindows, count_include_pad: bool, override: int | None) -> list[dict[str, object]]:
    """Those of `trn.avg_pool`: windows over the last two dimensions, then, of three, over the first."""
    counted = pool.padding if count_include_pad else (0,) * pool.rank
    attrs = {**pool.attrs(), "counted": counted}
    last = {name: numbers[-2:] for name, numbers in attrs.items()}
    if pool.rank == 2:
        return [{**last, "divisor": float(override or 0)}]
    beside = {"window": 1, "window_strides": 1, "padding_low": 0, "places": prod(pool.places[-2:]), "counted": 0}
    first = {name: (numbers[0], beside[name]) for name, numbers in attrs.items()}
    return [{**last, "divisor": float(override is not None)}, {**first, "divisor": float(override or 0)}]


def _avg_pool(site, x, rank, window, stride, padding, count_include_pad, override):
    """Where a window holds all there is, it is a sum of rows; otherwise there is a kernel."""
    b, pool = site.b, _pool(x, site.shape, rank, window, stride, padding)
    if pool.window == pool.size and not any(pool.padding):
        total = b.reduce(site.wide(x), range(-rank, 0), keepdims=True)
        return site.cast(b.divide(total, float(override or prod(pool.window))))
    y = x if rank == 2 and x.dtype in (bfloat16, float32) else site.wide(x)
    first, *then = _average_attrs(pool, count_include_pad, override)
    y = b.op("trn.avg_pool", y, **first)
    for attrs in then:
        y = b.op("trn.avg_pool", b.reshape(y, (*y.shape[:-2], prod(pool.places[-2:]))), **attrs)
    return site.cast(site.shaped(y))


def _avg_pool_backward(site, grad, x, rank, window, stride, padding, count_include_pad, override):
    b, pool = site.b, _pool(x, grad.shape, rank, window, stride, padding)
    if pool.window == pool.size and not any(pool.padding):
        share = b.divide(site.wide(grad), float(override or prod(pool.window)))
        return site.cast(b.broadcast_to(share, x.shape))
    y = grad if rank == 2 and grad.dtype in (bfloat16, float32) else site.wide(grad)
    last, *then = _average_attrs(pool, count_include_pad, override)
    for attrs in then:
        flat = b.reshape(y, (*y.shape[:-2], prod(pool.places[-2:])))
        y = b.op("trn.avg_pool_backward", flat, **attrs, size=(pool.size[0], flat.shape[-1]))
        y = b.reshape(y, (*y.shape[:-1], *pool.places[-2:]))
    return site.cast(b.op("trn.avg_pool_backward", y, **last, size=pool.size[-2:]))


@lowers("avg_pool2d.default")
def avg_pool2d(
    site, x, kernel_size, stride=(), padding=(0,), ceil_mode=False, count_include_pad=True, divisor_override=None
):
    return _avg_pool(site, x, 2, kernel_size, stride, padding, count_include_pad, divisor_override)


@lowers("avg_pool3d.default")
def avg_pool3d(
    site, x, kernel_size, stride=(), padding=(0,), ceil_mode=False, count_include_pad=True, divisor_override=None
):
    return _avg_pool(site, x, 3, kernel_size, stride, padding, count_include_pad, divisor_override)


@lowers("avg_pool2d_backward.default")
def avg_pool2d_backward(site, grad, x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override):
    return _avg_pool_backward(site, grad, x, 2, kernel_size, stride, padding, count_include_pad, divisor_override)


@lowers("avg_pool3d_backward.default")
def avg_pool3d_backward(site, grad, x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override):
    return _avg_pool_backward(site, grad, x, 3, kernel_size, stride, padding, count_include_pad, divisor_override)


# -- windows that cover the input -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cover(PoolingWindows):
    """Windows that cover the input and differ in size: place i of m from floor(i n / m) to ceil((i + 1) n / m)."""

    @classmethod
    def of(cls, x: Value, places: Sequence[int]) -> Cover:
        """Windows over the last dimensions of x, as large as the largest."""
        size, one = x.shape[-len(places) :], (1,) * len(places)
        ends = [_ends(n, m) for n, m in zip(size, places)]
        window = tuple(int((end - start).max()) for start, end in ends)
        return cls(tuple(size), window, one, (0,) * len(places), one, tuple(places))

    def padded(self, site: LoweringSite, x: Value, value: float | int) -> Value:
        """Elements as rows by their numbers, a last one of `value`: [size + 1, leading dimensions]."""
        b, lead = site.b, prod(x.shape[: -self.rank])
        rows = b.transpose(b.reshape(x, (lead, prod(self.size))), (1, 0))
        return b.concatenate([rows, b.constant(value, x.dtype, (1, lead))], 0)

    def at(self, site: LoweringSite, padded: Value, element: Element) -> Value:
        """One element of all windows, [leading dimensions, places]."""
        numbers = self.numbers(element).reshape(-1)
        ids = site.b.constant(np.where(numbers < 0, prod(self.size), numbers).astype(np.int32), int32)
        return site.shaped(site.b.transpose(site.b.take_rows(padded, ids), (1, 0)))

    def numbers(self, element: Element) -> np.ndarray:
        """As `PoolingWindows.numbers`; -1 where the window of a place ends before the element."""
        inside, flat = np.ones((), bool), np.zeros((), np.int64)
        for e, n, m in zip(element, self.size, self.places):
            start, end = _ends(n, m)
            inside = np.logical_and.outer(inside, start + e < end)
            flat = np.add.outer(flat * n, start + e)
        return np.where(inside, flat, -1).astype(np.int32)


def _ends(size: int, places: int) -> tuple[np.ndarray, np.ndarray]:
    """First elements of the windows, and those behind their last."""
    i = np.arange(places)
    return i * size // places, -(-(i + 1) * size // places)


def _covers_evenly(x: Value, places: Sequence[int]) -> list[int] | None:
    """Sizes of windows that cover x without overlap; None where they differ."""
    size = x.shape[-len(places) :]
    return None if any(n % m for n, m in zip(size, places)) else [n // m for n, m in zip(size, places)]


@lowers("adaptive_max_pool2d.default", "adaptive_max_pool3d.default")
def adaptive_max_pool(site, x, output_size):
    places = site.shape[-len(output_size) :]
    even = _covers_evenly(x, places)
    if even is not None:
        return _max_pool(site, x, len(places), even)
    return _largest_of(site, x, Cover.of(x, places))


@lowers("adaptive_max_pool2d_backward.default", "adaptive_max_pool3d_backward.default")
def adaptive_max_pool_backward(site, grad, x, indices):
    """Windows that overlap may share a largest element: each element looks for its number among them."""
    rank = 3 if "3d" in str(site.node.target) else 2
    even = _covers_evenly(x, grad.shape[-rank:])
    if even is not None:
        return _max_pool_backward(site, grad, x, rank, even, (), (0,), (1,), indices)
    b, size, lead = site.b, prod(x.shape[-rank:]), prod(x.shape[:-rank])
    column = (lead, prod(grad.shape[-rank:]), 1)
    number, shares = b.reshape(b.convert(indices, int32), column), b.reshape(site.wide(grad), column)
    mine = b.compare(b.iota((*column[:2], size), int32, 2), "EQ", number)
    return site.cast(site.shaped(b.reduce(b.select(mine, shares, 0.0), (1,))))
