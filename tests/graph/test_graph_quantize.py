# SPDX-License-Identifier: Apache-2.0
"""Products in FP8 and MX: what the graph says they are, against ml_dtypes, and what the chip makes of them, against
the graph, over values that break formats."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from trnlab import chips
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.interpret import interpret
from trnlab.graph.passes.quantize import quantize
from trnlab.numerics.dtypes import bfloat16, float8_e4m3, float8_e4m3fn, float32
from trnlab.precision import Choice
from trnlab.runtime import device, session

HOSTILE = [0.0, -0.0, 1e-45, -1e-40, 2.0**-9, 2.0**-10, 1.5 * 2.0**-10, 239.9, 248.0, 1e25, -3e25, 17.5, 18.5, 1 / 3]


def values(rng, shape, hostile=True):
    """Normal numbers over many powers of two, and in the first row those that break formats."""
    x = rng.standard_normal(shape) * np.exp2(rng.integers(-12, 6, shape))
    if hostile:
        x[0, : len(HOSTILE)] = HOSTILE[: shape[1]]
    return x.astype(np.float32)


def product(m, k, n, scaling="delayed", format="fp8", e4m3=float8_e4m3, gradient=False, kind=float32, turned=(0, 0)):
    """The graph of x @ w, quantized. turned: whether x, w are given transposed. Returns it, and the states."""
    b = GraphBuilder("product")
    x = b.input("x", (k, m) if turned[0] else (m, k), kind)
    w = b.input("w", (n, k) if turned[1] else (k, n), kind)
    numbers = (0,) if turned[0] else (1,), (1,) if turned[1] else (0,)
    b.output(b.dot_general(x, w, numbers, dt=float32))
    done = quantize(b.graph, lambda op: Choice(format, scaling), {x} if gradient else set(), e4m3, history=4)
    return b.build(), len(done.states)


def on_chip(graph, inputs, chip):
    now = session.Session(chips.target(chip), "fp32")
    with session.activate(now):
        return device.Loaded(device.compile_graph(graph, now), now).run([np.array(x) for x in inputs])


def cast(x, scale, fmt):
    """Cut off at the largest value, and rounded as ml_dtypes does; NaN stays."""
    most = np.float32(ml_dtypes.finfo(fmt).max)
    with np.errstate(all="ignore"):
        return np.clip(x * scale, -most, most).astype(fmt).astype(np.float64), most


@pytest.mark.parametrize(
    ("e4m3", "fmt"), [(float8_e4m3, ml_dtypes.float8_e4m3), (float8_e4m3fn, ml_dtypes.float8_e4m3fn)]
)
@pytest.mark.parametrize("scaling", ["tensor", "row"])
def test_dynamic_scales_are_the_largest_value_over_the_largest_magnitude(scaling, e4m3, fmt) -> None:
    rng = np.random.default_rng(1)
    x, w = values(rng, (20, 24)), values(rng, (24, 16), hostile=False)
    graph, _ = product(20, 24, 16, scaling, e4m3=e4m3, gradient=True)
    axes = (1, 0) if scaling == "row" else (None, None)
    total = 1.0
    sides = []
    for value, axis, kind in ((x, axes[0], ml_dtypes.float8_e5m2), (w, axes[1], fmt)):
        amax = np.maximum(np.abs(value).max(axis=axis, keepdims=True), np.float32(1e-12))
        most = np.float32(ml_dtypes.finfo(kind).max)
        sides.append(cast(value, most / amax, kind)[0])
        total = total * (amax.astype(np.float64) / most)
    want = (sides[0] @ sides[1]) * total
    (got,) = interpret(graph, [x, w])
    bound = 2e-6 * (np.abs(sides[0]) @ np.abs(sides[1])) * total
    assert (np.abs(got - want) <= bound).all()


def test_delayed_scales_follow_the_steps_before() -> None:
    """The first step scales by one; later ones by the largest of the history, which never holds an infinity."""
    rng = np.random.default_rng(2)
    graph, count = product(8, 16, 8)
    assert count == 2
    histories = [np.zeros(4, np.float32), np.zeros(4, np.float32)]
    amaxes = []
    for step in range(6):
        x, w = values(rng, (8, 16), hostile=False) * 2**step, values(rng, (16, 8), hostile=False)
        if step == 3:
            x[2, 2] = np.inf
        got, *histories = interpret(graph, [x, w, *histories])
        recent = np.array(amaxes[-4:][::-1] or [[0.0, 0.0]])
        want = np.eye(1)
        sides = []
        for value, most_seen in zip((x, w), recent.max(axis=0)):
            scale = np.float32(240) / np.float32(most_seen) if most_seen else np.float32(1)
            sides.append(cast(value, scale, ml_dtypes.float8_e4m3)[0] / np.float64(scale))
        want = sides[0] @ sides[1]
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6 * np.abs(want).max())
        amaxes.append([np.abs(x).max() if step != 3 else amaxes[-1][0], np.abs(w).max()])
        for history, seen in zip(histories, np.array(amaxes[-4:][::-1]).T):
            np.testing.assert_array_equal(history[: len(seen)], seen)


def test_what_is_not_a_matrix_product_is_left_alone() -> None:
    b = GraphBuilder("batched")
    x, y = b.input("x", (2, 8, 8), float32), b.input("y", (2, 8, 8), float32)
    b.output(b.matmul(x, y))
    before = [op.name for op in b.graph.ops]
    quantize(b.graph, lambda op: Choice("fp8"), set(), float8_e4m3)
    assert [op.name for op in b.graph.ops] == before
    assert not b.graph.aliases


@pytest.mark.parametrize("chip", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize(
    ("size", "turned"), [((130, 300, 70), (0, 0)), ((64, 256, 520), (1, 0)), ((5, 140, 9), (0, 1))]
)
def test_the_chip_multiplies_fp8_as_the_graph_says(chip, size, turned) -> None:
    """Every element, with E5M2 against E4M3, over sizes that divide nothing; sums differ in their order alone."""
    m, k, n = size
    rng = np.random.default_rng(3)
    e4m3 = float8_e4m3fn if chip == "trn3" else float8_e4m3
    graph, _ = product(m, k, n, "tensor", e4m3=e4m3, gradient=True, turned=turned)
    x, w = values(rng, (m, k), hostile=False), values(rng, (k, n))
    x[1, 3], w[2, 0] = np.nan, np.inf
    inputs = [x.T.copy() if turned[0] else x, w.T.copy() if turned[1] else w]
    want, got = interpret(graph, inputs)[0], on_chip(graph, inputs, chip)[0]
    assert np.isnan(want).all(), "a NaN in an operand reaches its scale"
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    x[1, 3], w[2, 0], w[0] = 1.0, 2.0, 0.5
    inputs = [x.T.copy() if turned[0] else x, w.T.copy() if turned[1] else w]
    want, got = interpret(graph, inputs)[0], on_chip(graph, inputs, chip)[0]
    bound = 1e-6 * (np.abs(x) @ np.abs(w))
    assert (np.abs(got - want) <= bound).all()


@pytest.mark.parametrize("chip", ["trn1", "trn2", "trn3"])
def test_quantized_bits_are_those_of_ml_dtypes(chip) -> None:
    """Cut off and rounded on the chip, any float32 whatever: the same bits, the sign of zeros among them."""
    rng = np.random.default_rng(4)
    x = rng.integers(0, 2**32, (128, 64), dtype=np.uint32).view(np.float32).copy()
    x[:8] = rng.standard_normal((8, 64)) * np.exp2(rng.integers(-20, 12, (8, 64)))
    x[0, : len(HOSTILE)], x[1, :3] = HOSTILE, [np.nan, np.inf, -np.inf]
    e4m3 = float8_e4m3fn if chip == "trn3" else float8_e4m3
    for fmt in (e4m3, "float8_e5m2"):
        b = GraphBuilder("cast")
        kind = fmt if isinstance(fmt, str) else fmt.name
        most = float(ml_dtypes.finfo(getattr(ml_dtypes, kind)).max)
        b.output(b.convert(b.clamp(-most, b.multiply(b.input("x", x.shape, float32), 1.5), most), fmt))
        got = np.asarray(on_chip(b.build(), [x], chip)[0]).view(np.uint8)
        with np.errstate(all="ignore"):
            want = np.clip(x * np.float32(1.5), -most, most).astype(getattr(ml_dtypes, kind))
        number = ~np.isnan(x)
        np.testing.assert_array_equal(got[number], want.view(np.uint8)[number])
        assert np.isnan(got.view(want.dtype)[~number].astype(np.float32)).all()


def blocks_of_32(x, fmt):
    """x with its last dimension quantized in blocks of 32, scales one power of two above the OCP sample's."""
    most, emax = float(ml_dtypes.finfo(fmt).max), {"float8_e4m3fn": 8, "float8_e5m2": 15}[np.dtype(fmt).name]
    out = np.zeros(x.shape)
    for start in range(0, x.shape[1], 32):
        block = x[:, start : start + 32].astype(np.float64)
        amax = np.abs(block).max(axis=1, keepdims=True)
        power = np.where(amax > 0, np.floor(np.log2(np.where(amax > 0, amax, 1))) - (emax - 1), -127)
        scale = np.exp2(np.maximum(power, -127))
        rounded = np.clip(block / scale, -most, most).astype(np.float32).astype(fmt).astype(np.float64)
        out[:, start : start + 32] = rounded * scale
    return out


