# SPDX-License-Identifier: Apache-2.0
"""Convolutions that stayed whole (`convolutions.has_kernel`) are calls of the library's kernel."""

from __future__ import annotations

from trnlab.compiler.convolutions import is_weight_gradient
from trnlab.compiler.lowerings.context import Lowering
from trnlab.graph.ir import Op
from trnlab.kernels.convolution import convolution
from trnlab.kernels.convolution_gradient import Taps, weight_gradient
from trnlab.kernels.view import View
from trnlab.kernels.windows import Slide


def lower_convolution(low: Lowering) -> None:
    """Record a convolution of one or two dimensions."""
    op = low.group.anchor
    x, weight, out = (low.view(v) for v in (*op.operands, op.result))
    if is_weight_gradient(op):
        _lower_weight_gradient(low, x, weight, out)
        return
    slides = slides_of(op)
    if len(slides) == 1:
        x, weight, out = (view.expand(2, 1) for view in (x, weight, out))
        slides = (Slide(1, 1, 1), *slides)
    convolution(low.b, x, weight, out, (slides[0], slides[1]))


def _lower_weight_gradient(low: Lowering, x: View, dy: View, out: View) -> None:
    """The places of the op are the taps of the kernel, and its window the pixels of the result's gradient."""
    attrs = low.group.anchor.attrs
    taps = [
        Taps(count, stride, dilation, before)
        for count, stride, dilation, before in zip(
            out.shape[2:], attrs["rhs_dilation"], attrs["window_strides"], attrs["padding_low"]
        )
    ]
    if len(taps) == 1:
        x, dy, out = (view.expand(2, 1) for view in (x, dy, out))
        taps.insert(0, Taps(1, 1, 1, 0))
    weight_gradient(low.b, x, dy, out, (taps[0], taps[1]))


def slides_of(op: Op) -> tuple[Slide, ...]:
    """How the window of a convolution slides, along each dimension of space."""
    x, weight, places = op.operands[0].shape[2:], op.operands[1].shape[2:], op.result.shape[2:]
    stride, low, spread, dilation = (
        op.attrs[k] for k in ("window_strides", "padding_low", "lhs_dilation", "rhs_dilation")
    )
    reverse = op.attrs["window_reversal"]
    return tuple(
        Slide(x[d], weight[d], places[d], stride[d], low[d], spread[d], dilation[d], reverse) for d in range(len(x))
    )
