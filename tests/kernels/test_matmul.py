# SPDX-License-Identifier: Apache-2.0
"""Matmul: the right numbers for every shape, layout and format; what it moves, keeps busy and gives back."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.benchmarks.sinks import ViewSink
from trnlab.chips import catalog
from trnlab.errors import CapacityError
from trnlab.isa import BY_OPCODE
from trnlab.isa.base import Engine
from trnlab.kernels.blocking.choose import choose
from trnlab.kernels.blocking.problem import MatmulProblem
from trnlab.kernels.blocks import Sink, ViewSource
from trnlab.kernels.matmul import BatchedProduct, batch_matmul, matmul
from trnlab.kernels.view import full
from trnlab.numerics.dtypes import dtype
from trnlab.program.builder import Builder
from trnlab.sim.functional import Machine
from trnlab.sim.timing import time_routine

TRN1, TRN2 = catalog.get("trn1"), catalog.get("trn2")
LAYOUTS = [(lhs, rhs) for lhs in (False, True) for rhs in (False, True)]
# One, one past a tile, several tiles and a rest, in each of M, N, K.
SHAPES = [
    (1, 1, 1),
    (128, 512, 128),
    (1, 600, 1),
    (200, 1, 300),
    (129, 513, 129),
    (300, 700, 260),
    (257, 1030, 640),
    (700, 130, 1000),
]


def normal(*shape, kind="float32", seed=0):
    values = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return values.astype(dtype(kind).numpy)


def product_routine(m, n, k, layout, kind="float32", out="float32", chip=TRN1, limit=None):
    b = Builder("product", chip, sbuf_limit=limit)
    lhs = b.param("lhs", (k, m) if layout[0] else (m, k), kind)
    rhs = b.param("rhs", (k, n) if layout[1] else (n, k), kind)
    result = b.param("result", (m, n), out)
    free = b.sbuf_free
    matmul(
        b,
        ViewSource(full(lhs)),
        ViewSource(full(rhs)),
        ViewSink(full(result)),
        lhs_k_rows=layout[0],
        rhs_k_rows=layout[1],
    )
    assert b.sbuf_free == free, "the call must release its tiles"
    return b.build()


def execute(routine, *arrays):
    chip = catalog.get(routine.target)
    Machine(chip).call(routine, [np.ascontiguousarray(a) for a in arrays[:-1]] + [arrays[-1]])
    return arrays[-1]


def assert_close(got, expected, tolerance=1e-5):
    assert np.abs(got.astype(np.float64) - expected).max() <= tolerance * np.abs(expected).max()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_fp32_product_of_any_shape_and_layout(shape, layout):
    m, n, k = shape
    left, right = normal(m, k), normal(k, n, seed=1)
    for limit in (None, 40_000, 24_000):  # less SBUF: more blocks, more chunks of the contraction
        routine = product_routine(m, n, k, layout, limit=limit)
        got = execute(routine, left.T if layout[0] else left, right if layout[1] else right.T, np.zeros((m, n), "f4"))
        assert_close(got, left.astype(np.float64) @ right)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_long_contraction_adds_up_in_sbuf(layout):
    """Blocks too large for PSUM, contractions too long for SBUF: sums wait in SBUF between chunks."""
    m, n, k = 1100, 1500, 2500
    limit = 40_000
    assert choose(MatmulProblem(m, n, k, "float32", *layout), limit - 6144, TRN1).spill
    left, right = normal(m, k), normal(k, n, seed=1)
    routine = product_routine(m, n, k, layout, limit=limit)
    got = execute(routine, left.T if layout[0] else left, right if layout[1] else right.T, np.zeros((m, n), "f4"))
    assert_close(got, left.astype(np.float64) @ right)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_order_of_the_timeline_gives_the_same_bits(layout):
    """Dependencies hold all that program order implies: executed as the clock has it, nothing changes."""
    m, n, k = 500, 1100, 900
    left, right = normal(*((k, m) if layout[0] else (m, k))), normal(*((k, n) if layout[1] else (n, k)), seed=1)
    routine = product_routine(m, n, k, layout, limit=30_000)
    expected = execute(routine, left, right, np.zeros((m, n), "f4"))
    order, got = np.argsort(time_routine(routine, TRN1).start, kind="stable"), np.zeros((m, n), "f4")
    assert (np.diff(order) < 0).any()
    Machine(TRN1).call(routine, [left, right, got], order=order)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("chip", [TRN1, TRN2], ids=["trn1", "trn2"])
@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_16_bit_products_are_exact_and_summed_in_fp32(kind, layout, chip):
    """Products of 16-bit values are exact in fp32, so only the order of the sums differs from a float64 reference."""
    m, n, k = 300, 700, 515
    left, right = normal(m, k, kind=kind), normal(k, n, kind=kind, seed=1)
    routine = product_routine(m, n, k, layout, kind=kind, chip=chip, limit=20_000)
    got = execute(routine, left.T if layout[0] else left, right if layout[1] else right.T, np.zeros((m, n), "f4"))
    assert_close(got, left.astype(np.float64) @ right.astype(np.float64))


def test_result_is_cast_on_write():
    """bf16 keeps 8 bits: the result is within half a unit in the last place, 2^-9 of each value, of the fp32 one."""
    left, right = normal(130, 140), normal(140, 1100, seed=1)
    routine = product_routine(130, 1100, 140, (False, True), out="bfloat16")
    got = execute(routine, left, right, np.zeros((130, 1100), dtype("bfloat16").numpy)).astype(np.float64)
    expected = left.astype(np.float64) @ right
    assert (np.abs(got - expected) <= 2.0**-8 * np.abs(expected) + 1e-5).all()


def test_strided_views_as_operands_and_result():
    """Heads: q[b, t, h, d] @ k[b, t, h, d].T for one b and h, into a slice of a larger result; HBM bf16 to fp32."""
    batch, tokens, heads, width = 2, 150, 3, 40
    b = Builder("scores", TRN1)
    q = b.param("q", (batch, tokens, heads, width), "bfloat16")
    k = b.param("k", (batch, tokens, heads, width), "bfloat16")
    out = b.param("out", (batch, heads, tokens, tokens), "float32")
    items = [
        BatchedProduct(
            ViewSource(full(q)[i, :, h], dt="float32"),
            ViewSource(full(k)[i, :, h], dt="float32"),
            ViewSink(full(out)[i, h]),
        )
        for i in range(batch)
        for h in range(heads)
    ]
    batch_matmul(b, items, lhs_k_rows=False, rhs_k_rows=False)
    left = normal(batch, tokens, heads, width, kind="bfloat16")
    right = normal(batch, tokens, heads, width, kind="bfloat16", seed=1)
    got = execute(b.build(), left, right, np.zeros((batch, heads, tokens, tokens), "f4"))
    assert_close(got, np.einsum("bthd,bshd->bhts", left.astype("f8"), right.astype("f8")))


def test_rows_and_columns_of_several_dimensions():
    """A source whose rows are (batch, token) with gaps between batches, a sink whose columns are (head, width)."""
    b = Builder("gaps", TRN1)
    x, w = b.param("x", (3, 200, 96), "float32"), b.param("w", (96, 4 * 70), "float32")
    y = b.param("y", (4, 3 * 150, 70), "float32")
    source = ViewSource(full(x)[:, :150], rows=2)
    sink = ViewSink(full(y).permute(1, 0, 2))
    matmul(b, source, ViewSource(full(w)), sink, lhs_k_rows=False, rhs_k_rows=True)
    left, right = normal(3, 200, 96), normal(96, 280, seed=1)
    got = execute(b.build(), left, right, np.zeros((4, 450, 70), "f4"))
    expected = (left[:, :150].reshape(450, 96).astype("f8") @ right).reshape(450, 4, 70).transpose(1, 0, 2)
    assert_close(got, expected)


def test_epilogue_replaces_the_copy():
    b = Builder("relu", TRN1)
    x, w = b.param("x", (200, 64), "float32"), b.param("w", (64, 600), "float32")
    y = b.param("y", (200, 600), "float32")

    def relu(b, dst, acc, row, col):
        b.activation(dst=dst, data=acc, op="relu")

    sink = ViewSink(full(y), epilogue=relu)
    matmul(b, ViewSource(full(x)), ViewSource(full(w)), sink, lhs_k_rows=False, rhs_k_rows=True)
    left, right = normal(200, 64), normal(64, 600, seed=1)
    got = execute(b.build(), left, right, np.zeros((200, 600), "f4"))
    assert_close(got, np.maximum(left.astype("f8") @ right, 0))


class Coverage(Sink):
    """Counts how often each element of the result is delivered; writes nothing."""

    def __init__(self, m, n):
        self.seen = np.zeros((m, n), int)

    def store(self, b, acc, row, col):
        assert acc.partitions <= 128
        assert acc.free <= 512
        self.seen[row : row + acc.partitions, col : col + acc.free] += 1


@settings(max_examples=40, deadline=None)
@given(
    m=st.integers(1, 900),
    n=st.integers(1, 1800),
    k=st.integers(1, 1500),
    layout=st.sampled_from(LAYOUTS),
    limit=st.integers(26_000, 90_000),
)
def test_every_element_is_finished_exactly_once(m, n, k, layout, limit):
    b = Builder("cover", TRN2, sbuf_limit=limit)
    lhs = b.param("lhs", (k, m) if layout[0] else (m, k), "bfloat16")
    rhs = b.param("rhs", (k, n) if layout[1] else (n, k), "bfloat16")
    sink = Coverage(m, n)
    matmul(b, ViewSource(full(lhs)), ViewSource(full(rhs)), sink, lhs_k_rows=layout[0], rhs_k_rows=layout[1])
    assert (sink.seen == 1).all()


@settings(max_examples=60, deadline=None)
@given(
    m=st.integers(1, 9000),
    n=st.integers(1, 60_000),
    k=st.integers(1, 60_000),
    layout=st.sampled_from(LAYOUTS),
    kind=st.sampled_from(["float32", "bfloat16"]),
    budget=st.integers(50_000, 200_000),
)
def test_blocks_fit_in_sbuf_and_psum(m, n, k, layout, kind, budget):
    problem = MatmulProblem(m, n, k, kind, *layout)
    blocking = choose(problem, budget, TRN1)
    assert blocking.sbuf_bytes(problem.itemsize) <= budget
    if blocking.chunks > 1 and not blocking.spill:
        assert blocking.lhs.products * blocking.rhs.products <= problem.accumulators
    assert blocking.chunks * blocking.depth >= problem.k_tiles
    assert blocking.lhs.block * blocking.lhs.blocks >= m
    assert blocking.rhs.block * blocking.rhs.blocks >= n


def test_no_room_is_a_capacity_error():
    with pytest.raises(CapacityError, match="no room"):
        product_routine(512, 512, 512, (True, True), limit=9_000)


def hbm_bytes(routine):
    dma = np.flatnonzero(np.array([BY_OPCODE[int(code)].is_dma for code in routine.opcode]))
    return sum(routine.works[routine.work[i]].nbytes for i in dma)


def test_operands_that_fit_are_read_once():
    """8192 x 768 @ 768 x 2304 in bf16: the weights stay on chip, so all traffic is the operands and the result."""
    limit = TRN1.sbuf.usable_bytes_per_partition // 2
    routine = product_routine(8192, 2304, 768, (False, True), "bfloat16", "bfloat16", limit=limit)
    once = 2 * (8192 * 768 + 768 * 2304 + 8192 * 2304)
    assert hbm_bytes(routine) <= once + 2 * min(8192 * 768, 768 * 2304)


@pytest.mark.parametrize(
    ("shape", "layout", "busy"),
    [
        ((4096, 8192, 8192), (False, True), 0.85),
        ((4096, 8192, 8192), (True, True), 0.85),
        ((8192, 2304, 768), (False, True), 0.80),
        ((768, 3072, 8192), (True, True), 0.75),
    ],
)
@pytest.mark.parametrize("chip", [TRN1, TRN2], ids=["trn1", "trn2"])
def test_the_pe_array_is_kept_busy(shape, layout, busy, chip):
    """In half of SBUF: the share of the time, from the first instruction on, that matmuls occupy the PE array."""
    limit = chip.sbuf.usable_bytes_per_partition // 2
    routine = product_routine(*shape, layout, "bfloat16", "bfloat16", chip, limit)
    timeline = time_routine(routine, chip)
    matmuls = routine.opcode == next(code for code, instr in BY_OPCODE.items() if instr.name == "nc_matmul")
    assert (timeline.engine[matmuls] == Engine.TENSOR).all()
    active = (timeline.end - timeline.start)[matmuls].sum()
    assert active >= busy * (timeline.done.max() - timeline.startup)
