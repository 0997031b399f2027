# SPDX-License-Identifier: Apache-2.0
"""Products of groups of rows, each with a matrix of its own: as a loop of products over the groups has them, however
the rows are spread, in both orders of execution; and nothing of one group reaches another."""

from __future__ import annotations

import numpy as np
import pytest
from compiled import BF16, FP32, build, error, execute_in_both_orders, random

from trnlab import chips
from trnlab.compiler import compile
from trnlab.graph.flops import asked, model_flops
from trnlab.graph.interpret import interpret
from trnlab.isa.base import Engine
from trnlab.numerics.dtypes import bfloat16, float16, float32, int32
from trnlab.program import Builder, Call, Program, ProgramTensor
from trnlab.program.digest import matmul_flops
from trnlab.program.verify import verify_routine
from trnlab.sim.timing import time_program, time_routine

TOLERANCE = {float32: FP32, bfloat16: BF16, float16: 2.0**-11}
SPECIAL = np.array([np.inf, -np.inf, np.nan, -0.0, 0.0, 1e-40, 3e38, -3e38], np.float32)


def dot(b, x, w, ends):
    return b.op("trn.grouped_dot", x, w, ends, dtype=x.dtype)


def terms(b, x, y, ends):
    return b.op("trn.grouped_outer", x, y, ends, dtype=x.dtype)


def parts(ends, rows):
    """The rows of each group."""
    starts = [0, *ends[:-1]]
    return [slice(min(start, rows), min(end, rows)) for start, end in zip(starts, ends)]


def rows_times(x, w, ends):
    x, w = x.astype(np.float32), w.astype(np.float32)
    out = np.zeros((len(x), w.shape[2]), np.float32)
    with np.errstate(all="ignore"):
        for group, rows in enumerate(parts(ends, len(x))):
            out[rows] = x[rows] @ w[group]
    return out


def outer(x, y, ends):
    x, y = x.astype(np.float32), y.astype(np.float32)
    with np.errstate(all="ignore"):
        return np.stack([x[rows].T @ y[rows] for rows in parts(ends, len(x))])


def calls(graph, chip="trn1"):
    program = compile(graph, chips.get(chip), {"precision": "fp32"})
    return {call.label.split(":")[0] for call in program.calls}


def all_forms(b, x, w, y, ends):
    """Rows times matrices, times turned ones, and rows with each other."""
    turned = dot(b, y, b.transpose(w, (0, 2, 1)), ends)
    return dot(b, x, w, ends), turned, terms(b, x, y, ends)


def wanted(x, w, y, ends):
    return rows_times(x, w, ends), rows_times(y, w.transpose(0, 2, 1), ends), outer(x, y, ends)


# rows, ends, K, N
SHAPES = {
    "several items a group": (700, (300, 300, 650, 700), 200, 72),
    "all rows in one group": (300, (0, 300, 300), 64, 130),
    "none in any": (140, (0, 0), 40, 16),
    "rows of no group": (260, (20, 90), 72, 33),
    "groups within a block": (128, (1, 2, 3, 100), 128, 64),
    "fewer rows than groups": (5, (0, 1, 1, 1, 3, 3, 4, 5, 5), 130, 48),
    "one row": (1, (0, 1), 40, 24),
    "one group": (150, (150,), 16, 520),
    "ends beyond the rows": (96, (50, 200), 24, 40),
    "sums in slabs": (40, (13, 40), 300, 5000),
}


@pytest.mark.parametrize("chip", ["trn1", "trn2"])
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dtype", [float32, bfloat16])
def test_products_of_groups(name, dtype, chip):
    rows, ends, k, n = SHAPES[name]
    x, w = random(rows, k).astype(dtype.numpy), random(len(ends), k, n).astype(dtype.numpy)
    y, ends = random(rows, n, seed=1).astype(dtype.numpy), np.array(ends, np.int32)
    graph = build(all_forms, x, w, y, ends)
    for got, want in zip(execute_in_both_orders(graph, [x, w, y, ends], chip=chip), wanted(x, w, y, ends)):
        assert got.dtype == dtype.numpy
        assert error(got, want) <= TOLERANCE[dtype]
    assert "grouped" in calls(graph, chip)
    assert "dot" not in calls(graph, chip)


@pytest.mark.parametrize("name", SHAPES)
def test_the_definition(name):
    """Of the interpreter: every group's matrix with all rows, and those of others left out."""
    rows, ends, k, n = SHAPES[name]
    x, w, y, ends = random(rows, k), random(len(ends), k, n), random(rows, n, seed=1), np.array(ends, np.int32)
    x[0], w[-1, 0], y[-1] = np.inf, np.nan, -np.inf
    for got, want in zip(interpret(build(all_forms, x, w, y, ends), [x, w, y, ends]), wanted(x, w, y, ends)):
        assert error(got, want) <= FP32


