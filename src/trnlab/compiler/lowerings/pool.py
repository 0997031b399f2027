# SPDX-License-Identifier: Apache-2.0
"""Largest elements of windows, forward and backward, are calls of the library's kernels."""

from __future__ import annotations

from trnlab.compiler.lowerings.context import Lowering
from trnlab.graph.ir import Op
from trnlab.kernels.pooling import max_pool
from trnlab.kernels.pooling_gradient import max_pool_gradient
from trnlab.kernels.windows import Slide


def lower_pool(low: Lowering) -> None:
    """Record a group that is one pooling."""
    op = low.group.anchor
    slides = _slides(op)
    views = [low.view(v) for v in (*op.operands, op.result)]
    if len(op.operands) == 1:
        x, out = (view.expand(0, 1) if len(view.shape) == 2 else view for view in views)
        max_pool(low.b, x, out, slides)
    else:
        dy, x, dx = (view.expand(0, 1) if len(view.shape) == 2 else view for view in views)
        max_pool_gradient(low.b, x, dy, dx, slides)


def _slides(op: Op) -> tuple[Slide, Slide]:
    attrs, size = op.attrs, op.operands[-1].shape[-2:]
    rows, cols = (
        Slide(size[d], *(attrs[k][d] for k in ("window", "places", "window_strides", "padding_low"))) for d in (0, 1)
    )
    return rows, cols
