# SPDX-License-Identifier: Apache-2.0
"""The functions of ScalarE against float64: errors in units of the last place, absolute for the gates."""

from __future__ import annotations

import numpy as np
import pytest
from functional_bench import CHIP, Bench

from trnlab.isa.activations import ACTIVATIONS
from trnlab.sim.functional import elementwise as ew

EPS = 2.0**-23
POINTS = 128 * 1024
FAST = [a for a in ACTIVATIONS.values() if a.code not in ew.SLOW_FUNCTIONS]
# Largest error: units in the last place of the result, or units of 2**-23 absolute (sigmoid-like functions near
# their zeros).
RELATIVE = {
    "exp": 2,
    "log": 2,
    "tanh": 3,
    "sigmoid": 4,
    "erf": 3,
    "sqrt": 1,
    "rsqrt": 2,
    "reciprocal": 1,
    "softplus": 4,
}
EXACT = ("copy", "identity", "square", "relu", "sign", "abs")


def inputs(name: str) -> np.ndarray:
    """Points across the function's range, dense near zero and at its ends."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(POINTS) * np.exp2(rng.integers(-20, 4, POINTS))
    x[: POINTS // 4] = np.linspace(-20, 20, POINTS // 4)
    if name == "exp":
        x[POINTS // 4 : POINTS // 2] = np.linspace(-87, 88.5, POINTS // 4)
    if name in ("log", "sqrt", "rsqrt"):
        x = np.exp2(rng.uniform(-60, 60, POINTS))
    if name == "reciprocal":
        x[x == 0] = 1
    return x.astype(np.float32).reshape(128, -1)


def apply(name: str, x: np.ndarray) -> np.ndarray:
    t = Bench()
    a = t.tile("a", x.shape, data=x)
    t.b.activation(dst=t.tile("d", x.shape), data=a, op=name)
    return t.run(by_definition=False)["d"]


@pytest.mark.parametrize("name", [a.name for a in FAST])
def test_error_bound(name):
    x = inputs(name)
    with np.errstate(all="ignore"):
        got, exact = apply(name, x).astype(np.float64), ACTIVATIONS[name].function(x.astype(np.float64))
    if name in EXACT:
        np.testing.assert_array_equal(got, exact.astype(np.float32))
        return
    units = np.abs(got - exact) / (np.abs(exact) * EPS + 1e-45)
    if name in RELATIVE:
        assert units.max() <= RELATIVE[name], f"{units.max():.2f} units at {x.flat[units.argmax()]}"
    else:  # gates: products and sums of the above, absolute error relative to the input's size
        error = np.abs(got - exact) / (EPS * np.maximum(1, np.abs(x)))
        assert error.max() <= 4, f"{error.max():.2f} at {x.flat[error.argmax()]}"


@pytest.mark.parametrize("name", [a.name for a in FAST])
def test_limits_are_those_of_the_definition(name):
    x = np.array(
        [[np.nan, np.inf, -np.inf, 0.0, -0.0, 1e30, -1e30, 1e-38, -1e-38, 88.0, -88.0, 100.0, -100.0]], np.float32
    )
    expected, got = ACTIVATIONS[name](x), apply(name, x)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-30)


def test_exp_is_rounded_where_it_is_subnormal_and_where_it_vanishes():
    x = np.linspace(-110, -80, POINTS).astype(np.float32).reshape(128, -1)
    got, exact = apply("exp", x).astype(np.float64), np.exp(x.astype(np.float64))
    unit = np.maximum(exact * EPS, 2.0**-149)
    assert (np.abs(got - exact) / unit).max() <= 1
    assert (got[exact > 2.0**-149] > 0).all()
    assert (got[exact < 2.0**-150] == 0).all()


@pytest.mark.parametrize("scale", [1.0, 0.5, "tile"])
@pytest.mark.parametrize("bias", [False, True])
def test_scale_bias_and_row_sums(scale, bias):
    t = Bench(1)
    for i, shape in enumerate([(1, 1), (128, 512), (7, 33), (128, 3)]):
        arguments = {"scale": t.tile(f"s{i}", (shape[0], 1)) if scale == "tile" else scale}
        if bias:
            arguments["bias"] = t.tile(f"b{i}", (shape[0], 1), "bfloat16")
        a, d = t.tile(f"a{i}", shape, "bfloat16"), t.tile(f"d{i}", shape, "bfloat16")
        t.b.activation(dst=d, data=a, op="square", reduce_res=t.tile(f"r{i}", (shape[0], 1)), **arguments)
        t.b.activation(dst=a, data=a, op="copy", **arguments)
    expected, got = t.run(by_definition=True), t.run(by_definition=False)
    assert t.machine.by_meaning == 0
    for name, array in expected.items():
        if name.startswith("r"):
            np.testing.assert_allclose(got[name], array, rtol=1e-5)
        else:
            np.testing.assert_array_equal(got[name].astype(np.float32), array.astype(np.float32))


def test_functions_without_a_loop_use_their_definition():
    x = np.linspace(-3, 3, 64, dtype=np.float32).reshape(2, 32)
    np.testing.assert_array_equal(apply("sin", x), ACTIVATIONS["sin"](x))
    assert CHIP.num_partitions == 128
