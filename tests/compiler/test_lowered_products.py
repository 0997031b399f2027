# SPDX-License-Identifier: Apache-2.0
"""dot_general in every form, and what its epilogue does to finished tiles, against PyTorch on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from compiled import build, check, error, execute, execute_in_both_orders, random

from trnlab import chips
from trnlab.compiler import compile
from trnlab.compiler.fusing.recompute import placed_late
from trnlab.graph.builder import GraphBuilder
from trnlab.numerics.dtypes import bfloat16, float8_e4m3, float8_e5m2, float32
from trnlab.program.routine import COL
from trnlab.sim.timing import time_program
from trnlab.stacks import RECORDED

BF16_PRODUCT = 2.0**-7
"""Each operand is rounded to bfloat16, half a step of 2^-8 relative: a term is off by at most 2 * 2^-9 plus a little,
and so is a sum of terms relative to the sum of their magnitudes. Sums of terms of random signs are smaller than that
by about the square root of their number, and so is the sum of their independent errors: 2^-8 of the result's largest
magnitude, and as much again for the tail."""


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (5, 7, 3), (130, 65, 33), (200, 300, 600), (129, 513, 129)])
def test_transposed_operands(left, right, sizes):
    m, k, n = sizes
    x, y = random(*((k, m) if left else (m, k))), random(*((n, k) if right else (k, n)), seed=1)
    contract = ((0 if left else 1,), (1 if right else 0,))
    check(
        lambda b, x, y: b.dot_general(x, y, contract),
        lambda x, y: (x.T if left else x) @ (y.T if right else y),
        x,
        y,
    )


@pytest.mark.parametrize("sizes", [(1, 1), (5, 7), (130, 300), (600, 129)])
def test_vectors(sizes):
    """Matrix times vector, vector times matrix, inner and outer product."""
    m, n = sizes
    check(
        lambda b, a, x, y: (
            b.dot_general(a, y, ((1,), (0,))),
            b.dot_general(x, a, ((0,), (0,))),
            b.dot_general(y, y, ((0,), (0,))),
            b.dot_general(x, y, ((), ())),
        ),
        lambda a, x, y: (a @ y, x @ a, y @ y, torch.outer(x, y)),
        random(m, n),
        random(m),
        random(n),
    )


def test_batches():
    """One and two batch dimensions, in the middle too, and several contracted dimensions."""
    x, y = random(2, 3, 65, 40), random(2, 3, 40, 77, seed=1)
    check(lambda b, x, y: b.matmul(x, y), torch.matmul, x, y)
    check(
        lambda b, x, y: b.dot_general(x, y, ((3,), (2,)), ((1,), (1,))),
        lambda x, y: torch.einsum("abmk,cbkn->bamcn", x, y),
        x,
        y,
    )
    check(
        lambda b, x, y: b.dot_general(x, y, ((0, 3), (0, 2)), ((1,), (1,))),
        lambda x, y: torch.einsum("abmk,abkn->bmn", x, y),
        x,
        y,
    )


def test_operands_that_are_views():
    """Heads split off a projection: slices, reshapes and transposes that no copy is made for, or one."""

    def function(b, x):
        q, k = (b.transpose(b.reshape(b.slice_dim(x, 2, i, i + 48), (2, 65, 3, 16)), (0, 2, 1, 3)) for i in (0, 48))
        scores = b.matmul(q, b.transpose(k, (0, 1, 3, 2)))
        return scores, b.reshape(b.transpose(b.matmul(scores, k), (0, 2, 1, 3)), (130, 48))

    def reference(x):
        q, k = (t.reshape(2, 65, 3, 16).transpose(1, 2) for t in x.split(48, 2))
        scores = q @ k.transpose(-1, -2)
        return scores, (scores @ k).transpose(1, 2).reshape(130, 48)

    check(function, reference, random(2, 65, 96))


@pytest.mark.parametrize("sizes", [(5, 7, 3), (130, 65, 33), (300, 200, 600)])
def test_epilogues(sizes):
    """Bias, gelu, residual, a factor per row, and several results of one product."""
    m, k, n = sizes

    def function(b, x, w, c, r, s):
        y = b.add(b.dot_general(x, w, ((1,), (1,))), c)
        return b.gelu(y), b.gelu_dx(y), b.add(y, r), b.multiply(y, s), b.maximum(b.multiply(y, 0.5), 0.0)

    def reference(x, w, c, r, s):
        y = F.linear(x, w, c).requires_grad_()
        slope = torch.autograd.grad(F.gelu(y).sum(), y)[0]
        y = y.detach()
        return F.gelu(y), slope, y + r, y * s, F.relu(0.5 * y)

    shapes = (m, k), (n, k), (n,), (m, n), (m, 1)
    check(function, reference, *(random(*shape, seed=i) for i, shape in enumerate(shapes)))


def test_a_shortcut_is_added_by_a_product():
    """What alone reads the shorter branch's product is computed with it: no loop over rows is left."""

    def function(b, x, w, v, u, s):
        deep = b.matmul(b.maximum(b.matmul(x, w), 0.0), v)
        return b.maximum(b.add(deep, b.multiply(b.matmul(x, u), s)), 0.0)

    def reference(x, w, v, u, s):
        return F.relu(F.relu(x @ w) @ v + (x @ u) * s)

    shapes = (300, 64), (64, 32), (32, 256), (64, 256), (256,)
    inputs = [random(*shape, seed=i) for i, shape in enumerate(shapes)]
    check(function, reference, *inputs)
    program = compile(build(function, *inputs), chips.get("trn1"), {})
    assert [call.label.partition(":")[0] for call in program.calls] == ["dot"] * 3


