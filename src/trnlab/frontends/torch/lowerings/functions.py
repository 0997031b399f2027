# SPDX-License-Identifier: Apache-2.0
"""Functions that are formulas of graph ops: roundings, remainders, logarithms, circles, hyperbolas, signs.

Computed in fp32 and rounded once. Gradients come as PyTorch's own formulas, in further operators.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi
from typing import Any

from trnlab.frontends.torch.lowerings.registry import LoweringSite, lowers
from trnlab.graph import formulas
from trnlab.graph.ir import Value

_UNARY = {
    "log2": formulas.log2,
    "log10": formulas.log10,
    "exp2": formulas.exp2,
    "sinh": formulas.sinh,
    "cosh": formulas.cosh,
    "asinh": formulas.asinh,
    "acosh": formulas.acosh,
    "atanh": formulas.atanh,
    "tan": formulas.tan,
    "asin": formulas.asin,
    "acos": formulas.acos,
    "erfc": formulas.erfc,
}
_BINARY = {"atan2": formulas.atan2, "hypot": formulas.hypot}


def _of_one(formula: Callable[..., Value]) -> Any:
    return lambda site, x: site.cast(formula(site.b, site.wide(x)))


def _of_two(formula: Callable[..., Value]) -> Any:
    def lowering(site, x, y):
        x, y = (site.b.broadcast_to(v, site.shape) for v in site.wide_values(x, y))
        return site.cast(formula(site.b, x, y))

    return lowering


for _name, _formula in _UNARY.items():
    lowers(f"{_name}.default")(_of_one(_formula))
for _name, _formula_of_two in _BINARY.items():
    lowers(f"{_name}.default")(_of_two(_formula_of_two))


@lowers("atan.default")
def atan(site, x):
    return site.cast(site.b.atan(site.wide(x)))


@lowers("sign.default")
def sign(site, x):
    return formulas.sign(site.b, x) if x.dtype.is_float else site.b.sign(x)


@lowers("trunc.default")
def trunc(site, x):
    return formulas.truncate(site.b, x) if x.dtype.is_float else x


@lowers("round.decimals")
def round_decimals(site, x, decimals=0):
    """As PyTorch: the number scaled by a power of ten, rounded, and scaled back."""
    b, power, wide = site.b, float(10 ** abs(decimals)), site.wide(x)
    if decimals >= 0:
        return site.cast(b.divide(b.round_nearest_even(b.multiply(wide, power)), power))
    return site.cast(b.multiply(b.round_nearest_even(b.divide(wide, power)), power))


@lowers("copysign.Tensor", "copysign.Scalar")
def copysign(site, x, y):
    x, y = site.wide_values(x, y)
    return site.cast(site.b.broadcast_to(site.b.copysign(x, y), site.shape))


@lowers("signbit.default")
def signbit(site, x):
    return formulas.signbit(site.b, site.wide(x)) if x.dtype.is_float else site.b.compare(x, "LT", 0)


@lowers("fmax.default")
def fmax(site, x, y):
    return _beside_nan(site, x, y, "maximum")


@lowers("fmin.default")
def fmin(site, x, y):
    return _beside_nan(site, x, y, "minimum")


def _beside_nan(site: LoweringSite, x: Value, y: Value, name: str) -> Value:
    """The larger or smaller of two, and the other one beside NaN."""
    b, x, y = site.b, site.cast(x), site.cast(y)
    if not site.dtype.is_float:
        return b.binary(name, x, y)
    x, y = (b.broadcast_to(v, site.shape) for v in (x, y))
    best = b.select(b.compare(y, "NE", y), x, b.binary(name, x, y))
    return b.select(b.compare(x, "NE", x), y, best)


@lowers("angle.default")
def angle(site, x):
    """Pi below zero, 0 above; NaN stays."""
    b, wide = site.b, site.wide(x)
    found = b.select(b.compare(wide, "LT", 0.0), b.constant(pi), 0.0)
    return site.cast(b.select(b.compare(wide, "NE", wide), wide, found))


@lowers("softshrink_backward.default", "hardshrink_backward.default")
def shrink_backward(site, grad, x, lambd):
    """The gradient, but within `lambd` of zero; at NaN it passes."""
    inside = site.b.compare(site.b.abs(site.wide(x)), "LE", float(lambd))
    return site.b.select(inside, 0.0, site.cast(grad))


@lowers("smooth_l1_loss_backward.default")
def smooth_l1_backward(site, grad, x, target, reduction, beta):
    """The gradient times (x - target) / beta, bounded by one on either side; NaN stays."""
    b, mean = site.b, reduction == 1
    difference = b.subtract(site.wide(x), site.wide(target))
    slope = b.divide(difference, float(beta)) if beta > 0 else formulas.sign(b, difference)
    slope = b.minimum(b.maximum(slope, -1.0), 1.0)
    count = float(max(difference.type.size, 1))
    return site.cast(b.multiply(b.divide(slope, count) if mean else slope, site.wide(grad)))
