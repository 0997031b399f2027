# SPDX-License-Identifier: Apache-2.0
"""Convolutions that stayed whole (`convolutions.has_kernel`) are calls of the library's kernel."""

from __future__ import annotations

from trnlab.compiler.convolutions import has_few_channels, is_weight_gradient, slides_of, taps_of_image
from trnlab.compiler.lowerings.context import Lowering
from trnlab.compiler.lowerings.sinks import sinks_of
from trnlab.kernels.blocks import BANK
from trnlab.kernels.convolutions.few_channels import ViewSink, few_channel_convolution
from trnlab.kernels.convolutions.forward import convolution
from trnlab.kernels.convolutions.gradient import weight_gradient
from trnlab.kernels.view import HbmView
from trnlab.kernels.windows import Slide
from trnlab.program.strided import row_major


def lower_convolution(low: Lowering) -> None:
    """Record a convolution of one or two dimensions."""
    op = low.group.anchor
    x, weight = (low.view(v) for v in op.operands)
    # Where only its epilogue reads the result it is in no memory, and its view says no more than its shape.
    stored = op.result in low.stores
    out = low.view(op.result) if stored else HbmView(x.base, 0, op.result.shape, row_major(op.result.shape))
    if is_weight_gradient(op):
        _lower_weight_gradient(low, x, weight, out)
        return
    slides = slides_of(op)
    if len(slides) == 1:
        x, weight, out = (view.expand(2, 1) for view in (x, weight, out))
        slides = (Slide(1, 1, 1), *slides)
    if has_few_channels(op):
        _lower_few_channels(low, x, weight, out, (slides[0], slides[1]))
        return
    if len(low.group.ops) == 1:
        _in_columns(low, x, weight, out, (slides[0], slides[1]))
        return
    sink = next(sinks_of(low, out.shape[1], 1))
    convolution(low.b, x, weight, out, (slides[0], slides[1]), sink, op.attrs["feature_group_count"])
    sink.finish()


def _in_columns(low: Lowering, x: HbmView, weight: HbmView, out: HbmView, slides: tuple[Slide, Slide]) -> None:
    """Rows of places that are longer than a bank of PSUM part by part."""
    groups, (down, along) = low.group.anchor.attrs["feature_group_count"], slides
    if along.phase_places <= BANK:
        convolution(low.b, x, weight, out, slides, groups=groups)
        return
    for at in range(0, along.places, BANK * along.spread):
        columns = range(at, min(at + BANK * along.spread, along.places))
        part, met = along.of_places(columns)
        convolution(low.b, x[:, :, :, met], weight, out[:, :, :, at : columns.stop], (down, part), groups=groups)


def _lower_few_channels(
    low: Lowering, x: HbmView, weight: HbmView, out: HbmView, slides: tuple[Slide, Slide]
) -> None:
    if len(low.group.ops) == 1:
        few_channel_convolution(low.b, x, weight, slides, ViewSink(out.permute(1, 0, 2, 3)))
        return
    sink = next(sinks_of(low, out.shape[1], 1))
    few_channel_convolution(low.b, x, weight, slides, sink)
    sink.finish()


def _lower_weight_gradient(low: Lowering, x: HbmView, dy: HbmView, out: HbmView) -> None:
    op = low.group.anchor
    if len(out.shape) == 3:
        x, dy, out = (view.expand(2, 1) for view in (x, dy, out))
    weight_gradient(low.b, x, dy, out, taps_of_image(op), op.attrs["batch_group_count"])
