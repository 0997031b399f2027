# SPDX-License-Identifier: Apache-2.0
"""Reductions over windows, and the gradient of the largest in each.

Largest elements of windows over two dimensions, and sums, have kernels (ADR 170). Any other window is walked element
by element: for each, a strided slice holds it for all places at once. Windows that hold everything up to a place, as
running sums have them, are doubled instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np

from trnlab.frontends.stablehlo import mlir
from trnlab.frontends.stablehlo.entries import TracedValue
from trnlab.frontends.stablehlo.lowerings.control import simple_body, starting
from trnlab.frontends.stablehlo.registry import OpSite, UnsupportedForm, lowers
from trnlab.kernels.pooling.ordered_gradient import MOST_ELEMENTS
from trnlab.numerics.dtypes import bfloat16, bool_, float16, float32, int32

_LARGEST = 1024  # elements of a window that is walked
_POOLED = {"maximum": float("-inf"), "add": 0.0}  # and what each begins with
Element = tuple[int, ...]
Body = Callable[..., Sequence[TracedValue]]


@dataclass(frozen=True)
class WindowDimensions:
    """Windows of the dimensions of a tensor: sizes, and how they lie."""

    window: tuple[int, ...]
    strides: tuple[int, ...]
    spread: tuple[int, ...]
    dilation: tuple[int, ...]
    # low, high: padding
    low: tuple[int, ...]
    high: tuple[int, ...]

    def places(self, shape: Sequence[int]) -> tuple[int, ...]:
        """How many windows lie in each dimension of a tensor of `shape`."""
        inside = [max((n - 1) * s + 1, 0) + a + b for n, s, a, b in zip(shape, self.spread, self.low, self.high)]
        extent = [(w - 1) * d + 1 for w, d in zip(self.window, self.dilation)]
        return tuple((n - e) // s + 1 if n >= e else 0 for n, e, s in zip(inside, extent, self.strides))

    def moves(self, dim: int) -> bool:
        """Whether windows are more than the elements, one after the other, along a dimension."""
        return (self.window[dim], self.strides[dim], self.low[dim], self.high[dim]) != (1, 1, 0, 0)

    def meets(self, dim: int, size: int, places: int) -> bool:
        """Whether each window meets an element of a dimension of `size`."""
        low = self.low[dim]
        return 0 <= low < self.window[dim] and places > 0 and (places - 1) * self.strides[dim] - low < size

    def padded(self, site: OpSite, x: TracedValue, value: TracedValue) -> TracedValue:
        """x with `value` around and between its elements."""
        inside = tuple(s - 1 for s in self.spread)
        if not any((*self.low, *self.high, *inside)):
            return x
        return site.op(
            "pad", x, value, edge_padding_low=self.low, edge_padding_high=self.high, interior_padding=inside
        )

    def at(self, site: OpSite, padded: TracedValue, element: Element, places: Sequence[int]) -> TracedValue:
        """One element of all windows."""
        start = tuple(e * d for e, d in zip(element, self.dilation))
        limit = tuple(a + (n - 1) * s + 1 for a, n, s in zip(start, places, self.strides))
        return site.op("slice", padded, start_indices=start, limit_indices=limit, strides=self.strides)

    def elements(self) -> Iterator[Element]:
        """Elements of the window, in row-major order. Raises Refused for a window too large to walk."""
        if prod(self.window) > _LARGEST:
            raise UnsupportedForm(f"a window of {prod(self.window)} elements", f"use windows of at most {_LARGEST}")
        return product(*map(range, self.window))


def _windows(site: OpSite, rank: int) -> WindowDimensions:
    ones = (1,) * rank
    padding = np.reshape(mlir.ints(site.raw, "padding", (0,) * (2 * rank)), (rank, 2))
    names = "window_strides", "base_dilations", "window_dilations"
    strides, spread, dilation = (mlir.ints(site.raw, name, ones) for name in names)
    low, high = (tuple(map(int, padding[:, side])) for side in (0, 1))
    return WindowDimensions(mlir.ints(site.raw, "window_dimensions", ones), strides, spread, dilation, low, high)


@lowers("stablehlo.reduce_window")
def reduce_window(site: OpSite) -> Sequence[TracedValue]:
    """The body, applied to what each window holds so far and its next element. Sums and products of 16-bit floats
    are rounded once, at the end."""
    count = len(site.operands) // 2
    dtype = site.operands[0].type.dtype
    kind = simple_body(site) if count == 1 and dtype.is_float else None
    pooled = _pooled(site, kind) if kind in _POOLED and dtype in (bfloat16, float16, float32) else None
    if pooled is not None:
        return [pooled]
    if kind not in ("add", "multiply") or dtype.itemsize != 2:
        return _reduced(site, site.operands[:count], site.operands[count:], lambda *held: site.region(0, *held))
    x, start = (site.op("convert", v, dtype=float32) for v in site.operands)
    found = _reduced(site, [x], [start], lambda total, element: [site.op(kind, total, element)])
    return [site.op("convert", v, dtype=dtype) for v in found]


def _pooled(site: OpSite, kind: str) -> TracedValue | None:
    """Largest elements of windows over two dimensions, or sums, as the op that has a kernel; None of others."""
    x, start = site.operands
    found = _over_two(_windows(site, len(x.shape)), x.shape)
    if found is None or starting(site, start) != _POOLED[kind]:
        return None
    order, attrs = found
    if kind == "maximum":
        return _turned(site, order, "trn.max_pool", [x], attrs)
    return _turned(site, order, "trn.avg_pool", [x], {**attrs, "divisor": 1.0})


def _over_two(windows: WindowDimensions, shape: Sequence[int]) -> tuple[Element, dict[str, Any]] | None:
    """The order of dimensions in which windows lie over the last two, and how they lie there. None where they lie
    over more, have gaps, or see nothing."""
    rank, places = len(shape), windows.places(shape)
    wide = [d for d in range(rank) if windows.moves(d)]
    if rank < 2 or not wide or len(wide) > 2 or {*windows.spread, *windows.dilation} != {1}:
        return None
    (first, *others) = wide
    last = others[0] if others else first + 1 if first + 1 < rank else first - 1
    order = (*(d for d in range(rank) if d not in (first, last)), *sorted((first, last)))
    if 0 in places or not all(windows.meets(d, shape[d], places[d]) for d in order[-2:]):
        return None
    sides = {"window": windows.window, "window_strides": windows.strides, "padding_low": windows.low}
    sides |= {"places": places}
    return order, {name: tuple(of[d] for d in order[-2:]) for name, of in sides.items()}


def _turned(
    site: OpSite, order: Sequence[int], name: str, operands: Sequence[TracedValue], attrs: dict[str, Any]
) -> TracedValue:
    """An op of operands in another order of dimensions, in that of the operands."""
    turned = [site.op("transpose", x, permutation=tuple(order)) for x in operands]
    back = tuple(order.index(d) for d in range(len(order)))
    return site.op("transpose", site.op(name, *turned, **attrs), permutation=back)


def _reduced(
    site: OpSite, xs: Sequence[TracedValue], starts: Sequence[TracedValue], body: Body
) -> Sequence[TracedValue]:
    windows = _windows(site, len(xs[0].shape))
    places = windows.places(xs[0].shape)
    along = _running(windows, xs[0].shape)
    if along is not None:
        return _doubled(site, xs, starts, body, *along)
    padded = [windows.padded(site, x, s) for x, s in zip(xs, starts)]
    found: Sequence[TracedValue] = [site.t.broadcast(s, places) for s in starts]
    if 0 in places:
        return found
    for element in windows.elements():
        found = body(*found, *(windows.at(site, p, element, places) for p in padded))
    return found


def _running(windows: WindowDimensions, shape: Sequence[int]) -> tuple[int, bool] | None:
    """(dimension, backwards) where each window holds all up to its place along one dimension, or all from there."""
    wide = [d for d, w in enumerate(windows.window) if w > 1]
    plain = {*windows.strides, *windows.spread, *windows.dilation} == {1}
    if len(wide) != 1 or not plain or windows.window[wide[0]] != shape[wide[0]]:
        return None
    (dim,) = wide
    around = [(a, b) for d, (a, b) in enumerate(zip(windows.low, windows.high)) if d != dim]
    sides = windows.low[dim], windows.high[dim]
    if any(pair != (0, 0) for pair in around) or sides not in ((shape[dim] - 1, 0), (0, shape[dim] - 1)):
        return None
    return dim, sides[0] == 0


def _doubled(
    site: OpSite, xs: Sequence[TracedValue], starts: Sequence[TracedValue], body: Body, dim: int, back: bool
) -> Sequence[TracedValue]:
    """Each place takes what the one 1, 2, 4, ... before it holds; beyond the ends lies the starting value."""
    size, distance = xs[0].shape[dim], 1
    found = body(*(site.t.broadcast(s, xs[0].shape) for s in starts), *xs)
    while distance < size:
        shift = -distance if back else distance
        moved = [_shifted(site, f, s, dim, shift) for f, s in zip(found, starts)]
        found = body(*((*moved, *found) if not back else (*found, *moved)))
        distance *= 2
    return found


def _shifted(site: OpSite, x: TracedValue, filler: TracedValue, dim: int, by: int) -> TracedValue:
    low = tuple(by if d == dim else 0 for d in range(len(x.shape)))
    high, inside = tuple(-n for n in low), (0,) * len(low)
    return site.op("pad", x, filler, edge_padding_low=low, edge_padding_high=high, interior_padding=inside)


@lowers("stablehlo.select_and_scatter")
def select_and_scatter(site: OpSite) -> TracedValue:
    """The element of each window that the first body prefers gets the window's source, combined by the second."""
    x, source, start = site.operands
    windows, shape = _windows(site, len(x.shape)), source.shape
    unpooled = _unpooled(site, windows)
    if unpooled is not None:
        return unpooled
    filler = site.t.number(0, x.type.dtype)
    padded = windows.padded(site, x, filler)
    inside = windows.padded(site, site.t.number(True, bool_, x.shape), site.t.number(False, bool_))
    best, chosen = site.t.number(0, x.type.dtype, shape), site.t.number(-1, int32, shape)
    elements = list(windows.elements())
    for number, element in enumerate(elements):
        value, there = (windows.at(site, p, element, shape) for p in (padded, inside))
        (stays,) = site.region(0, best, value)
        first = site.op("compare", chosen, site.t.number(-1, int32, shape), comparison_direction="EQ")
        taken = site.op("and", there, site.op("or", first, site.op("not", stays)))
        best = site.op("select", taken, value, best)
        chosen = site.op("select", taken, site.t.number(number, int32, shape), chosen)
    total = site.t.broadcast(start, x.shape)
    for number, element in enumerate(elements):
        here = site.op("compare", chosen, site.t.number(number, int32, shape), comparison_direction="EQ")
        share = site.op("select", here, source, site.t.broadcast(start, shape))
        (total,) = site.region(1, total, _spread_back(site, windows, share, element, x.shape, start))
    return total


