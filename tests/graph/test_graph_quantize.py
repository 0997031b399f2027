# SPDX-License-Identifier: Apache-2.0
"""Products in FP8 and MX: what the graph says they are, against ml_dtypes, and what the chip makes of them, against
the graph, over values that break formats."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from trnlab import chips
from trnlab.frontends.common.engine import DeviceEngine, InterpreterEngine
from trnlab.frontends.common.formats import begin
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.interpret import interpret
from trnlab.graph.loops import Body, LoopInput, Write
from trnlab.graph.passes import quantize as quantizing
from trnlab.graph.passes import scales
from trnlab.graph.passes.quantize import quantize
from trnlab.numerics.dtypes import bfloat16, float8_e4m3, float8_e4m3fn, float8_e5m2, float32
from trnlab.precision import ModulePrecision
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
    done = quantize(
        b.graph, lambda op: ModulePrecision(format, scaling), lambda v: gradient and v is x, e4m3, history=4
    )
    graph = b.build()
    begin(graph, done)
    return graph, done.state.shape[0] if done.state is not None else 0


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


def scaled(value, amax, fmt=ml_dtypes.float8_e4m3):
    """What a value is after it was cut with a scale made of a largest magnitude, and multiplied back."""
    scale = np.float32(ml_dtypes.finfo(fmt).max) / np.float32(max(amax, 1e-12))
    return cast(value, scale, fmt)[0] / np.float64(scale)


def test_delayed_scales_follow_the_steps_before() -> None:
    """The first step scales by what it sees; later ones by the largest of the history, which never holds an
    infinity."""
    rng = np.random.default_rng(2)
    graph, count = product(8, 16, 8)
    assert count == 2
    history = np.zeros((2, 4), np.float32)
    amaxes = []
    for step in range(6):
        x, w = values(rng, (8, 16), hostile=False) * 2**step, values(rng, (16, 8), hostile=False)
        if step == 3:
            x[2, 2] = np.inf
        seen = [np.abs(x).max() if step != 3 else amaxes[-1][0], np.abs(w).max()]
        got, history = interpret(graph if step else graph.start.graph, [x, w, history])
        most = np.max(amaxes[-4:], axis=0) if step else seen
        want = scaled(x, most[0]) @ scaled(w, most[1])
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6 * np.abs(want).max())
        amaxes.append(seen)
        recent = np.array(amaxes[-4:][::-1]).T  # the operands in the order of their rows: 8 of x, 16 of w
        np.testing.assert_array_equal(history[:, : recent.shape[1]], recent)


@pytest.mark.parametrize("engine", [InterpreterEngine, DeviceEngine])
def test_a_program_begins_with_what_it_sees_and_goes_on_with_its_history(engine) -> None:
    """Through the engines that run programs: the state is zero once, and an operand of 1e-6 does not vanish."""
    graph, _ = product(8, 16, 8, gradient=True)
    x, w = np.full((8, 16), 1e-6, np.float32), np.ones((16, 8), np.float32)
    history = np.zeros((2, 4), np.float32)
    with session.activate(session.Session(chips.target("trn2"), "fp32")):
        run = engine().compile(graph)
        first = run([x, w, history])[0].copy()
        assert history[0, 0] == np.float32(1e-6)
        second = run([x * 0.5, w, history])[0]
    np.testing.assert_allclose(first, 1.6e-5, rtol=1e-5)
    np.testing.assert_allclose(second, 0.8e-5, rtol=1e-5)
    np.testing.assert_array_equal(history[0], np.float32([0.5e-6, 1e-6, 0, 0]))


def test_an_operand_of_zeros_or_infinities_has_a_scale_all_the_same() -> None:
    graph, _ = product(4, 8, 4)
    for bad in (0.0, np.inf, np.nan):
        x, w = np.ones((4, 8), np.float32), np.ones((8, 4), np.float32)
        x[:] = bad if bad == 0.0 else x
        x[0, 0] = bad
        got, history = interpret(graph.start.graph, [x, w, np.zeros((2, 4), np.float32)])
        assert np.isnan(got[0]).all() if np.isnan(bad) else np.isfinite(got).all()
        assert np.isfinite(history).all()


def batched(shapes, numbers, batch, scaling, x_is_gradient=True):
    b = GraphBuilder("batched")
    x, w = (b.input(name, shape, float32) for name, shape in zip("xw", shapes))
    b.output(b.dot_general(x, w, numbers, batch, dt=float32))
    choose = lambda op: ModulePrecision("fp8", scaling)  # noqa: E731
    quantize(b.graph, choose, lambda v: x_is_gradient and v is x, float8_e4m3)
    return b.build()


def along(x, axes, fmt):
    """Each run of elements along some axes, scaled by its own largest magnitude, cut, and multiplied back."""
    amax = np.maximum(np.abs(x).max(axis=axes, keepdims=True), np.float32(1e-12))
    scale = np.float32(ml_dtypes.finfo(fmt).max) / amax
    return cast(x, scale, fmt)[0] / scale.astype(np.float64)


@pytest.mark.parametrize("scaling", ["tensor", "row"])
@pytest.mark.parametrize(
    ("spec", "shapes", "numbers", "batch"),
    [
        ("bij,bjk->bik", ((3, 20, 24), (3, 24, 10)), ((2,), (1,)), ((0,), (0,))),
        ("jbi,bkj->bik", ((24, 3, 20), (3, 10, 24)), ((0,), (2,)), ((1,), (0,))),
        ("aibj,bjak->abik", ((2, 9, 3, 16), (3, 16, 2, 5)), ((3,), (1,)), ((0, 2), (2, 0))),
        ("ijk,jkl->il", ((9, 4, 6), (4, 6, 7)), ((1, 2), (0, 1)), ((), ())),
    ],
)
def test_batches_and_several_summed_dimensions(spec, shapes, numbers, batch, scaling) -> None:
    rng = np.random.default_rng(6)
    x, w = (values(rng, shape, hostile=False) for shape in shapes)
    graph = batched(shapes, numbers, batch, scaling)
    assert {v.dtype.itemsize for op in graph.ops if op.name == "dot_general" for v in op.operands} == {1}
    axes = [tuple(n) if scaling == "row" else None for n in numbers]
    sides = [along(v, a, f) for v, a, f in zip((x, w), axes, (ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3))]
    want = np.einsum(spec, *sides)
    bound = 3e-6 * np.einsum(spec, *map(np.abs, sides))
    (got,), (run,) = interpret(graph, [x, w]), on_chip(graph, [x, w], "trn2")
    assert (np.abs(got - want) <= bound).all()
    assert (np.abs(run - got) <= bound).all()


@pytest.mark.parametrize("chip", ["trn1", "trn2", "trn3"])
def test_convolutions_are_quantized_as_products_are(chip) -> None:
    """Against a convolution of the cut operands in float64, with stride, padding and groups."""
    rng = np.random.default_rng(7)
    x, w = values(rng, (2, 8, 9, 9), hostile=False), values(rng, (6, 4, 3, 3), hostile=False)
    b = GraphBuilder("convolution")
    attrs = {
        "window_strides": (2, 1),
        "lhs_dilation": (1, 1),
        "rhs_dilation": (1, 1),
        "padding_low": (1, 1),
        "padding_high": (1, 1),
        "window_reversal": False,
        "feature_group_count": 2,
        "batch_group_count": 1,
    }
    given = b.input("x", x.shape, float32), b.input("w", w.shape, float32)
    b.output(b.op("convolution", *given, **attrs, dtype=float32, precision="DEFAULT"))
    e4m3 = float8_e4m3fn if chip == "trn3" else float8_e4m3
    done = quantize(b.graph, lambda op: ModulePrecision("fp8", "tensor"), lambda v: False, e4m3)
    graph = b.build()
    assert done.counts["fp8"] == 1
    cut = [torch.from_numpy(along(v, None, e4m3.numpy)) for v in (x, w)]
    want = F.conv2d(*cut, stride=(2, 1), padding=1, groups=2).numpy()
    bound = 3e-6 * F.conv2d(*map(torch.abs, cut), stride=(2, 1), padding=1, groups=2).numpy()
    (got,), (run,) = interpret(graph, [x, w]), on_chip(graph, [x, w], chip)
    assert (np.abs(got - want) <= bound).all()
    assert (np.abs(run - got) <= bound).all()


def test_rounds_of_a_loop_scale_by_what_they_see() -> None:
    """h = h @ w five times: in FP8 each time, against the same in NumPy; there is no state."""
    inner = GraphBuilder("round")
    h, w = inner.input("h", (4, 16), float32), inner.input("w", (16, 16), float32)
    inner.output(inner.dot_general(h, w, ((1,), (0,)), dt=float32))
    b = GraphBuilder("loop")
    given = [b.input("h", (4, 16), float32), b.input("w", (16, 16), float32)]
    body = Body(inner.build(), 5, (LoopInput(0, carry=0), LoopInput(1)), (Write(),))
    b.output(b.append("loop", given, {"body": body}).results[0])
    done = quantize(b.graph, lambda op: ModulePrecision("fp8"), lambda v: False, float8_e4m3)
    graph = b.build()
    assert done.state is None
    assert done.counts["fp8"] == 1
    rng = np.random.default_rng(8)
    x, w = rng.standard_normal((4, 16)).astype(np.float32), rng.standard_normal((16, 16)).astype(np.float32)
    want = x
    for _ in range(5):
        sides = along(want, None, ml_dtypes.float8_e4m3), along(w, None, ml_dtypes.float8_e4m3)
        want = (sides[0] @ sides[1]).astype(np.float32)
    (got,), (run,) = interpret(graph, [x, w]), on_chip(graph, [x, w], "trn2")
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
    np.testing.assert_array_equal(np.isfinite(run), True)
    np.testing.assert_allclose(run, got, rtol=1e-4, atol=1e-4 * np.abs(want).max())


def test_what_has_no_such_form_is_left_and_told() -> None:
    b = GraphBuilder("vector")
    x, y = b.input("x", (8, 8), float32), b.input("y", (8,), float32)
    b.output(b.dot_general(x, y, ((1,), (0,)), dt=float32))
    before = [op.name for op in b.graph.ops]
    done = quantize(b.graph, lambda op: ModulePrecision("fp8"), lambda v: False, float8_e4m3)
    assert [op.name for op in b.graph.ops] == before
    assert not b.graph.aliases
    assert done.left == {("a product", "an operand is a vector"): 1}


@pytest.mark.parametrize("chip", ["trn1", "trn2"])
def test_the_largest_of_each_row_is_taken_as_a_product_passes(chip) -> None:
    """In the product's own loop, over rows and columns that divide nothing, NaN and infinities among them."""
    b = GraphBuilder("rows")
    x, w = b.input("x", (300, 70), float32), b.input("w", (70, 1100), float32)
    y = b.dot_general(x, w, ((1,), (0,)), dt=float32)
    b.output(y)
    b.output(b.reduce(b.abs(y), (1,), "maximum"))
    b.output(b.reduce(y, (1,), "minimum"))
    graph = b.build()
    rng = np.random.default_rng(9)
    given = [rng.standard_normal((300, 70)).astype(np.float32), rng.standard_normal((70, 1100)).astype(np.float32)]
    given[0][3, 0], given[0][200, 5] = np.inf, np.nan
    now = session.Session(chips.target(chip), "fp32")
    executable = device.obtain(graph, now)
    assert len(executable.program.calls) == 1, "nothing is read again"
    y, most, least = on_chip(graph, given, chip)
    np.testing.assert_array_equal(most, np.abs(y).max(axis=1))
    np.testing.assert_array_equal(least, y.min(axis=1))


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


