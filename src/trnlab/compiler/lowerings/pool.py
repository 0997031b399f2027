# SPDX-License-Identifier: Apache-2.0
"""Largest elements of windows, averages, resized images and their gradients are calls of the library's kernels."""

from __future__ import annotations

from trnlab.compiler.lowerings.context import Lowering
from trnlab.graph.composites import window_divisors
from trnlab.graph.ir import Op
from trnlab.graph.windows.resizing import taps_of, terms_back, terms_of
from trnlab.kernels.pooling.averages import Divisors, window_averages, window_averages_gradient
from trnlab.kernels.pooling.maxima import max_pool
from trnlab.kernels.pooling.maxima_gradient import max_pool_gradient
from trnlab.kernels.pooling.ordered_gradient import ordered_pool_gradient
from trnlab.kernels.pooling.resizing import WeightedSums, resize
from trnlab.kernels.windows import Slide


def lower_pool(low: Lowering) -> None:
    """Record a group that is one pooling."""
    op = low.group.anchor
    views = [low.view(v) for v in (*op.operands, op.result)]
    first, *others, result = (view.expand(0, 1) if len(view.shape) == 2 else view for view in views)
    if op.name in ("trn.resize", "trn.resize_backward"):
        resize(low.b, first, result, _weighted_sums(op))
        return
    size = _size(op)
    slides = _slides(op, size)
    if op.name == "trn.max_pool":
        max_pool(low.b, first, result, slides)
    elif op.name == "trn.max_pool_backward":
        gradient = ordered_pool_gradient if op.attrs["ordered"] else max_pool_gradient
        gradient(low.b, others[0], first, result, slides)
    else:
        kernel = window_averages if op.name == "trn.avg_pool" else window_averages_gradient
        kernel(low.b, first, result, slides, Divisors(*window_divisors(op.attrs, size)))


def _size(op: Op) -> tuple[int, ...]:
    """The last two dimensions of what windows lie over."""
    return op.result.shape[-2:] if op.name == "trn.avg_pool_backward" else op.operands[-1].shape[-2:]


def _weighted_sums(op: Op) -> tuple[WeightedSums, WeightedSums]:
    back = op.name == "trn.resize_backward"
    before = op.result.shape[-2:] if back else op.operands[0].shape[-2:]
    down, along = (
        WeightedSums(out, terms_back(taps, n)) if back else WeightedSums(n, terms_of(taps))
        for n, out, taps in zip(before, op.attrs["places"], taps_of(op.attrs, before))
    )
    return down, along


def _slides(op: Op, size: tuple[int, ...]) -> tuple[Slide, Slide]:
    names = "window", "places", "window_strides", "padding_low"
    rows, cols = (Slide(size[d], *(op.attrs[k][d] for k in names)) for d in (0, 1))
    return rows, cols
