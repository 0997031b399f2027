# SPDX-License-Identifier: Apache-2.0
"""Normalisation, softmax and losses, forward and backward, each as the few ops that one kernel can take together.

All statistics are computed in fp32 whatever the format of the data.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from trnlab.frontends.torch.lowerings.index import one_hot
from trnlab.frontends.torch.lowerings.registry import LoweringSite, dims_of, lowers
from trnlab.graph.ir import TensorType, Value
from trnlab.numerics.dtypes import float32

LOWEST = float(np.finfo(np.float32).min)


def _as(site: LoweringSite, x: Value, target: TensorType | None) -> Value:
    """x with the shape and format of a result."""
    assert target is not None
    return site.b.reshape(site.b.convert(x, target.dtype), target.shape)


def _average(site: LoweringSite, x: Value, dims: tuple[int, ...]) -> Value:
    count = prod(x.shape[d] for d in dims)
    return site.b.divide(site.b.reduce(x, dims, keepdims=True), float(count))


def _inner(x: Value, normalized_shape: list[int]) -> tuple[int, ...]:
    return tuple(range(len(x.shape) - len(normalized_shape), len(x.shape)))


@lowers("native_layer_norm.default")
def layer_norm(site, x, normalized_shape, weight, bias, eps):
    """Result, mean and reciprocal standard deviation."""
    b, x = site.b, site.wide(x)
    dims = _inner(x, normalized_shape)
    mean = _average(site, x, dims)
    centred = b.subtract(x, mean)
    rstd = b.rsqrt(b.add(_average(site, b.multiply(centred, centred), dims), eps))
    y = b.multiply(centred, rstd)
    y = y if weight is None else b.multiply(y, site.wide(weight))
    y = y if bias is None else b.add(y, site.wide(bias))
    return tuple(_as(site, v, t) for v, t in zip((y, mean, rstd), site.types))


@lowers("native_layer_norm_backward.default")
def layer_norm_backward(site, grad, x, normalized_shape, mean, rstd, weight, bias, output_mask):
    """With n = (x - mean) rstd, g = grad * weight: dx = rstd (g - avg(g) - n avg(g n)); others sum over rows."""
    b, grad, x = site.b, site.wide(grad), site.wide(x)
    dims = _inner(x, normalized_shape)
    rows = tuple(range(dims[0]))
    rstd = site.wide(rstd)
    n = b.multiply(b.subtract(x, site.wide(mean)), rstd)
    g = grad if weight is None else b.multiply(grad, site.wide(weight))
    along = b.multiply(n, _average(site, b.multiply(g, n), dims))
    dx = b.multiply(rstd, b.subtract(b.subtract(g, _average(site, g, dims)), along))
    dweight = b.reduce(b.multiply(grad, n), rows) if output_mask[1] else None
    dbias = b.reduce(grad, rows) if output_mask[2] else None
    results = (dx if output_mask[0] else None, dweight, dbias)
    return tuple(None if v is None else _as(site, v, t) for v, t in zip(results, site.types))


@lowers("_fused_rms_norm.default")
def rms_norm(site, x, normalized_shape, weight, eps):
    """Result and reciprocal root mean square. Without eps PyTorch takes the format's smallest step at one."""
    b = site.b
    eps = {"bfloat16": 2.0**-7, "float16": 2.0**-10}.get(x.dtype.name, 2.0**-23) if eps is None else eps
    x = site.wide(x)
    dims = _inner(x, normalized_shape)
    rstd = b.rsqrt(b.add(_average(site, b.multiply(x, x), dims), eps))
    y = b.multiply(x, rstd)
    y = y if weight is None else b.multiply(y, site.wide(weight))
    return tuple(_as(site, v, t) for v, t in zip((y, rstd), site.types))