def test_what_no_result_hangs_on_is_placed_nowhere():
    """A reader of a product that nobody asked for is still in the graph, and is no reader of the product."""

    def function(b, x, w):
        product = b.matmul(x, w)
        b.multiply(b.reshape(product, (256, 300)), 2.0)
        return b.add(x, 1.0)

    assert placed_late(build(function, random(300, 64), random(64, 256))) == {}


def test_an_epilogue_over_a_batch():
    x, y, c = random(3, 65, 40), random(3, 40, 33, seed=1), random(33)
    check(lambda b, x, y, c: b.tanh(b.add(b.matmul(x, y), c)), lambda x, y, c: torch.tanh(x @ y + c), x, y, c)


def test_a_product_and_its_reductions():
    """Row and column sums of a result, as loops over what the product stores."""
    x, y = random(130, 65), random(65, 33, seed=1)
    check(
        lambda b, x, y: [b.reduce(b.tanh(b.matmul(x, y)), (d,)) for d in (0, 1)],
        lambda x, y: [torch.tanh(x @ y).sum(d) for d in (0, 1)],
        x,
        y,
    )


@pytest.mark.parametrize("sizes", [(5, 7, 3), (130, 65, 33), (300, 512, 600)])
def test_bfloat16(sizes):
    m, k, n = sizes
    x, w = random(m, k), random(k, n, seed=1)
    graph = build(lambda b, x, w: b.matmul(x, w), x, w)
    (exact,) = execute(graph, [x, w])
    (got,) = execute(graph, [x, w], precision="bf16")
    assert 0 < error(got, exact) <= BF16_PRODUCT
    rounded = [torch.from_numpy(t).bfloat16().float() for t in (x, w)]
    assert error(got, (rounded[0] @ rounded[1]).numpy()) <= 1e-5  # nothing else is rounded: sums are fp32


def test_chains_share_the_cast_operand():
    """x W1 W2 with the middle result used twice, in bfloat16 and in fp32."""
    x, w, v = random(130, 65), random(65, 40, seed=1), random(40, 33, seed=2)
    graph = build(lambda b, x, w, v: (lambda h: (b.matmul(h, v), b.add(h, 1.0)))(b.matmul(x, w)), x, w, v)
    exact, got = execute(graph, [x, w, v]), execute(graph, [x, w, v], precision="bf16")
    for a, e in zip(got, exact):
        assert error(a, e) <= 2 * BF16_PRODUCT


