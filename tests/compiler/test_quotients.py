# SPDX-License-Identifier: Apache-2.0
"""Divisors of known sign, inverted by ScalarE's roots: accurate where they are taken, from 2^-57 to infinity."""

from __future__ import annotations

import numpy as np
import pytest
from compiled import build, execute, same, ulps

from trnlab.compiler.analysis.ranges import Ranges
from trnlab.compiler.rules import select
from trnlab.compiler.rules.quotients import product_of_negative_roots, product_of_roots
from trnlab.numerics.dtypes import float32

SHAPE = (128, 512)
BOUND = 5.0  # ulp: the inverse is off by less than 4 * 2^-24, over all significands, its product by 2^-24 more
LEAST, MOST = 2.0**-56, 2.0**125


def numbers(seed: int, low: float, high: float) -> np.ndarray:
    """Of either sign, their exponents uniform in [low, high)."""
    rng = np.random.default_rng(seed)
    return (2.0 ** rng.uniform(low, high, SHAPE) * rng.choice([-1, 1], SHAPE)).astype(np.float32)


def divided(function, x, y, rule, bounds=None):
    """What the chip makes of function(b, x, y), whose last division must take `rule`. bounds: promised of y."""
    graph = build(function, x, y)
    graph.aliases[0] = 0  # the form is for updates, which overwrite an input
    graph.bounds.update({1: bounds} if bounds else {})
    op = [op for op in graph.ops if op.name == "divide"][-1]
    assert select(op, Ranges(graph)).emit is rule
    return execute(graph, [x.copy(), y])[0]


def assert_close(got, x, divisor) -> None:
    with np.errstate(all="ignore"):
        exact = x.astype(np.float64) / divisor
        rounded = exact.astype(np.float32)
    want = np.where(np.isfinite(rounded), exact, rounded)
    assert ulps(got, want, float32).max() <= BOUND
    hard = ~np.isfinite(rounded) | (rounded == 0)
    assert same(got[hard], rounded[hard])


@pytest.mark.parametrize("negative", [False, True])
def test_all_divisors_of_one_sign(negative):
    """Quotients that are subnormal, zero, infinite, NaN, of divisors up to the ends of the range and of infinity."""
    x, y = numbers(0, -149, 128), np.abs(numbers(1, -60, 128))
    x.flat[:8] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -3e38, 1.0]
    y.flat[6:12] = [LEAST, MOST, np.nan, 1e-45, 0.0, -1.0]
    bounds = (-MOST, -LEAST) if negative else (LEAST, MOST)
    y = np.clip(-y if negative else y, *np.float32(bounds))
    y.flat[12:14] = [np.nan, -np.inf if negative else np.inf]
    rule = product_of_negative_roots if negative else product_of_roots
    assert_close(divided(lambda b, x, y: b.divide(x, y), x, y, rule, bounds), x, y)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_division_of_adam(sign):
    """m / (sqrt(v) + eps), and by what is below zero; v may be zero of either sign, subnormal, infinite or NaN."""
    x, y = numbers(2, -149, 128), np.abs(numbers(3, -149, 128))
    y.flat[:8] = [0.0, -0.0, 1e-45, np.inf, np.nan, 3e38, 1e-16, 1.0]
    rule = product_of_roots if sign > 0 else product_of_negative_roots
    divisor = np.sqrt(y) + np.float32(1e-8)

    def function(b, x, y):
        d = b.add(b.sqrt(y), 1e-8)
        return b.divide(x, d if sign > 0 else b.negate(d))

    assert_close(divided(function, x, y, rule), x, np.float32(sign) * divisor)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits_are_rounded_once(dtype):
    """Divided in fp32: half a unit in the last place of the narrow format, and what fp32 adds."""
    x, y = numbers(4, -8, 8), np.abs(numbers(5, -6, 12))

    def function(b, x, y):
        low = b.convert(b.multiply(y, y), dtype)
        return b.divide(b.convert(x, dtype), b.add(b.sqrt(low), 2.0**-20))

    graph = build(function, x, y)
    got = execute(graph, [x, y])[0]
    narrow = got.dtype
    with np.errstate(over="ignore"):
        low = (y * y).astype(narrow)
    root = np.sqrt(low.astype(np.float32)).astype(narrow)
    divisor = (root.astype(np.float32) + np.float32(2.0**-20)).astype(narrow)
    exact = x.astype(narrow).astype(np.float64) / divisor.astype(np.float64)
    kept = np.isfinite(exact.astype(narrow).astype(np.float64))
    assert ulps(got[kept], exact[kept], graph.outputs[0].dtype).max() <= 0.51


def test_zeros_keep_their_signs():
    """The square of a root forgets which zero it was of: divisors that may be zero take another form."""
    x, y = numbers(6, -3, 3), np.tile(np.float32([0.0, -0.0, 2.0, 0.5]), (128, 128))
    forms = {
        "whole": lambda b, x, y: b.divide(x, b.negate(b.floor(y))),
        "inverse root": lambda b, x, y: b.divide(x, b.add(b.rsqrt(y), 1.0)),
        "inverse": lambda b, x, y: b.divide(x, b.add(b.divide(1.0, b.sqrt(y)), 1.0)),
    }
    with np.errstate(all="ignore"):
        wanted = {
            "whole": x / -np.floor(y),
            "inverse root": x / (1 / np.sqrt(y) + 1),
            "inverse": x / (1 / np.sqrt(y) + 1),
        }
    for name, function in forms.items():
        graph = build(function, x, y)
        graph.bounds[1] = (0.0, 3.0)
        got = execute(graph, [x, y])[0]
        assert ulps(got, wanted[name], float32).max() <= BOUND, name
        hard = ~np.isfinite(wanted[name]) | (wanted[name] == 0)
        assert same(got[hard], wanted[name][hard]), name


@pytest.mark.parametrize(("shape", "dims"), [((16,), (0,)), ((3, 16), (1,)), ((130, 5), (1,)), ((3, 16), (0, 1))])
@pytest.mark.parametrize("stored", [True, False])
def test_numbers_of_rows_are_divided_where_their_quotient_is_whole(shape, dims, stored):
    """Norms of rows, repeated before they are divided, as adaptive_grad_clip of optax does of a bias."""
    rng = np.random.default_rng(5)
    x, y = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
    kept = [d for d in range(len(shape)) if d not in dims]

    def function(b, x, y):
        norms = [b.sqrt(b.broadcast_in_dim(b.reduce(b.multiply(v, v), dims, "add"), shape, kept)) for v in (x, y)]
        quotient = b.divide(b.multiply(b.maximum(norms[0], 1e-3), 0.01), b.maximum(norms[1], 1e-6))
        return quotient if stored else b.multiply(quotient, x)

    (got,) = execute(build(function, x, y), [x, y])
    norms = [np.sqrt((v.astype(np.float64) ** 2).sum(dims, keepdims=True)) for v in (x, y)]
    wanted = np.broadcast_to(0.01 * norms[0] / norms[1], shape)
    np.testing.assert_allclose(got, wanted if stored else wanted * x, rtol=1e-5, atol=1e-6)