@lowers("_fused_rms_norm_backward.default")
def rms_norm_backward(site, grad, x, normalized_shape, rstd, weight, output_mask):
    """With n = x rstd and g = grad * weight: dx = rstd (g - n avg(g n)); dweight sums grad n over rows."""
    b, grad, x = site.b, site.wide(grad), site.wide(x)
    dims = _inner(x, normalized_shape)
    rstd = site.wide(rstd)
    n = b.multiply(x, rstd)
    g = grad if weight is None else b.multiply(grad, site.wide(weight))
    dx = b.multiply(rstd, b.subtract(g, b.multiply(n, _average(site, b.multiply(g, n), dims))))
    dweight = b.reduce(b.multiply(grad, n), tuple(range(dims[0]))) if output_mask[1] else None
    results = (dx if output_mask[0] else None, dweight)
    return tuple(None if v is None else _as(site, v, t) for v, t in zip(results, site.types))


# -- softmax --------------------------------------------------------------------------------------------------------


def _shifted(site: LoweringSite, x: Value, dim: int) -> tuple[Value, tuple[int, ...]]:
    """x less its largest element along `dim`, so that no exponential overflows."""
    x, dims = site.wide(x), dims_of(dim, len(x.shape))
    return site.b.subtract(x, site.b.reduce(x, dims, "maximum", keepdims=True)), dims


@lowers("_softmax.default")
def softmax(site, x, dim, half_to_float):
    shifted, dims = _shifted(site, x, dim)
    powers = site.b.exponential(shifted)
    return site.cast(site.b.divide(powers, site.b.reduce(powers, dims, keepdims=True)))


@lowers("_safe_softmax.default")
def safe_softmax(site, x, dim, dtype=None):
    """Zero, in place of NaN, in a row that is minus infinity throughout."""
    b, x = site.b, site.wide(x)
    dims = (dim % max(len(x.shape), 1),) if x.shape else ()
    highest = b.maximum(b.reduce(x, dims, "maximum", keepdims=True), LOWEST)
    grown = b.exponential(b.subtract(x, highest))
    total = b.reduce(grown, dims, keepdims=True)
    return site.cast(b.divide(grown, b.select(b.compare(total, "EQ", 0.0), 1.0, total)))


@lowers("_softmax_backward_data.default")
def softmax_backward(site, grad, y, dim, input_dtype):
    b, grad, y = site.b, site.wide(grad), site.wide(y)
    weighted = b.reduce(b.multiply(grad, y), dims_of(dim, len(y.shape)), keepdims=True)
    return site.cast(b.multiply(y, b.subtract(grad, weighted)))


@lowers("_log_softmax.default")
def log_softmax(site, x, dim, half_to_float):
    b = site.b
    shifted, dims = _shifted(site, x, dim)
    return site.cast(b.subtract(shifted, b.log(b.reduce(b.exponential(shifted), dims, keepdims=True))))


@lowers("_log_softmax_backward_data.default")
def log_softmax_backward(site, grad, y, dim, input_dtype):
    b, grad, y = site.b, site.wide(grad), site.wide(y)
    return site.cast(
        b.subtract(grad, b.multiply(b.exponential(y), b.reduce(grad, dims_of(dim, len(y.shape)), keepdims=True)))
    )


# -- losses ---------------------------------------------------------------------------------------------------------

_NONE, _MEAN = 0, 1  # PyTorch's codes for the reduction of a loss; 2 is the sum


def _classes(logp: Value) -> int:
    """Along which dimension classes lie: of one, of rows [N, C], or of pixels [N, C, H, W]."""
    return min(1, len(logp.shape) - 1)


def _picked(site: LoweringSite, x: Value, target: Value) -> Value:
    """x [N, C, ...] at each target's class, in fp32 [N, ...]; zero where there is none."""
    dim = _classes(x)
    mask = one_hot(site, target, x.shape[dim], dim)
    return site.b.reduce(site.b.select(mask, site.wide(x), 0.0), (dim,))


