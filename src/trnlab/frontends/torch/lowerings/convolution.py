# SPDX-License-Identifier: Apache-2.0
"""Convolutions of one to three dimensions, their gradients and their transposes.

All are one op of the graph. Of y = convolution(x, w) the gradient by x spreads dy by the strides and convolves it
with w turned round; the gradient by w convolves x with dy, images in the place of channels. A transposed convolution
is the gradient by x of the convolution that has its weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trnlab.frontends.torch.lowerings.registry import Site, lowers
from trnlab.graph.ir import Value
from trnlab.numerics.dtypes import DType


@dataclass(frozen=True)
class Window:
    """How the window of a convolution (not transposed) moves, in each dimension of space."""

    strides: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def forward(self, site: Site, x: Value, w: Value, places: Sequence[int], dt: DType) -> Value:
        """x [N, C, ...] and w [O, C/groups, ...] -> [N, O, places]; zeros after x as the last place needs."""
        after = self._after(x, places, w.shape[2:], self.strides, self.dilation)
        return site.b.convolution(
            x,
            w,
            strides=self.strides,
            padding=(self.padding, after),
            dilation=self.dilation,
            groups=self.groups,
            dt=dt,
        )

    def by_input(self, site: Site, dy: Value, w: Value, size: Sequence[int], dt: DType) -> Value:
        """dy [N, O, ...] and w [O, C/groups, ...] -> [N, C, size]."""
        b, rank = site.b, len(size)
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

    def by_weight(self, site: Site, x: Value, dy: Value, window: Sequence[int], dt: DType) -> Value:
        """x [N, C, ...] and dy [N, O, ...] -> [O, C/groups, window]: elements of the window are the places here."""
        swapped = (1, 0, *range(2, len(x.shape)))
        x, dy = (site.b.transpose(v, swapped) for v in (x, dy))
        after = self._after(x, window, dy.shape[2:], self.dilation, self.strides)
        gradient = site.b.convolution(
            x,
            dy,
            strides=self.dilation,
            padding=(self.padding, after),
            dilation=self.strides,
            batch_groups=self.groups,
            dt=dt,
        )
        return site.b.transpose(gradient, swapped)

    def _after(
        self, x: Value, places: Sequence[int], window: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
    ) -> list[int]:
        sizes = zip(places, strides, window, dilation, x.shape[2:], self.padding)
        return [(n - 1) * s + (k - 1) * d + 1 - size - low for n, s, k, d, size, low in sizes]


def _window(x: Value, stride: list[int], padding: list[int], dilation: list[int], groups: int) -> Window:
    strides, before, distances = (
        tuple(v) * (len(x.shape) - 2 if len(v) == 1 else 1) for v in (stride, padding, dilation)
    )
    return Window(strides, before, distances, groups)


@lowers("convolution.default")
def convolution(site, x, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    """The sum is made in fp32, with the bias, before rounding."""
    b, window, wide = site.b, _window(x, stride, padding, dilation, groups), site.wide
    size = site.shape[2:]
    make = window.by_input if transposed else window.forward
    if bias is None:
        return make(site, x, weight, size, site.dtype)
    y = make(site, x, weight, size, wide(bias).dtype)
    return site.cast(b.add(y, b.reshape(wide(bias), (1, bias.shape[0], *(1 for _ in size)))))


@lowers("convolution_backward.default")
def convolution_backward(
    site, grad, x, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask
):
    """Gradients by the input, the weight and the bias, where `output_mask` asks for them."""
    window = _window(x, stride, padding, dilation, groups)
    by_x, by_weight, by_bias = output_mask
    dx = dweight = dbias = None
    if by_x:
        make = window.forward if transposed else window.by_input
        dx = make(site, grad, weight, x.shape[2:], site.types[0].dtype)
    if by_weight:
        seen, slid = (grad, x) if transposed else (x, grad)
        dweight = window.by_weight(site, seen, slid, weight.shape[2:], site.types[1].dtype)
    if by_bias:
        space = range(2, len(grad.shape))
        dbias = site.b.convert(site.b.reduce(site.wide(grad), (0, *space)), site.types[2].dtype)
    return dx, dweight, dbias
