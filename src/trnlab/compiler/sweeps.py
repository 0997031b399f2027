# SPDX-License-Identifier: Apache-2.0
"""How windows slide, and what they meet as dimensions of its own: places and elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Value


@dataclass(frozen=True)
class Sweep:
    """How a window slides along one dimension.

    Element i of the window in place j meets element j * stride + i * dilation of what lies there, after `low` zeros
    are put before it (negative: taken away) and as many after it as the last place needs.
    """

    window: int
    places: int
    stride: int
    dilation: int
    low: int


def residue_sweep(window: int, residue: int, count: int, d: int, attrs: Mapping[str, Any]) -> tuple[Sweep, int, int]:
    """How one residue's window slides; the first of its elements, and from one to the next.

    Where there is a spread, windows move by one (`convolutions.as_products` sees to that).
    """
    spread, dilation, low = attrs["lhs_dilation"][d], attrs["rhs_dilation"][d], attrs["padding_low"][d]
    step = spread // gcd(spread, dilation)
    first = next((i for i in range(min(step, window)) if (residue + i * dilation - low) % spread == 0), window)
    elements = len(range(first, window, step))
    distance = step * dilation // spread
    before = -((residue + first * dilation - low) // spread)
    stride = attrs["window_strides"][d]
    return Sweep(elements, count, stride, distance, before), first, step


def windows_of(b: GraphBuilder, x: Value, sweeps: Sequence[Sweep]) -> Value:
    """[N, C, places, elements], where x is [N, C, ...]."""
    x = padded(b, x, sweeps)
    rank = len(sweeps)
    for d in reversed(range(rank)):  # the last dimension first: its neighbours lie side by side in memory
        x = _split(b, x, 2 + d, sweeps[d])
    order = [0, 1, *range(2, 2 + 2 * rank, 2), *range(3, 3 + 2 * rank, 2)]
    return b.transpose(x, order)


def padded(b: GraphBuilder, x: Value, sweeps: Sequence[Sweep]) -> Value:
    """With the zeros around it, and without what no window reaches."""
    highs = []
    for size, s in zip(x.shape[2:], sweeps):
        reached = (s.places - 1) * s.stride + (s.window - 1) * s.dilation + 1
        highs.append(reached - size - s.low)
    lows = [s.low for s in sweeps]
    if not any(lows) and not any(highs):
        return x
    if max(*lows, *highs) <= 0:
        ends = [n + h for n, h in zip(x.shape[2:], highs)]
        return b.slice(x, (0, 0, *(-low for low in lows)), (*x.shape[:2], *ends))
    return b.pad(x, (0, 0, *lows), (0, 0, *highs))


def _split(b: GraphBuilder, x: Value, d: int, s: Sweep) -> Value:
    """Dimension d as two: places, elements."""
    before, after = x.shape[:d], x.shape[d + 1 :]
    if s.window == 1 or s.places == 1:
        count, step = (s.places, s.stride) if s.window == 1 else (s.window, s.dilation)
        picked = b.slice_dim(x, d, 0, (count - 1) * step + 1, step) if step > 1 else x
        return b.reshape(picked, (*before, s.places, s.window, *after))
    if s.stride == s.window and s.dilation == 1:  # windows that touch
        return b.reshape(x, (*before, s.places, s.window, *after))
    if s.dilation == s.places and s.stride == 1:  # places that touch
        apart = b.reshape(x, (*before, s.window, s.places, *after))
        return b.transpose(apart, (*range(d), d + 1, d, *range(d + 2, len(apart.shape))))
    if s.window <= s.places:
        pieces = [every(b, x, d, i * s.dilation, s.places, s.stride) for i in range(s.window)]
        return b.concatenate([b.reshape(p, (*before, s.places, 1, *after)) for p in pieces], d + 1)
    pieces = [every(b, x, d, j * s.stride, s.window, s.dilation) for j in range(s.places)]
    return b.concatenate([b.reshape(p, (*before, 1, s.window, *after)) for p in pieces], d)


def every(b: GraphBuilder, x: Value, d: int, first: int, count: int, step: int) -> Value:
    """So many elements of dimension d from the first on, one of each `step`."""
    return b.slice_dim(x, d, first, first + (count - 1) * step + 1, step)


def stacked(b: GraphBuilder, base: Value, s: Sweep, reverse: bool = False) -> Value:
    """What the elements of a window along the first dimension of space meet, as channels: [C, N, size, ...] to
    [C * elements, N, places, ...]. Of each channel its elements lie side by side, the last one first where they are
    in `reverse`."""
    base = padded(b, base, [s, *(Sweep(1, n, 1, 1, 0) for n in base.shape[3:])])
    (c, n, _), rest = base.shape[:3], base.shape[3:]
    pieces = [
        b.reshape(every(b, base, 2, i * s.dilation, s.places, s.stride), (c, 1, n, s.places, *rest))
        for i in range(s.window)
    ]
    whole = b.concatenate(pieces[::-1] if reverse else pieces, 1) if len(pieces) > 1 else pieces[0]
    return b.reshape(whole, (c * s.window, n, s.places, *rest))