def _class_weights(site: LoweringSite, weight: Value, logp: Value, target: Value) -> Value:
    """fp32, per target: the weight of its class."""
    b, dim = site.b, _classes(logp)
    column = b.reshape(weight, (-1, *(1 for _ in logp.shape[dim + 1 :])))
    return _picked(site, b.broadcast_to(column, logp.shape), target)


@lowers("nll_loss_forward.default", "nll_loss2d_forward.default")
def nll_loss(site, logp, target, weight, reduction, ignore_index):
    """Loss and the total weight that a mean divides by. logp [N, C], [C] or [N, C, H, W].

    Rows to be ignored are left out by a select: they may be infinite, which times zero were NaN.
    """
    b = site.b
    site.watch.index(target, 0, logp.shape[_classes(logp)], ignore_index)
    counted = b.compare(target, "NE", ignore_index)
    losses = b.negate(_picked(site, logp, target))
    weights = b.convert(counted, float32)
    if weight is not None:
        own = _class_weights(site, weight, logp, target)
        losses, weights = b.multiply(losses, own), b.select(counted, own, 0.0)
    losses = b.select(counted, losses, 0.0)
    rows = tuple(range(len(losses.shape)))
    whole = b.reduce(weights, rows) if rows else weights
    if reduction != _NONE:
        losses = b.reduce(losses, rows) if rows else losses
        losses = b.divide(losses, whole) if reduction == _MEAN else losses
    return tuple(_as(site, v, t) for v, t in zip((losses, whole), site.types))


@lowers("nll_loss_backward.default", "nll_loss2d_backward.default")
def nll_loss_backward(site, grad, logp, target, weight, reduction, ignore_index, total_weight):
    b, dim = site.b, _classes(logp)
    scale = site.wide(grad)
    if reduction == _MEAN:
        scale = b.divide(scale, site.wide(total_weight))
    rows = b.negate(scale)
    if weight is not None:
        rows = b.multiply(rows, _class_weights(site, weight, logp, target))
    rows = b.select(b.compare(target, "NE", ignore_index), b.broadcast_to(rows, target.shape), 0.0)
    lines = b.reshape(rows, (*rows.shape[:dim], 1, *rows.shape[dim:]))
    return site.cast(b.select(one_hot(site, target, logp.shape[dim], dim), lines, 0.0))


@lowers("mse_loss.default")
def mse_loss(site, x, y, reduction=_MEAN):
    difference = site.b.subtract(site.wide(x), site.wide(y))
    return site.cast(_reduced(site, site.b.multiply(difference, difference), reduction))


def _reduced(site: LoweringSite, losses: Value, reduction: int) -> Value:
    if reduction == _NONE:
        return losses
    whole: Any = site.b.reduce(losses, range(len(losses.shape)))
    return site.b.divide(whole, float(losses.type.size)) if reduction == _MEAN else whole


@lowers("mse_loss_backward.default")
def mse_loss_backward(site, grad, x, y, reduction):
    b = site.b
    factor = 2.0 / max(x.type.size, 1) if reduction == _MEAN else 2.0
    difference = b.multiply(b.subtract(site.wide(x), site.wide(y)), factor)
    return site.cast(b.multiply(difference, site.wide(grad)))


@lowers("_weight_norm_interface_backward.default")
def weight_norm_backward(site, grad, v, g, norms, dim):
    """Gradients of w = v * g / |v| by v and by g; the norm is over all dimensions but `dim`."""
    b, rank = site.b, len(v.shape)
    kinds = [t.dtype for t in site.types]
    grad, v, g, norms = (site.wide(x) for x in (grad, v, g, norms))
    along = b.reduce(b.multiply(grad, v), [d for d in range(rank) if d != dim % rank], keepdims=True)
    along, norms, g = (b.reshape(x, along.shape) for x in (along, norms, g))
    across = b.subtract(grad, b.multiply(v, b.divide(along, b.multiply(norms, norms))))
    by_v = b.multiply(b.divide(g, norms), across)
    return b.convert(by_v, kinds[0]), b.convert(b.reshape(b.divide(along, norms), site.types[1].shape), kinds[1])
