# SPDX-License-Identifier: Apache-2.0
"""Resized images and the way back: the definition and the kernel, against PyTorch in float64."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from compiled import BF16, execute_in_both_orders

from trnlab import chips
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.interpret import interpret
from trnlab.graph.windows.resizing import RULES, terms_back, terms_of
from trnlab.kernels.pooling.resizing import WeightedSums, resize
from trnlab.kernels.view import full
from trnlab.numerics.dtypes import bfloat16, float32
from trnlab.program import Builder
from trnlab.sim.functional import Machine

MODES = {
    "nearest": {"mode": "nearest"},
    "nearest_middle": {"mode": "nearest-exact"},
    "linear": {"mode": "bilinear"},
    "cubic": {"mode": "bicubic"},
    "smooth_linear": {"mode": "bilinear", "antialias": True},
    "smooth_cubic": {"mode": "bicubic", "antialias": True},
}
CASES = {  # rule, shape, size or scale factors
    "four times": ("linear", (2, 3, 8, 6), (32, 24)),
    "four times, corners": ("linear_corners", (2, 3, 8, 6), (32, 24)),
    "twice, corners": ("linear_corners", (2, 3, 16, 16), (32, 32)),
    "rows alone": ("linear", (1, 3, 8, 6), (16, 6)),
    "columns alone": ("linear", (1, 3, 8, 6), (8, 18)),
    "three and a half": ("linear", (3, 50, 4, 6), (3.5, 1.7)),
    "smaller": ("linear", (2, 3, 17, 30), (5, 7)),
    "nothing covers all": ("linear", (1, 2, 40, 40), (4, 4)),
    "one element": ("linear", (2, 5, 1, 1), (7, 3)),
    "to one element": ("linear_corners", (2, 5, 7, 3), (1, 1)),
    "a row": ("linear", (2, 5, 1, 30), (1, 77)),
    "cubic": ("cubic", (1, 3, 7, 9), (15, 27)),
    "cubic, corners": ("cubic_corners", (1, 3, 7, 9), (15, 4)),
    "smoothed": ("smooth_linear", (1, 3, 29, 31), (7, 12)),
    "smoothed, corners": ("smooth_linear_corners", (1, 3, 29, 31), (7, 40)),
    "smoothed by polynomials": ("smooth_cubic", (1, 3, 29, 31), (7, 40)),
    "averages": ("average", (2, 3, 7, 11), (3, 4)),
    "nearest": ("nearest", (2, 3, 7, 11), (3, 25)),
    "nearest, twice": ("nearest", (2, 3, 7, 11), (14, 22)),
    "nearest by the middle": ("nearest_middle", (2, 3, 7, 11), (3, 25)),
    "side by side": ("linear", (96, 16, 4, 4), (8, 8)),
    "rows in bands": ("linear", (1, 3, 50, 40), (200, 160)),
    "corners in bands": ("linear_corners", (1, 2, 60, 60), (150, 140)),
    "columns in bands": ("linear", (1, 2, 3, 2100), (2, 9000)),
}
HOSTILE = np.array([np.inf, -np.inf, np.nan, -0.0, 0.0, 1e-40, 1e30, -0.0], np.float32)


def resized(case, x):
    """As PyTorch has it."""
    rule, _, size = case
    if rule == "average":
        return F.adaptive_avg_pool2d(x, size)
    given = dict(MODES[rule.removesuffix("_corners")])
    if "nearest" not in rule:
        given["align_corners"] = rule.endswith("_corners")
    whole = all(isinstance(n, int) for n in size)
    return F.interpolate(x, **({"size": size} if whole else {"scale_factor": size}), **given)


def graph_of(case, dtype):
    """Both ops."""
    rule, shape, size = case
    places = tuple(resized(case, torch.zeros(shape)).shape[2:])
    scales = (0.0, 0.0) if isinstance(size[0], int) else size
    attrs = {"rule": rule, "places": places, "row_scale": scales[0], "column_scale": scales[1]}
    b = GraphBuilder("resize")
    x, dy = b.input("x", shape, dtype), b.input("dy", (*shape[:2], *places), dtype)
    b.output(b.op("trn.resize", x, **attrs))
    b.output(b.op("trn.resize_backward", dy, **attrs, size=shape[2:]))
    return b.build()


def expected(case, x, dy):
    """In the format of x: the image, and the gradient."""
    x = x.requires_grad_()
    y = resized(case, x)
    y.backward(dy)
    return y.detach().numpy(), x.grad.numpy()


def as_torch(array):
    return torch.tensor(array.astype(np.float32))


def given(graph, hostile):
    rng = np.random.default_rng(sum(graph.inputs[0].shape))
    arrays = []
    for value in graph.inputs:
        numbers = rng.standard_normal(value.shape).astype(np.float32)
        if hostile:
            picked = rng.random(value.shape) < 0.04
            numbers[picked] = rng.choice(HOSTILE, int(picked.sum()))
            numbers[-1, -1] = -0.0
        arrays.append(numbers.astype(value.dtype.numpy))
    return arrays


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("name", CASES)
def test_resized(name, dtype):
    """Within float32's rounding of places, weights and sums, and one rounding to the format."""
    case, graph = CASES[name], graph_of(CASES[name], dtype)
    arrays = given(graph, hostile=False)
    wide = expected(case, *(as_torch(a).double() for a in arrays))
    sums = expected(case, *(as_torch(a).double().abs() for a in arrays))
    rounded = BF16 if dtype is bfloat16 else 0.0
    longest = max(*graph.inputs[0].shape[2:], *graph.inputs[1].shape[2:])  # a place's rounding is one of its weights
    bound = 2.0**-22 * longest
    found = [execute_in_both_orders(graph, arrays, chip=chip) for chip in ("trn1", "trn2")]
    for results in (*found, interpret(graph, arrays)):
        for got, y, most in zip(results, wide, sums):
            allowed = rounded * np.abs(y) + bound * max(np.abs(most).max(), 4.0)
            assert (np.abs(got.astype(np.float64) - y) <= allowed).all()


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("name", CASES)
def test_what_is_not_finite_stays_where_it_has_a_weight(name, dtype):
    """As the definition has it."""
    graph = graph_of(CASES[name], dtype)
    arrays = given(graph, hostile=True)
    with np.errstate(all="ignore"):
        wanted = interpret(graph, arrays)
    for got, y in zip(execute_in_both_orders(graph, arrays), wanted):
        got, y = got.astype(np.float32), y.astype(np.float32)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(y))
        np.testing.assert_array_equal(got[np.isinf(y)], y[np.isinf(y)])
        np.testing.assert_allclose(got, y, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("rule", ["linear", "linear_corners", "nearest"])
def test_minus_zero_stays(rule):
    """Elements of one sign are summed from the first on, not from zero."""
    case = (rule, (1, 2, 5, 5), (10, 10))
    graph = graph_of(case, float32)
    y, _ = execute_in_both_orders(graph, [np.full(v.shape, -0.0, np.float32) for v in graph.inputs])
    inside = np.signbit(resized(case, torch.full((1, 2, 5, 5), -0.0)).numpy())
    assert np.signbit(y)[inside].all()


def test_little_room():
    """Where SBUF has little room left, bands are smaller."""
    case = ("linear", (1, 4, 40, 30), (160, 90))
    graph = graph_of(case, float32)
    arrays = given(graph, hostile=False)
    taps = [RULES["linear"](n, out, None) for n, out in zip(case[1][2:], case[2])]
    forward = tuple(WeightedSums(n, terms_of(t)) for n, t in zip(case[1][2:], taps))
    back = tuple(WeightedSums(out, terms_back(t, n)) for n, out, t in zip(case[1][2:], case[2], taps))
    chip = chips.get("trn1")
    b = Builder("resize", chip, sbuf_limit=24 * 1024)
    shapes = {"x": case[1], "dy": arrays[1].shape, "y": arrays[1].shape, "dx": case[1]}
    x, dy, y, dx = (full(b.param(name, shape, "float32")) for name, shape in shapes.items())
    resize(b, x, y, forward)
    resize(b, dy, dx, back)
    got = [np.empty(arrays[1].shape, np.float32), np.empty(case[1], np.float32)]
    Machine(chip).call(b.build(), [*arrays, *got])
    for found, wanted in zip(got, expected(case, *map(as_torch, arrays))):
        np.testing.assert_allclose(found, wanted, atol=1e-5)