@pytest.mark.parametrize(
    ("size", "turned"),
    [((33, 160, 40), (0, 0)), ((128, 515, 9), (1, 0)), ((7, 1030, 600), (0, 1)), ((2, 6, 3), (1, 1))],
)
def test_mx_products_are_quantized_along_their_contraction(size, turned) -> None:
    """Forward E4M3 against a gradient's E5M2; the chip's sums are those of the definition but for their order."""
    m, k, n = size
    rng = np.random.default_rng(5)
    x, w = (values(rng, s, hostile=False).astype(bfloat16.numpy) for s in ((m, k), (k, n)))
    graph, count = product(m, k, n, format="mxfp8", gradient=True, kind=bfloat16, turned=turned)
    assert count == 0
    inputs = [x.T.copy() if turned[0] else x, w.T.copy() if turned[1] else w]
    left = blocks_of_32(x.astype(np.float32), ml_dtypes.float8_e5m2)
    right = blocks_of_32(w.astype(np.float32).T, ml_dtypes.float8_e4m3fn).T
    (want,), (got,) = interpret(graph, inputs), on_chip(graph, inputs, "trn3")
    bound = 1e-6 * (np.abs(left) @ np.abs(right)) + 1e-30
    assert (np.abs(want - left @ right) <= bound).all()
    assert (np.abs(got - want) <= 2 * bound).all()


def test_a_nan_spoils_its_block_in_mx() -> None:
    graph, _ = product(4, 64, 4, format="mxfp8", kind=bfloat16)
    x = np.ones((4, 64), bfloat16.numpy)
    x[1, 40] = np.nan
    (want,), (got,) = (
        run(graph, [x, np.ones((64, 4), x.dtype)]) for run in (interpret, lambda *a: on_chip(*a, "trn3"))
    )
    np.testing.assert_array_equal(np.isnan(want), np.arange(4)[:, None] == np.ones(4))
    np.testing.assert_array_equal(got, want)
