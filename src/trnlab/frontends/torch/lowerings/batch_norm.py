# SPDX-License-Identifier: Apache-2.0
"""Batch normalisation [N, C, ...]: statistics of each channel over all else, in fp32, and their running averages."""

from __future__ import annotations

from typing import Any

from trnlab.frontends.torch.lowerings.registry import LoweringSite, lowers
from trnlab.graph.ir import Value
from trnlab.numerics.dtypes import float32


def _by_channel(site: LoweringSite, x: Value | None, like: Value) -> Value | None:
    """A tensor [C] in fp32, to be broadcast over `like`."""
    return None if x is None else site.b.reshape(site.wide(x), (1, x.shape[0], *(1 for _ in like.shape[2:])))


def _statistics(site: LoweringSite, x: Value) -> tuple[Value, Value]:
    """Mean and variance (over all, not one less) of each channel, [C]."""
    b, rest = site.b, (0, *range(2, len(x.shape)))
    count = float(x.type.size // x.shape[1])
    mean = b.divide(b.reduce(x, rest), count)
    apart = b.subtract(x, _by_channel(site, mean, x))  # type: ignore[arg-type]
    return mean, b.divide(b.reduce(b.multiply(apart, apart), rest), count)


def _normalised(
    site: LoweringSite, x: Value, mean: Value, rstd: Value, weight: Value | None, bias: Value | None
) -> Value:
    """One scale and one shift per channel, as PyTorch does it on the CPU: an error as if x were off by a rounding."""
    b = site.b
    scale = rstd if weight is None else b.multiply(rstd, site.wide(weight))
    taken = b.multiply(mean, scale)
    shift = b.negate(taken) if bias is None else b.subtract(site.wide(bias), taken)
    return _affine(site, x, scale, shift)


def _affine(site: LoweringSite, x: Value, scale: Value, shift: Value) -> Value:
    """x * scale + shift, both one number per channel."""
    b = site.b
    return b.add(b.multiply(x, _by_channel(site, scale, x)), _by_channel(site, shift, x))  # type: ignore[arg-type]


def _rstd(site: LoweringSite, variance: Value, eps: float) -> Value:
    return site.b.rsqrt(site.b.add(variance, eps))


def _typed(site: LoweringSite, results: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(v if v is None or t is None else site.b.convert(v, t.dtype) for v, t in zip(results, site.types))


@lowers("_native_batch_norm_legit_functional.default")
def batch_norm(site, x, weight, bias, running_mean, running_var, training, momentum, eps):
    """Result; mean and reciprocal standard deviation of the batch; both running averages, updated."""
    x = site.wide(x)
    if not training:
        results = batch_norm_of_averages(site, x, weight, bias, running_mean, running_var, momentum, eps)
        return _typed(site, (*results, running_mean, running_var))
    mean, variance = _statistics(site, x)
    rstd = _rstd(site, variance, eps)
    y = _normalised(site, x, mean, rstd, weight, bias)
    count = x.type.size // x.shape[1]
    spread = site.b.multiply(variance, count / (count - 1) if count > 1 else float("nan"))
    averages = _moved(site, running_mean, mean, momentum), _moved(site, running_var, spread, momentum)
    return _typed(site, (y, mean, rstd, *averages))


def _moved(site: LoweringSite, old: Value, new: Value, momentum: float) -> Value:
    b = site.b
    return b.add(b.multiply(new, momentum), b.multiply(site.wide(old), 1.0 - momentum))


@lowers("_native_batch_norm_legit.no_stats")
def batch_norm_without_averages(site, x, weight, bias, training, momentum, eps):
    """Result, mean and reciprocal standard deviation of the batch."""
    x = site.wide(x)
    mean, variance = _statistics(site, x)
    rstd = _rstd(site, variance, eps)
    return _typed(site, (_normalised(site, x, mean, rstd, weight, bias), mean, rstd))


@lowers("_native_batch_norm_legit_no_training.default")
def batch_norm_of_averages(site, x, weight, bias, running_mean, running_var, momentum, eps):
    """Result by the running averages; then these, as far as PyTorch keeps them (on the CPU nothing)."""
    mean, rstd = site.wide(running_mean), _rstd(site, site.wide(running_var), eps)
    y = _normalised(site, site.wide(x), mean, rstd, weight, bias)
    if site.types[1] is not None and site.types[1].shape == (0,):
        mean = rstd = site.b.constant(0.0, float32, (0,))
    return _typed(site, (y, mean, rstd))


@lowers("native_batch_norm_backward.default")
def batch_norm_backward(
    site, grad, x, weight, running_mean, running_var, save_mean, save_rstd, training, eps, output_mask
):
    """Gradients by x, weight and bias; by x as one sum of multiples of grad and x, and a number, per channel."""
    b, rest = site.b, (0, *range(2, len(x.shape)))
    grad, x = site.wide(grad), site.wide(x)
    mean = site.wide(save_mean if training else running_mean)
    rstd = site.wide(save_rstd) if training else _rstd(site, site.wide(running_var), eps)
    total = b.reduce(grad, rest)
    together = b.reduce(b.multiply(b.subtract(x, _by_channel(site, mean, x)), grad), rest)
    scale = rstd if weight is None else b.multiply(rstd, site.wide(weight))
    dx = None
    if output_mask[0] and training:
        count = float(x.type.size // x.shape[1])
        slope = b.negate(b.divide(b.multiply(b.multiply(together, scale), b.multiply(rstd, rstd)), count))
        shift = b.negate(b.add(b.divide(b.multiply(total, scale), count), b.multiply(mean, slope)))
        dx = b.add(b.multiply(grad, _by_channel(site, scale, x)), _affine(site, x, slope, shift))
    elif output_mask[0]:
        dx = b.multiply(grad, _by_channel(site, scale, x))
    dweight = b.multiply(together, rstd) if output_mask[1] else None
    return _typed(site, (dx, dweight, total if output_mask[2] else None))