@pytest.mark.parametrize("dtype", [float32, bfloat16, float16])
@pytest.mark.parametrize("name", ["several items a group", "rows of no group", "groups within a block", "one row"])
def test_nothing_of_a_group_reaches_another(name, dtype):
    """Each group has rows, and a matrix, of infinities and NaN in turn; rows of none have them, too."""
    rows, ends, k, n = SHAPES[name]
    for bad in range(len(ends) + 1):
        x, w, y = random(rows, k), random(len(ends), k, n), random(rows, n, seed=1)
        place = [*parts(ends, rows), slice(ends[-1], rows)][bad]
        rng = np.random.default_rng(bad)
        for v in (x, y):
            v[place] = rng.choice(SPECIAL, v[place].shape)
        if bad < len(ends):
            w[bad] = rng.choice(SPECIAL, (k, n))
        with np.errstate(all="ignore"):
            given = [v.astype(dtype.numpy) for v in (x, w, y)] + [np.array(ends, np.int32)]
        got = execute_in_both_orders(build(all_forms, *given), given)
        for one, want in zip(got, wanted(*given)):
            if one.ndim == 2:
                ours, theirs = np.delete(one, place, 0), np.delete(want, place, 0)
            else:
                ours, theirs = (np.delete(v, [bad] if bad < len(ends) else [], 0) for v in (one, want))
            assert np.isfinite(theirs).all()
            assert error(ours, theirs) <= TOLERANCE[dtype]
        assert not got[0][ends[-1] :].any()  # and no NaN either


def test_infinities_stay_where_they_belong():
    """In the group itself: whole rows of it, and places of the sums."""
    x, w, y, ends = random(300, 40), random(3, 40, 24), random(300, 24, seed=1), np.array([100, 130, 300], np.int32)
    x[110, 3], y[110, 5], w[1, 7, 9], w[1, 8, 9] = np.inf, 0.0, -np.inf, np.inf
    graph = build(all_forms, x, w, y, ends)
    for got, want in zip(execute_in_both_orders(graph, [x, w, y, ends]), wanted(x, w, y, ends)):
        assert not np.isfinite(want).all()
        assert error(got, want) <= FP32


def test_operands_that_lie_apart():
    """Parts of larger tensors, turned rows, matrices that are columns of others: views that transfers follow or that
    are copied."""
    x, w, ends = random(64, 200), random(3, 90, 2 * 48), np.array([70, 70, 200], np.int32)
    y = random(200, 130, seed=1)

    def cut(b, x, w, y, ends):
        x = b.transpose(x, (1, 0))
        first = dot(b, x, b.slice(w, (0, 0, 48), (3, 64, 96)), ends)
        turned = dot(b, b.slice(y, (0, 5), (200, 53)), b.transpose(b.slice_dim(w, 2, 0, 48), (0, 2, 1)), ends)
        return first, turned, terms(b, b.slice(y, (0, 100), (200, 130)), x, ends)

    got = execute_in_both_orders(build(cut, x, w, y, ends), [x, w, y, ends])
    turned = rows_times(y[:, 5:53], w[:, :, :48].transpose(0, 2, 1), ends)
    for one, want in zip(got, (rows_times(x.T, w[:, :64, 48:], ends), turned, outer(y[:, 100:], x.T, ends))):
        assert error(one, want) <= FP32


@pytest.mark.parametrize("order", [(1, 0, 2), (2, 0, 1), (1, 2, 0)])
def test_matrices_that_do_not_lie_one_behind_the_other(order):
    """They are copied first."""
    x, w, ends = random(200, 40), random(3, 40, 24), np.array([70, 70, 200], np.int32)
    laid = np.ascontiguousarray(w.transpose(*order))
    graph = build(lambda b, x, w, e: dot(b, x, b.transpose(w, tuple(np.argsort(order).tolist())), e), x, laid, ends)
    (got,) = execute_in_both_orders(graph, [x, laid, ends])
    assert error(got, rows_times(x, w, ends)) <= FP32


def scatters(fills):
    """A routine that writes two halves of a tensor by number, each in a place that its rows name."""
    b = Builder("scatters", chips.get("trn1"))
    out, index = b.param("out", (256, 512), float32), b.tile((128, 2), int32)
    b.dma_copy(dst=index, src=b.param("index", (128, 2), int32))
    rows = b.tile((128, 512), float32)
    b.memset(dst=rows, value=0.0)
    for i in range(2):
        b.dma_copy(
            dst=out, src=rows, index=index[:, i : i + 1], indirect="dst", fills=fills, engine=Engine.GPSIMD, queue=8
        )
    return b.build()


