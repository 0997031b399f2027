# SPDX-License-Identifier: Apache-2.0
"""Convolutions of three dimensions as convolutions of images.

A place along the depth is an image of its own, and an element of the window's depth a channel: what it meets lies
beside what the other elements meet. Planes of images are copied whole, once for each of these elements, and then the
kernels contract more channels at a time. A window with depth alone is one of images whose rows are planes, and
nothing is copied.
"""

from __future__ import annotations

from math import prod

from trnlab.compiler.convolutions import (
    Attrs,
    few_in_patches,
    first_sweep,
    is_weight_gradient,
    skips,
)
from trnlab.compiler.sweeps import Sweep, residue_sweep, stacked
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Op, Value

PER_DIMENSION = ("window_strides", "padding_low", "padding_high", "lhs_dilation", "rhs_dilation")


def as_images(op: Op, b: GraphBuilder) -> tuple[Value, ...] | None:
    """The op by a convolution of images, for a rewrite; None where it has no three dimensions, or is a product of
    what lies in memory."""
    x, weight = op.operands
    attrs = op.attrs
    if len(x.shape) != 5 or few_in_patches(op):
        return None
    if min(prod(weight.shape[2:]), prod(op.result.shape[2:])) == 1 and not skips(op):
        return None
    if _is_depth_alone(op):
        return (_of_planes(op, b),)
    if is_weight_gradient(op):
        return (_gradient(op, b),)
    if attrs["batch_group_count"] > 1 or (attrs["lhs_dilation"][0] > 1 and attrs["window_strides"][0] > 1):
        return None
    if attrs["lhs_dilation"][0] > 1:
        return (_by_residues(op, b),)
    return (_of_depth(op, b, first_sweep(op), weight),)


def _flat(attrs: Attrs) -> Attrs:
    """Those of the last two dimensions."""
    return {k: v[1:] if k in PER_DIMENSION else v for k, v in attrs.items()}


def _swapped(b: GraphBuilder, x: Value) -> Value:
    return b.transpose(x, (1, 0, *range(2, len(x.shape))))


def _with_images(b: GraphBuilder, x: Value) -> Value:
    """[C, N, D, H, W] as [C, N D, H, W]."""
    return b.reshape(x, (x.shape[0], x.shape[1] * x.shape[2], *x.shape[3:]))


# -- windows with depth alone ---------------------------------------------------------------------------------------


def _is_depth_alone(op: Op) -> bool:
    """Whether rows and columns meet themselves and nothing else, by windows, or by places, of one element."""
    attrs = op.attrs
    plain = all(attrs[k][d] == (0 if k.startswith("padding") else 1) for k in PER_DIMENSION for d in (1, 2))
    return plain and any(v.shape[3:] == (1, 1) for v in (op.operands[1], op.result))


def _of_planes(op: Op, b: GraphBuilder) -> Value:
    """With planes for rows: [..., D, H W]."""
    operands = [b.reshape(v, (*v.shape[:3], v.shape[3] * v.shape[4])) for v in op.operands]
    attrs = {k: v[:2] if k in PER_DIMENSION else v for k, v in op.attrs.items()}
    return b.reshape(b.append("convolution", operands, attrs).result, op.result.shape)


# -- depth as channels ----------------------------------------------------------------------------------------------


def _of_depth(op: Op, b: GraphBuilder, s: Sweep, weight: Value) -> Value:
    """Elements of the window's depth as channels, [N, O, places of s, ...]. weight: of these elements, in the order
    in which it has them."""
    x = op.operands[0]
    base = stacked(b, _swapped(b, x), s, op.attrs["window_reversal"])
    weight = b.reshape(weight, (weight.shape[0], weight.shape[1] * s.window, *weight.shape[3:]))
    made = b.append("convolution", (_swapped(b, _with_images(b, base)), weight), _flat(op.attrs)).result
    apart = b.reshape(_swapped(b, made), (made.shape[1], x.shape[0], s.places, *made.shape[2:]))
    return _swapped(b, apart)


def _by_residues(op: Op, b: GraphBuilder) -> Value:
    """Planes between which zeros were spread: a convolution for each residue of the places, and these in turn."""
    weight, attrs = op.operands[1], op.attrs
    spread, places, window = attrs["lhs_dilation"][0], op.result.shape[2], weight.shape[2]
    count = -(-places // spread)
    parts = []
    for residue in range(spread):
        s, first, step = residue_sweep(window, residue, count, 0, attrs)
        if attrs["window_reversal"]:
            first = window - 1 - first - (s.window - 1) * step
        if s.window:
            made = _of_depth(op, b, s, b.slice_dim(weight, 2, first, first + (s.window - 1) * step + 1, step))
        else:
            made = b.constant(0.0, attrs["dtype"], (*op.result.shape[:2], count, *op.result.shape[3:]))
        n, o, *rest = made.shape
        parts.append(b.reshape(_swapped(b, made), (o, n, count, 1, *rest[1:])))
    whole = b.concatenate(parts, 3)
    o, n, _, _, *rest = whole.shape
    return _swapped(b, b.slice_dim(b.reshape(whole, (o, n, count * spread, *rest)), 2, 0, places))


def _gradient(op: Op, b: GraphBuilder) -> Value:
    """By the weight: the forward pass's copy of the input, and each plane of the result's gradient an image."""
    x, dy = op.operands
    base = stacked(b, x, first_sweep(op))
    made = b.append("convolution", (_with_images(b, base), _with_images(b, dy)), _flat(op.attrs)).result
    _, o, depth, *rest = op.result.shape
    return _swapped(b, b.reshape(_swapped(b, made), (o, -1, depth, *rest)))