def test_second_generation():
    x, y, c = random(130, 65), random(65, 600, seed=1), random(600)
    check(
        lambda b, x, y, c: b.gelu(b.add(b.matmul(x, y), c)), lambda x, y, c: F.gelu(x @ y + c), x, y, c, chip="trn2"
    )


@pytest.mark.parametrize("side", ["lhs", "rhs", "both"])
def test_one_number_throughout_is_written_out_first(side):
    """As the gradient of a mean is, seen through views: a product would load it element by element."""
    number, x = random(1), random(256, 300)

    def function(b, number, x):
        wide = b.broadcast_in_dim(b.reshape(b.multiply(number, 3.0), ()), (2, 150, 512), ())
        wide = b.transpose(b.reshape(wide, (300, 512)), (1, 0))
        lhs = x if side == "rhs" else wide
        rhs = b.transpose(x, (1, 0)) if side == "lhs" else b.reshape(wide, (300, 512))
        return b.dot_general(lhs, rhs, ((1,), (0,)))

    def by_torch(number, x):
        wide = (number * 3).expand(512, 300)
        lhs = x if side == "rhs" else wide
        rhs = x.T if side == "lhs" else wide.reshape(300, 512)
        return lhs @ rhs

    check(function, by_torch, number, x)
    program = compile(build(function, number, x), chips.get("trn1"), {"precision": "fp32"})
    (product,) = (program.routines[call.routine] for call in program.calls if call.label.startswith("dot"))
    assert all(np.prod(each.shape) > 1 for each in product.buffers if each.kind == "param")


