# SPDX-License-Identifier: Apache-2.0
"""Averages of windows and the way back: the definition and the kernels, against PyTorch in float64."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from compiled import BF16, execute_in_both_orders

from trnlab import chips
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.composites import window_divisors
from trnlab.graph.interpret import interpret
from trnlab.kernels.pooling import averages
from trnlab.kernels.view import full
from trnlab.kernels.windows import Slide
from trnlab.numerics.dtypes import bfloat16, float32
from trnlab.program import Builder
from trnlab.sim.functional import Machine

CASES = {  # shape, window, strides, padding, and how PyTorch counts
    "of an Inception": ((2, 3, 8, 9), (3, 3), (1, 1), (1, 1), {}),
    "of a PoolFormer": ((2, 3, 7, 7), (3, 3), (1, 1), (1, 1), {"count_include_pad": False}),
    "windows that touch": ((1, 2, 7, 6), (2, 2), (2, 2), (0, 0), {}),
    "windows that overlap by steps": ((3, 50, 9, 8), (5, 3), (3, 2), (2, 1), {"count_include_pad": False}),
    "nothing covers all places": ((1, 1, 6, 6), (5, 5), (3, 3), (2, 2), {}),
    "gaps": ((2, 2, 9, 9), (2, 2), (3, 4), (0, 0), {}),
    "the last window hangs over": ((1, 3, 8, 6), (3, 3), (2, 2), (1, 1), {"ceil_mode": True}),
    "it hangs over, counted": ((1, 3, 8, 6), (3, 3), (2, 2), (1, 1), {"ceil_mode": True, "count_include_pad": False}),
    "another divisor": ((1, 3, 8, 6), (3, 2), (2, 1), (1, 1), {"divisor_override": -7}),
    "a line": ((2, 5, 1, 30), (1, 4), (1, 3), (0, 2), {}),
    "a column": ((2, 5, 30, 1), (4, 1), (3, 1), (2, 0), {}),
    "one by one": ((2, 5, 6, 7), (1, 1), (2, 2), (0, 0), {}),
    "images side by side": ((97, 32, 4, 5), (3, 3), (1, 1), (1, 1), {"count_include_pad": False}),
    "touching, side by side": ((96, 16, 4, 6), (2, 2), (2, 2), (0, 0), {}),
    "rows in bands": ((1, 3, 70, 50), (3, 3), (1, 1), (1, 1), {"count_include_pad": False}),
    "steps in bands": ((1, 2, 90, 50), (3, 4), (2, 3), (1, 2), {}),
    "columns in bands": ((1, 3, 2, 3001), (2, 3), (1, 2), (1, 1), {"count_include_pad": False}),
}
HOSTILE = np.array([np.inf, -np.inf, np.nan, -0.0, 0.0, 1e-40, -0.0, -0.0], np.float32)


def graph_of(case, dtype):
    """Both ops, of windows as PyTorch has them; the shape of the places."""
    shape, window, strides, padding, given = case
    places = F.avg_pool2d(torch.zeros(1, 1, *shape[2:]), window, strides, padding, **given).shape[2:]
    attrs = {"window": window, "window_strides": strides, "padding_low": padding, "places": tuple(places)}
    attrs["counted"] = padding if given.get("count_include_pad", True) else (0, 0)
    attrs["divisor"] = float(given.get("divisor_override", 0))
    b = GraphBuilder("average")
    x, dy = b.input("x", shape, dtype), b.input("dy", (*shape[:2], *places), dtype)
    b.output(b.op("trn.avg_pool", x, **attrs))
    b.output(b.op("trn.avg_pool_backward", dy, **attrs, size=shape[2:]))
    return b.build()


def expected(case, x, dy):
    """In the format of x: averages, and the gradient."""
    _, window, strides, padding, given = case
    x = x.requires_grad_()
    y = F.avg_pool2d(x, window, strides, padding, **given)
    y.backward(dy)
    return y.detach().numpy(), x.grad.numpy()


def as_torch(array):
    return torch.tensor(array.astype(np.float32))


def given(graph, hostile):
    rng = np.random.default_rng(len(graph.inputs[0].shape) + graph.inputs[0].shape[-1])
    arrays = []
    for value in graph.inputs:
        numbers = rng.standard_normal(value.shape).astype(np.float32)
        if hostile:  # and whole neighbourhoods of minus zero
            picked = rng.random(value.shape) < 0.04
            numbers[picked] = rng.choice(HOSTILE, int(picked.sum()))
            numbers[-1, -1] = -0.0
        arrays.append(numbers.astype(value.dtype.numpy))
    return arrays


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("name", CASES)
def test_averages(name, dtype):
    """Within float32's rounding of the sums, and one rounding to the format."""
    case, graph = CASES[name], graph_of(CASES[name], dtype)
    arrays = given(graph, hostile=False)
    wide = expected(case, *(as_torch(a).double() for a in arrays))
    sums = expected(case, *(as_torch(a).double().abs() for a in arrays))
    rounded = BF16 if dtype is bfloat16 else 0.0
    found = [execute_in_both_orders(graph, arrays, chip=chip) for chip in ("trn1", "trn2")]
    for results in (*found, interpret(graph, arrays)):
        for got, y, most in zip(results, wide, sums):
            assert (np.abs(got.astype(np.float64) - y) <= rounded * np.abs(y) + 2.0**-20 * np.abs(most)).all()


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("name", CASES)
def test_what_is_not_finite_stays_in_its_windows(name, dtype):
    """And minus zero becomes zero, as PyTorch begins its sums with zero."""
    case, graph = CASES[name], graph_of(CASES[name], dtype)
    arrays = given(graph, hostile=True)
    wanted = expected(case, *(as_torch(a) for a in arrays))
    nothing = expected(case, *(as_torch(a != 0) for a in arrays))
    for engine in (interpret(graph, arrays), execute_in_both_orders(graph, arrays)):
        for got, y, n in zip(engine, wanted, nothing):
            got = got.astype(np.float32)
            odd, zero = ~np.isfinite(y), n == 0
            np.testing.assert_array_equal(got[odd], y[odd])
            assert np.isfinite(got[~odd]).all()
            np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(y[zero]))
            np.testing.assert_allclose(got[~odd], y[~odd], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("strides", [(1, 1), (3, 2)])
def test_little_room(strides):
    """Where SBUF has little room left, bands are smaller."""
    case = ((1, 4, 40, 30), (3, 3), strides, (1, 1), {})
    graph = graph_of(case, float32)
    arrays = given(graph, hostile=False)
    attrs = graph.ops[0].attrs
    slides = tuple(Slide(case[0][2 + d], 3, attrs["places"][d], strides[d], 1) for d in range(2))
    divisors = averages.Divisors(*window_divisors(attrs, case[0][2:]))
    chip = chips.get("trn1")
    b = Builder("average", chip, sbuf_limit=16 * 1024)
    shapes = {"x": case[0], "dy": arrays[1].shape, "y": arrays[1].shape, "dx": case[0]}
    x, dy, y, dx = (full(b.param(name, shape, "float32")) for name, shape in shapes.items())
    averages.window_averages(b, x, y, slides, divisors)
    averages.window_averages_gradient(b, dy, dx, slides, divisors)
    got = [np.empty(arrays[1].shape, np.float32), np.empty(case[0], np.float32)]
    Machine(chip).call(b.build(), [*arrays, *got])
    for found, wanted in zip(got, expected(case, *map(as_torch, arrays))):
        np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize("size", [(5, 7), (6, 8)])
def test_averages_of_ones_are_one(size):
    """Sums of fp32 are divided, not multiplied by a reciprocal that is rounded."""
    case = ((1, 2, *size), (5, 7), (1, 1), (2, 3), {"count_include_pad": False})
    graph = graph_of(case, float32)
    y, _ = execute_in_both_orders(graph, [np.ones(v.shape, np.float32) for v in graph.inputs])
    assert (y == 1).all()