def test_scatters_that_fill_a_tensor_do_not_wait_for_each_other():
    """Others read what they leave, so they do; and a tensor that is not filled has to be there before."""
    chip = chips.get("trn1")
    ordered, filling = (time_routine(scatters(fills), chip) for fills in (False, True))
    assert ordered.start[-1] >= ordered.done[-2]
    assert filling.start[-2] <= filling.start[-1] < filling.done[-2]
    needs = [verify_routine(scatters(fills), chip).needs for fills in (False, True)]
    assert needs == [{0, 1}, {1}]


def test_a_tensor_is_filled_only_once_others_are_done_with_its_memory():
    """A call that fills waits for calls before it that read what was there."""
    chip = chips.get("trn1")
    b = Builder("reads", chip)
    tile = b.tile((128, 1024), float32)
    b.dma_copy(dst=tile, src=b.param("x", (256, 512), float32))
    b.dma_copy(dst=b.param("y", (128, 1024), float32), src=tile)
    tensors = [("out", (256, 512)), ("index", (128, 2)), ("y", (128, 1024))]
    made = tuple(
        ProgramTensor(
            i, name, shape, float32 if i != 1 else int32, 4 * int(np.prod(shape)), "input" if i < 2 else "output"
        )
        for i, (name, shape) in enumerate(tensors)
    )
    program = Program(
        "test", chip.name, (b.build(), scatters(True)), made, (Call(0, (0, 2)), Call(1, (0, 1))), (0, 1), (0, 2)
    )
    t = time_program(program, chip)
    first = t.calls[1].first
    assert (t.start[first + 2 :] >= t.done[0]).all()


def test_gradients_of_turned_matrices_are_not_turned():
    x, y, ends = random(200, 40), random(200, 72, seed=1), np.array([50, 200], np.int32)
    graph = build(lambda b, x, y, ends: b.transpose(terms(b, x, y, ends), (0, 2, 1)), x, y, ends)
    (got,) = execute_in_both_orders(graph, [x, y, ends])
    assert error(got, outer(x, y, ends).transpose(0, 2, 1)) <= FP32
    program = compile(graph, chips.get("trn1"), {"precision": "fp32"})
    assert all(np.prod(t.shape) < got.size for t in program.tensors if t.kind == "temp")


def test_products_are_narrowed_as_others_are():
    """In bf16, with the results in the format of the operands."""
    x, w, y, ends = random(150, 40), random(2, 40, 24), random(150, 24, seed=1), np.array([30, 150], np.int32)
    graph = build(all_forms, x, w, y, ends)
    narrow = [v.astype(bfloat16.numpy).astype(np.float32) for v in (x, w, y)]
    got = execute_in_both_orders(graph, [x, w, y, ends], precision="bf16")
    for one, want in zip(got, wanted(*narrow, ends)):
        assert one.dtype == np.float32
        assert error(one, want) <= FP32


def test_each_row_is_counted_once():
    """As operations of the model; of matrices, as many as there can be rows."""
    x, w, y = random(4, 16), random(64, 16, 32), random(4, 32)
    ends = np.minimum(np.arange(64), 4).astype(np.int32)
    graph = build(lambda b, x, w, ends: dot(b, x, w, ends), x, w, ends)
    assert model_flops(graph) == 2 * 4 * 16 * 32
    assert asked(graph).bytes == 4 * (x.size + y.size + 4 * 16 * 32 + ends.size)
    graph = build(lambda b, x, y, ends: terms(b, x, y, ends), x, y, ends)
    assert model_flops(graph) == 2 * 4 * 16 * 32
    assert asked(graph).bytes == 4 * (x.size + y.size + w.size + ends.size)


@pytest.mark.parametrize(("rows", "groups", "most"), [(2048, 8, 2.0), (4096, 8, 2.0), (8, 64, 8.0)])
def test_work_does_not_grow_with_groups(rows, groups, most):
    """The array multiplies little more than each row's own product; of few rows no more matrices come than rows."""
    x, w, ends = random(rows, 256), random(groups, 256, 256), np.arange(groups, dtype=np.int32)
    x, w = x.astype(bfloat16.numpy), w.astype(bfloat16.numpy)
    graph = build(lambda b, x, w, ends: dot(b, x, w, ends), x, w, ends)
    program = compile(graph, chips.get("trn1"), {"precision": "fp32"})
    done = sum(matmul_flops(program.routines[c.routine]) for c in program.calls if c.label.startswith("grouped"))
    assert model_flops(graph) <= done <= most * model_flops(graph)