def _unpooled(site: OpSite, windows: WindowDimensions) -> TracedValue | None:
    """The gradient of largest elements as the op that has a kernel; None where windows reach beyond the tensor, or
    bodies are others than a comparison of the first with the second and a sum."""
    x, source, start = site.operands
    found = _over_two(windows, x.shape)
    plain = x.type.dtype is source.type.dtype and x.type.dtype in (bfloat16, float16, float32)
    if found is None or not plain or any((*windows.low, *windows.high)) or prod(windows.window) > MOST_ELEMENTS:
        return None
    first = starting(site, start)
    if simple_body(site, 1) != "add" or not _keeps_what_is_at_least(site) or first != 0 or np.signbit(first):
        return None
    order, attrs = found
    return _turned(site, order, "trn.max_pool_backward", [source, x], {**attrs, "ordered": True})


def _keeps_what_is_at_least(site: OpSite) -> bool:
    """Whether the body that selects is first >= second."""
    block = site.raw.regions[0].blocks[0]
    ops, arguments = list(block.operations), list(block.arguments)
    if len(ops) != 2 or str(ops[0].operation.name) != "stablehlo.compare" or list(ops[0].operands) != arguments:
        return False
    return list(ops[1].operands) == list(ops[0].results) and "GE" in str(ops[0].attributes["comparison_direction"])


def _spread_back(
    site: OpSite,
    windows: WindowDimensions,
    share: TracedValue,
    element: Element,
    size: Sequence[int],
    start: TracedValue,
) -> TracedValue:
    """What one element of all windows gives, at its places in the tensor."""
    low = tuple(e * d - a for e, d, a in zip(element, windows.dilation, windows.low))
    inside = tuple(s - 1 for s in windows.strides)
    reach = [a + max((n - 1) * s + 1, 0) for a, n, s in zip(low, share.shape, windows.strides)]
    high = tuple(n - r for n, r in zip(size, reach))
    return site.op("pad", share, start, edge_padding_low=low, edge_padding_high=high, interior_padding=inside)