@pytest.mark.parametrize(
    "sizes", [(1, 2, 1), (130, 34, 60), (200, 256, 513), (129, 300, 129), (40, 1030, 33), (96, 77, 40)]
)
@pytest.mark.parametrize("chip", ["trn1", "trn2", "trn3"])
def test_fp8_is_transposed_as_it_is(sizes, chip):
    """All bytes that are numbers, of both formats; in the last rows the others, too. An odd contraction has no pairs
    that the array could turn as one number."""
    m, k, n = sizes
    formats, rng = (float8_e4m3, float8_e5m2), np.random.default_rng(k)
    b = GraphBuilder("product")
    x, y = b.input("x", (m, k), formats[0]), b.input("y", (n, k), formats[1])
    b.output(b.dot_general(x, y, ((1,), (1,)), dt=float32))
    graph, arrays = b.build(), []
    for rows, fmt in zip((m, n), formats):
        given = rng.integers(0, 256, (rows, k), np.uint8).view(fmt.numpy)
        strange = ~np.isfinite(given.astype(np.float32))
        strange[rows - rows // 8 :] = False
        arrays.append(np.where(strange, np.zeros_like(given), given))
    with np.errstate(invalid="ignore"):
        expected = arrays[0].astype(np.float64) @ arrays[1].astype(np.float64).T
    assert np.isfinite(expected).any()
    with np.errstate(invalid="ignore"):
        assert error(execute(graph, arrays, chip=chip)[0], expected) < 1e-6


def test_fp8_pairs_take_the_time_of_half_as_many_numbers():
    """A product of operands that both have to be transposed, against one of bf16 with half the contraction."""
    chip, times = chips.get("trn2"), []
    for fmt, k in ((float8_e4m3, 2048), (bfloat16, 1024)):
        b = GraphBuilder("product")
        x, y = b.input("x", (1024, k), fmt), b.input("y", (1024, k), fmt)
        b.output(b.dot_general(x, y, ((1,), (1,)), dt=float32))
        times.append(time_program(compile(b.build(), chip, {"precision": "bf16"}), chip).total)
    assert times[0] < 1.05 * times[1]


def test_loads_and_stores_come_several_at_a_time():
    """Where DMA engines turn round between them, and the product is too short to hide that; as they are recorded."""

    def turns(chip, k):
        x, y, beside = random(k, 512), random(k, 2048), random(512, 2048)
        graph = build(lambda b, x, y, z: b.multiply(b.dot_general(x, y, ((0,), (0,))), z), x, y, beside)
        routine = compile(graph, chips.get(chip), {"precision": "bf16", "order": RECORDED}).routines[-1]
        owner = routine.operands[:, COL["buffer"]]
        assert len(routine.params) == 4  # the third is loaded for the epilogue, the fourth is the result
        stored = owner[(owner == 2) | (owner == 3)] == 3
        return np.count_nonzero(stored[1:] != stored[:-1]), np.count_nonzero(stored)

    changes, tiles = turns("trn1", 128)
    assert changes < tiles
    for other in (("trn1", 4096), ("trn2", 128)):
        changes, tiles = turns(*other)
        assert changes >= 2 * tiles - 4


@pytest.mark.parametrize("chip", ["trn1", "trn2"])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("sizes", [(384, 96, 1536), (300, 128, 1100), (128, 64, 512), (130, 256, 2100)])
def test_tiles_that_wait_for_memory_together(sizes, turned, chip):
    """A short contraction and an operand of the epilogue that is as large as the result: tiles wait in PSUM for the
    next ones, and none is overwritten before it is read, whichever banks are left beside transposes."""
    m, k, n = sizes
    x, y, beside = random(*((m, k) if turned else (k, m))), random(k, n, seed=1), random(m, n, seed=2)

    def function(b, x, y, beside):
        return b.multiply(b.dot_general(x, y, ((1 if turned else 0,), (0,))), beside)

    graph = build(function, x, y, beside)
    (got,) = execute_in_both_orders(graph, [x, y, beside], chip=chip)
    wide = [a.astype(np.float64) for a in (x if turned else x.T, y, beside)]
    assert error(got, wide[0] @ wide[1] * wide[2]) < 1e-5


@pytest.mark.parametrize("chip", ["trn1", "trn2"])
@pytest.mark.parametrize("sizes", [(128, 8192, 2560), (384, 8192, 1536), (640, 4096, 5001), (128, 16384, 512 * 7)])
def test_tiles_do_not_wait_for_another_blocks_chunks(sizes, chip):
    """A contraction in chunks: banks come again for the next block while an odd tile waits for its partner in an
    epilogue of many ops, which is done with before."""
    m, k, n = sizes
    x, y, beside = random(k, m), random(k, n, seed=1) / np.sqrt(k, dtype=np.float32), random(m, n, seed=2)

    def function(b, x, y, beside):
        z = b.dot_general(x, y, ((0,), (0,)))
        for _ in range(4):
            z = b.multiply(b.add(z, beside), 0.5)
        return z

    graph = build(function, x, y, beside)
    (got,) = execute_in_both_orders(graph, [x, y, beside], chip=chip)
    want = x.T.astype(np.float64) @ y
    for _ in range(4):
        want = (want + beside) * 0.5
    assert error(got, want) < 1e-5


@pytest.mark.parametrize("chip", ["trn1", "trn2"])
@pytest.mark.parametrize(("sizes", "precision"), [((384, 96, 1536), "fp32"), ((512, 512, 512), "bf16")])
def test_tiles_that_wait_have_all_that_their_ops_read(sizes, precision, chip):
    """The gradient of a linear layer behind ReLU and dropout: two masks, of which a sweep that runs needs one at a
    time, and one that waits has both. What a mask hides is zero, whatever it was."""
    m, k, n = sizes
    x, y = random(m, k), random(k, n, seed=1)
    x[:3] = [[np.inf], [-np.inf], [np.nan]]
    kept, active = random(m, n, seed=2) > 0, random(m, n, seed=3) > 0
    kept[:3] = active[3:6] = False

    def function(b, x, y, kept, active):
        made = b.multiply(b.dot_general(x, y, ((1,), (0,))), 1.25)
        return b.select(active, b.select(kept, made, 0.0), 0.0)

    graph = build(function, x, y, kept, active)
    (got,) = execute_in_both_orders(graph, [x, y, kept, active], chip=chip, precision=precision)
    wide = x[3:].astype(np.float64) @ y * 1.25
    assert not got[:3].any()
    assert error(got[3:], np.where(kept & active, 1, 0)[3:] * wide) < {"fp32": 1e-5, "bf16": 2.0**-7}[precision]
