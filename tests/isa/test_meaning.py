# SPDX-License-Identifier: Apache-2.0
"""Meanings against formulas written independently here, in float64 or in Python integers, over formats and shapes.

Arithmetic is float32: results may differ from float64 by the roundings that the formula has, each half a unit in the
last place (2**-24 relative), and by the rounding to the destination's format, where that is narrower.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from isa_cases import compute

from trnlab.isa.activations import ACTIVATIONS
from trnlab.isa.alu import ALU
from trnlab.numerics.dtypes import dtype

FORMATS = ["float32", "bfloat16", "float16", "int8", "uint8", "int16"]
# half a unit in the last place, relative
HALF_ULP = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
SHAPES = [(1, 1), (128, 1), (7, 33), (128, 3, 5), (32, 2, 3, 4)]


def sample(shape: tuple[int, ...], name: str, seed: int = 0) -> np.ndarray[Any, Any]:
    """Values of a format: normal floats around one, or any integers."""
    rng = np.random.default_rng([seed, *shape])
    dt = dtype(name)
    if dt.is_float:
        return rng.standard_normal(shape).astype(np.float32).astype(dt.numpy)
    info = np.iinfo(dt.numpy)
    return rng.integers(info.min, info.max, shape, endpoint=True).astype(dt.numpy)


def close(
    got: np.ndarray[Any, Any], want: np.ndarray[Any, Any], name: str, roundings: float = 1, scale: Any = 0.0
) -> None:
    """Within `roundings` float32 roundings of values up to `scale`, and one rounding to the format."""
    got, want = got.astype(np.float64), np.asarray(want, np.float64)
    bound = HALF_ULP["float32"] * roundings * np.maximum(np.abs(want), scale)
    bound = bound + (HALF_ULP[name] * np.abs(want) * 1.001 + 2.0**-25 if name != "float32" else 2.0**-149)
    assert (np.abs(got - want) <= bound).all(), np.abs(got - want).max()


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "max": lambda x, y: np.where(x > y, x, y),
    "min": lambda x, y: np.where(x < y, x, y),
    "is_equal": lambda x, y: x == y,
    "not_equal": lambda x, y: x != y,
    "is_gt": lambda x, y: x > y,
    "is_ge": lambda x, y: x >= y,
    "is_lt": lambda x, y: x < y,
    "is_le": lambda x, y: x <= y,
    "logical_and": lambda x, y: (x != 0) & (y != 0),
    "logical_or": lambda x, y: (x != 0) | (y != 0),
    "logical_xor": lambda x, y: (x != 0) ^ (y != 0),
}


@pytest.mark.parametrize("op", BINARY)
@pytest.mark.parametrize("left", FORMATS)
def test_tensor_tensor(op: str, left: str) -> None:
    """Every arithmetic operator, each format against each, into float32 and bfloat16."""
    for i, right in enumerate(FORMATS):
        shape = SHAPES[i % len(SHAPES)]
        x, y = sample(shape, left, 1), sample(shape, right, 2)
        want = BINARY[op](x.astype(np.float64), y.astype(np.float64))
        for into in ("float32", "bfloat16"):
            got = compute("tensor_tensor", {"dst": (shape, into)}, {"data1": (x, left), "data2": (y, right)}, op=op)
            close(got["dst"], want, into)


@pytest.mark.parametrize("name", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_bits_against_python_integers(name: str) -> None:
    """Bitvec operators and shifts, element by element on unbounded integers cut to the width."""
    dt = dtype(name)
    width, shape = 8 * dt.itemsize, (16, 9)
    x, y = sample(shape, name, 3), (np.abs(sample(shape, "int16", 4).astype(np.int64)) % (width + 3)).astype(dt.numpy)
    mask = (1 << width) - 1
    formulas: dict[str, Callable[[int, int], int]] = {
        "bitwise_and": lambda a, b: a & b,
        "bitwise_or": lambda a, b: a | b,
        "bitwise_xor": lambda a, b: a ^ b,
        "left_shift": lambda a, b: a << b,
        "right_shift": lambda a, b: a >> b,
    }
    for op, formula in formulas.items():
        got = compute("tensor_tensor", {"dst": (shape, name)}, {"data1": x, "data2": y}, op=op)["dst"]
        for a, b, result in zip(x.ravel().tolist(), y.ravel().tolist(), got.ravel().tolist()):
            assert result & mask == formula(a & mask, b & mask) & mask, (op, a, b)


@pytest.mark.parametrize("kind", ["int32", "uint32"])
def test_integers_of_32_bits_are_exact(kind: str) -> None:
    """Sums, differences and products wrap at 32 bits; comparisons and extremes see every bit."""
    shape = (8, 40)
    x, y = sample(shape, kind, 5), sample(shape, kind, 6)
    for op in ("add", "subtract", "multiply", "max", "min", "is_gt", "is_equal"):
        got = compute("tensor_tensor", {"dst": (shape, kind)}, {"data1": x, "data2": y}, op=op)["dst"]
        formula = BINARY[op] if op not in ("max", "min") else {"max": max, "min": min}[op]
        for a, b, result in zip(x.ravel().tolist(), y.ravel().tolist(), got.ravel().tolist()):
            assert (int(formula(a, b)) - result) % (1 << 32) == 0, (op, a, b)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("shape", SHAPES)
def test_tensor_scalar(name: str, shape: tuple[int, ...]) -> None:
    """Two operators with a number and a value per row, every combination of sides."""
    x, rows = sample(shape, name, 1), sample((shape[0], 1), "float32", 2)
    wide, column = x.astype(np.float64), rows.astype(np.float64).reshape(-1, *(1,) * (len(shape) - 1))
    for reverse0 in (False, True):
        for reverse1 in (False, True):
            attrs = {
                "op0": "subtract",
                "operand0": 0.75,
                "reverse0": reverse0,
                "op1": "multiply",
                "reverse1": reverse1,
            }
            got = compute(
                "tensor_scalar", {"dst": (shape, "float32")}, {"data": (x, name), "operand1": rows}, **attrs
            )
            first = 0.75 - wide if reverse0 else wide - 0.75
            close(got["dst"], first * column, "float32", roundings=2)


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_scalar_tensor_tensor(name: str, shape: tuple[int, ...]) -> None:
    """(x - row) * y and y - x * row."""
    x, y, rows = sample(shape, name, 1), sample(shape, name, 2), sample((shape[0], 1), "float32", 3)
    wide, other = x.astype(np.float64), y.astype(np.float64)
    column = rows.astype(np.float64).reshape(-1, *(1,) * (len(shape) - 1))
    src = {"data": (x, name), "operand0": rows, "operand1": (y, name)}
    got = compute("scalar_tensor_tensor", {"dst": (shape, "float32")}, src, op0="subtract", op1="multiply")
    close(got["dst"], (wide - column) * other, "float32", roundings=2)
    attrs = {"op0": "multiply", "op1": "subtract", "reverse1": True}
    got = compute("scalar_tensor_tensor", {"dst": (shape, "float32")}, src, **attrs)
    close(got["dst"], other - wide * column, "float32", roundings=2, scale=np.abs(wide * column) + np.abs(other))


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("shape", SHAPES)
def test_tensor_reduce(name: str, shape: tuple[int, ...]) -> None:
    """Sums within N roundings of the sum of magnitudes, extremes exactly, over one, two and all free dimensions."""
    x = sample(shape, name, 1)
    wide = x.astype(np.float64)
    for axes in range(1, len(shape)):
        axis = tuple(range(len(shape) - axes, len(shape)))
        left = shape[: len(shape) - axes] if axes < len(shape) - 1 else (shape[0], 1)
        n = math.prod(shape[-axes:])
        got = compute("tensor_reduce", {"dst": (left, "float32")}, {"data": (x, name)}, axes=axes)["dst"]
        scale = np.abs(wide).sum(axis=axis).reshape(left)
        close(got, wide.sum(axis=axis).reshape(left), "float32", roundings=n, scale=scale)
        got = compute(
            "tensor_reduce", {"dst": (left, "float32")}, {"data": (x, name)}, axes=axes, op="max", negate=True
        )
        close(got["dst"], -wide.max(axis=axis).reshape(left), "float32", roundings=0)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16", "float8_e4m3", "float8_e5m2"])
@pytest.mark.parametrize(("k", "m", "n"), [(1, 1, 1), (128, 128, 512), (37, 5, 70), (128, 1, 33)])
def test_matmul(name: str, k: int, m: int, n: int) -> None:
    """Products of narrow formats are exact in float32, so only K additions round; float32 rounds products too."""
    x, y = sample((k, m), name, 1), sample((k, n), name, 2)
    wide = x.astype(np.float64).T, y.astype(np.float64)
    got = compute("nc_matmul", {"dst": ((m, n), "float32")}, {"stationary": (x, name), "moving": (y, name)})["dst"]
    close(got, wide[0] @ wide[1], "float32", roundings=k + 1, scale=np.abs(wide[0]) @ np.abs(wide[1]))


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int8"])
def test_transpose_keeps_values(name: str) -> None:
    """Every element moves, none changes; free dimensions are flattened."""
    x = sample((13, 2, 5), name)
    got = compute("nc_transpose", {"dst": ((10, 13), name)}, {"data": (x, name)})["dst"]
    for p in range(13):
        for f in range(10):
            assert got[f, p] == x.reshape(13, 10)[p, f]


def _phi(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


FUNCTIONS: dict[str, Callable[[float], float]] = {
    "copy": lambda x: x,
    "identity": lambda x: x,
    "square": lambda x: x * x,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "relu": lambda x: max(x, 0.0),
    "gelu": lambda x: x * _phi(x),
    "gelu_apprx_tanh": lambda x: x / (1 + math.exp(min(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3), 700))),
    "gelu_apprx_sigmoid": lambda x: x / (1 + math.exp(-1.702 * x)),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "tanh": math.tanh,
    "softplus": lambda x: math.log1p(math.exp(x)),
    "mish": lambda x: x * math.tanh(math.log1p(math.exp(x))),
    "erf": math.erf,
    "exp": math.exp,
    "log": math.log,
    "sin": math.sin,
    "arctan": math.atan,
    "sqrt": math.sqrt,
    "rsqrt": lambda x: x**-0.5,
    "reciprocal": lambda x: 1 / x,
    "sign": lambda x: math.copysign(1.0, x),
    "abs": abs,
}
DERIVATIVES = {
    "gelu_dx": "gelu",
    "gelu_apprx_tanh_dx": "gelu_apprx_tanh",
    "gelu_apprx_sigmoid_dx": "gelu_apprx_sigmoid",
    "silu_dx": "silu",
    "erf_dx": "erf",
}


def test_every_function_is_covered() -> None:
    """Each name of the table has a formula here."""
    assert set(FUNCTIONS) | set(DERIVATIVES) == set(ACTIVATIONS)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_round_once(name: str) -> None:
    """Within one unit in the last place of the formula over the published range, at most 30 from zero."""
    table = ACTIVATIONS[name]
    low, high = (-30.0, 30.0) if not table.magnitude else (table.low, 30.0)
    xs = np.linspace(max(low, table.low), min(high, table.high), 257).astype(np.float32)
    xs = xs[(xs >= table.low) & (xs <= table.high)]
    got = compute("activation", {"dst": ((1, xs.size), "float32")}, {"data": xs[None]}, op=name)["dst"][0]
    want = np.array([FUNCTIONS[name](float(x)) if x != 0 or name != "sign" else 0.0 for x in xs])
    close(got, want, "float32", roundings=2)


@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives(name: str) -> None:
    """The slope of the formula by central differences of step h.

    Their error is h**2 / 6 times the third derivative (below 10 here) plus the rounding of float64 over h.
    """
    h = 1e-5
    xs = np.linspace(-12, 12, 481).astype(np.float32)
    got = compute("activation", {"dst": ((1, xs.size), "float32")}, {"data": xs[None]}, op=name)["dst"][0]
    function = FUNCTIONS[DERIVATIVES[name]]
    want = np.array([(function(float(x) + h) - function(float(x) - h)) / (2 * h) for x in xs])
    assert np.abs(got - want).max() < 10 * h * h + 12 * 2.0**-52 / h + 2 * 2.0**-24


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("shape", SHAPES)
def test_activation_scale_bias_and_sum(name: str, shape: tuple[int, ...]) -> None:
    """tanh(scale * x + bias) with values per row; the sum of float32 results, whatever dst holds."""
    x, scale, bias = sample(shape, name, 1), sample((shape[0], 1), "float32", 2), sample((shape[0], 1), "bfloat16", 3)
    scale = scale / np.float32(64)
    column = (-1, *(1,) * (len(shape) - 1))
    product = x.astype(np.float64) * scale.astype(np.float64).reshape(column)
    want = np.tanh(product + bias.astype(np.float64).reshape(column))
    dst = {"dst": (shape, "bfloat16"), "reduce_res": ((shape[0], 1), "float32")}
    got = compute("activation", dst, {"data": (x, name), "scale": scale, "bias": (bias, "bfloat16")}, op="tanh")
    close(got["dst"], want, "bfloat16", roundings=3, scale=np.abs(product) + 4)
    n = math.prod(shape[1:])
    sums = want.reshape(shape[0], -1).sum(axis=1, keepdims=True)
    close(got["reduce_res"], sums, "float32", roundings=n * (n + 4), scale=np.abs(product).max() + 4)


@pytest.mark.parametrize("source", [*FORMATS, "float8_e4m3", "float8_e5m2", "int32"])
@pytest.mark.parametrize("into", [*FORMATS, "float8_e4m3", "float8_e5m2", "int32"])
def test_copies_and_transfers_cast_alike(source: str, into: str) -> None:
    """tensor_copy and dma_copy agree; a copy within a format keeps every bit, a widening one every value."""
    x = sample((5, 12), source)
    copied = compute("tensor_copy", {"dst": ((5, 3, 4), into)}, {"src": (x, source)})["dst"]
    moved = compute("dma_copy", {"dst": ((15, 4), into)}, {"src": (x, source)})["dst"]
    np.testing.assert_array_equal(copied.reshape(-1).view(np.uint8), moved.reshape(-1).view(np.uint8))
    if source == into or (ml_dtypes.finfo(np.float32).bits == 8 * dtype(into).itemsize and dtype(into).is_float):
        wide = x.astype(np.float32) if source != into else x
        np.testing.assert_array_equal(copied.reshape(5, 12), wide)


@pytest.mark.parametrize("shape", SHAPES)
def test_affine_patterns_against_loops(shape: tuple[int, ...]) -> None:
    """iota and affine_select, element by element."""
    steps = (3, -2, 5)[: len(shape) - 1]
    attrs = {"pattern": tuple(zip(steps, shape[1:])), "offset": -4, "channel_multiplier": 2}
    ramp = np.empty(shape, np.int64)
    for index in np.ndindex(*shape):
        ramp[index] = -4 + 2 * index[0] + sum(step * i for step, i in zip(steps, index[1:]))
    np.testing.assert_array_equal(compute("iota", {"dst": (shape, "int32")}, {}, **attrs)["dst"], ramp)
    x = sample(shape, "float32")
    for cmp_op, formula in (("greater_equal", ramp >= 0), ("is_lt", ramp < 0), ("not_equal", ramp != 0)):
        got = compute(
            "affine_select", {"dst": (shape, "float32")}, {"on_true": x}, cmp_op=cmp_op, on_false=-1.0, **attrs
        )
        np.testing.assert_array_equal(got["dst"], np.where(formula, x, np.float32(-1)))


def test_alu_codes_and_aliases_are_unique() -> None:
    """Simulators switch on codes: no two operators or functions share one."""
    for table in (ALU, ACTIVATIONS):
        codes = [entry.code for entry in table.values()]
        assert len(set(codes)) == len(codes)
