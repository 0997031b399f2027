# SPDX-License-Identifier: Apache-2.0
"""The functions of ScalarE: what `op=` may name in `activation`.

The hardware approximates them with piecewise polynomials whose coefficients are not published; here each is computed
in float64 and rounded once to float32. Outside its range the hardware's result is invalid; ours is the function
itself. At infinities ours is what the formula gives, as in PyTorch: silu(-inf) = -inf * 0 is NaN (assumed).

Source: "Supported Activation Functions for NKI ISA", nki/api/nki.api.shared.rst in aws-neuron/aws-neuron-sdk. `table`
is the set of functions that must be loaded together: which functions share a set is not published, so the grouping is
assumed (0: needs no table). gelu_apprx_tanh_dx is not in the published list (`published` is False).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trnlab.isa.base import Array

INF = math.inf
NO_TABLE, EXP, ERF, LOG, ROOT, TRIG = range(6)
TABLE_SETS = ("none", "exp", "erf", "log", "root", "trig")

_SQRT_HALF = math.sqrt(0.5)
_SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
_GELU_CUBIC = 0.044715
_GELU_SIGMOID = 1.702


@dataclass(frozen=True, slots=True)
class ActivationFunction:
    """One function. `code` is what simulators switch on; low and high bound |x| or x as `signed` says."""

    name: str
    code: int
    function: Callable[[Any], Any]
    table: int
    low: float = -INF
    high: float = INF
    magnitude: bool = False  # the range is of |x|
    published: bool = True

    def __call__(self, x: Array) -> Array:
        """The function of float32 values, computed in float64 and rounded to float32."""
        with np.errstate(all="ignore"):
            return np.asarray(self.function(x.astype(np.float64))).astype(np.float32)


_erf_elementwise = np.frompyfunc(math.erf, 1, 1)
_erfc_elementwise = np.frompyfunc(math.erfc, 1, 1)


def _erf(x: Any) -> Any:
    return np.asarray(_erf_elementwise(x)).astype(np.float64)


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _softplus(x: Any) -> Any:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _gaussian(x: Any) -> Any:
    return np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def _normal_cdf(x: Any) -> Any:
    """By erfc, which keeps its relative precision where the result is small."""
    return 0.5 * np.asarray(_erfc_elementwise(-x * _SQRT_HALF)).astype(np.float64)


def _gelu(x: Any) -> Any:
    return x * _normal_cdf(x)


def _gelu_dx(x: Any) -> Any:
    return _normal_cdf(x) + x * _gaussian(x)


def _gelu_tanh_gate(x: Any) -> Any:
    """(1 + tanh(u)) / 2 = sigmoid(2 u), without the cancellation."""
    return _sigmoid(2 * _SQRT_2_OVER_PI * x * (1 + _GELU_CUBIC * x * x))


def _gelu_tanh_dx(x: Any) -> Any:
    gate = _gelu_tanh_gate(x)
    slope = 2 * _SQRT_2_OVER_PI * (1 + 3 * _GELU_CUBIC * x * x)
    return gate + x * slope * (gate * (1 - gate))


def _silu_dx(x: Any) -> Any:
    s = _sigmoid(x)
    return s + x * (s * (1 - s))


def _gelu_sigmoid_dx(x: Any) -> Any:
    s = _sigmoid(_GELU_SIGMOID * x)
    return s + _GELU_SIGMOID * x * (s * (1 - s))


ACTIVATIONS: dict[str, ActivationFunction] = {
    a.name: a
    for a in (
        ActivationFunction("copy", 0, lambda x: x, NO_TABLE),
        ActivationFunction("identity", 1, lambda x: x, NO_TABLE),
        ActivationFunction("square", 2, np.square, NO_TABLE),
        ActivationFunction("sigmoid", 3, _sigmoid, EXP),
        ActivationFunction("relu", 4, lambda x: np.maximum(x, 0), NO_TABLE),
        ActivationFunction("gelu", 5, _gelu, ERF),
        ActivationFunction("gelu_dx", 6, _gelu_dx, ERF),
        ActivationFunction("gelu_apprx_tanh", 7, lambda x: x * _gelu_tanh_gate(x), ERF),
        ActivationFunction("gelu_apprx_tanh_dx", 8, _gelu_tanh_dx, ERF, published=False),
        ActivationFunction("silu", 9, lambda x: x * _sigmoid(x), EXP),
        ActivationFunction("silu_dx", 10, _silu_dx, EXP),
        ActivationFunction("tanh", 11, np.tanh, EXP),
        ActivationFunction("softplus", 12, _softplus, EXP),
        ActivationFunction("mish", 13, lambda x: x * np.tanh(_softplus(x)), EXP),
        ActivationFunction("erf", 14, _erf, ERF),
        ActivationFunction("erf_dx", 15, lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x), ERF),
        ActivationFunction("exp", 16, np.exp, EXP),
        ActivationFunction("log", 17, np.log, LOG, 2.0**-64, 2.0**64),
        ActivationFunction("sin", 18, np.sin, TRIG, -math.pi, math.pi),
        ActivationFunction("arctan", 19, np.arctan, TRIG, -math.pi / 2, math.pi / 2),
        ActivationFunction("sqrt", 20, np.sqrt, ROOT, 2.0**-116, 2.0**118),
        ActivationFunction("rsqrt", 21, lambda x: 1 / np.sqrt(x), ROOT, 2.0**-87, 2.0**97),
        ActivationFunction("reciprocal", 22, lambda x: 1 / x, ROOT, 2.0**-42, 2.0**42, magnitude=True),
        ActivationFunction("sign", 23, np.sign, NO_TABLE),
        ActivationFunction("abs", 24, np.abs, NO_TABLE),
        ActivationFunction("gelu_apprx_sigmoid", 25, lambda x: x * _sigmoid(_GELU_SIGMOID * x), ERF),
        ActivationFunction("gelu_apprx_sigmoid_dx", 26, _gelu_sigmoid_dx, ERF),
    )
}
BY_CODE = {a.code: a for a in ACTIVATIONS.values()}


def activation_op(name: str) -> ActivationFunction:
    """The function called `name`. Raises KeyError for an unknown name."""
    return ACTIVATIONS[name]