@pytest.mark.parametrize("kind", [float8_e4m3, float8_e5m2])
@pytest.mark.parametrize("amax", [1e-12, 2.9e-7, 0.37, 1.0, 240.0, 3.3e38, 3.4e38])
def test_bfloat16_is_cut_before_it_is_scaled_and_nothing_changes(kind, amax):
    """All 65,536 values, NaN, infinities and subnormals among them, against cutting in float32 after it was scaled;
    by the interpreter, and by the compiled program. Scales are of magnitudes from the smallest to the largest."""
    every = np.arange(1 << 16, dtype=np.uint16).view(bfloat16.numpy).reshape(128, 512)
    b = GraphBuilder("cut")
    x, most = b.input("x", every.shape, bfloat16), b.input("amax", (), float32)
    scale = b.divide(scales.largest(kind), most)
    bounds = scales.bounds_of(scale, scales.largest(kind), b)
    b.output(quantizing._cut_first(b, x, scale, bounds, kind))
    b.output(quantizing._cut(b, b.convert(x, float32), b.broadcast_to(scale, x.shape), kind))
    graph, given = b.build(), [every, np.array(amax, np.float32)]
    with np.errstate(all="ignore"):
        found = interpret(graph, given)
    compiled = on_chip(graph, given, "trn2.3xlarge")
    for first, then in (found, compiled):
        np.testing.assert_array_equal(first.view(np.uint8), then.view(np.uint8))
