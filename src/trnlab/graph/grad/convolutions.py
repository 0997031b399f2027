# SPDX-License-Identifier: Apache-2.0
"""Convolutions as a window that moves, and their gradients, which are convolutions again.

Of y = convolution(x, w) the gradient by x spreads dy by the strides and convolves it with w turned round; the
gradient by w convolves x with dy, images in the place of channels. A transposed convolution is the gradient by x of
the convolution that has its weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.grad.context import BackwardPass, Gradients, no_derivative
from trnlab.graph.ir import Op, Value
from trnlab.numerics.dtypes import DType


@dataclass(frozen=True)
class ConvolutionWindow:
    """How the window of a convolution (not transposed) moves, in each dimension of space."""

    strides: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def forward(self, b: GraphBuilder, x: Value, w: Value, places: Sequence[int], dt: DType) -> Value:
        """x [N, C, ...] and w [O, C/groups, ...] -> [N, O, places]; zeros after x as the last place needs."""
        after = self._after(x, places, w.shape[2:], self.strides, self.dilation)
        return b.convolution(
            x,
            w,
            strides=self.strides,
            padding=(self.padding, after),
            dilation=self.dilation,
            groups=self.groups,
            dt=dt,
        )

    def by_input(self, b: GraphBuilder, dy: Value, w: Value, size: Sequence[int], dt: DType) -> Value:
        """dy [N, O, ...] and w [O, C/groups, ...] -> [N, C, size]."""
        rank = len(size)
        o, c = w.shape[0] // self.groups, w.shape[1]
        w = b.reshape(w, (self.groups, o, c, *w.shape[2:]))
        w = b.reshape(b.transpose(w, (0, 2, 1, *range(3, 3 + rank))), (self.groups * c, o, *w.shape[3:]))
        reach = [(k - 1) * d for k, d in zip(w.shape[2:], self.dilation)]
        low = [r - p for r, p in zip(reach, self.padding)]
        spread = [(n - 1) * s + 1 for n, s in zip(dy.shape[2:], self.strides)]
        high = [n + r - m - before for n, r, m, before in zip(size, reach, spread, low)]
        return b.convolution(
            dy,
            w,
            padding=(low, high),
            dilation=self.dilation,
            spread=self.strides,
            reverse=True,
            groups=self.groups,
            dt=dt,
        )

    def by_weight(self, b: GraphBuilder, x: Value, dy: Value, window: Sequence[int], dt: DType) -> Value:
        """x [N, C, ...] and dy [N, O, ...] -> [O, C/groups, window]: elements of the window are the places here."""
        swapped = (1, 0, *range(2, len(x.shape)))
        x, dy = (b.transpose(v, swapped) for v in (x, dy))
        after = self._after(x, window, dy.shape[2:], self.dilation, self.strides)
        gradient = b.convolution(
            x,
            dy,
            strides=self.dilation,
            padding=(self.padding, after),
            dilation=self.strides,
            batch_groups=self.groups,
            dt=dt,
        )
        return b.transpose(gradient, swapped)

    def _after(
        self, x: Value, places: Sequence[int], window: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
    ) -> list[int]:
        sizes = zip(places, strides, window, dilation, x.shape[2:], self.padding)
        return [(n - 1) * s + (k - 1) * d + 1 - size - low for n, s, k, d, size, low in sizes]


def convolution(p: BackwardPass, op: Op, d: Value) -> Gradients:
    """By the input and by the weight, of a window that moves over what nothing was spread in."""
    (x, w), a = op.operands, op.attrs
    if a["window_reversal"] or a["batch_group_count"] != 1 or set(a["lhs_dilation"]) != {1}:
        raise no_derivative(op, "a convolution that is a gradient itself")
    window = ConvolutionWindow(a["window_strides"], a["padding_low"], a["rhs_dilation"], a["feature_group_count"])
    of_x = window.by_input(p.b, d, w, x.shape[2:], p.form(x)) if p.needs(x) else None
    return [of_x, window.by_weight(p.b, p.saved(x), d, w.shape[2:], p.form(w)) if p.needs(w) else None]
