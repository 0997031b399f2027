# SPDX-License-Identifier: Apache-2.0
"""Products of groups of rows, each with a matrix of its own: as a loop of products over the groups has them, however
the rows are spread, in both orders of execution; and nothing of one group reaches another."""

from __future__ import annotations

import numpy as np
import pytest
from compiled import BF16, FP32, build, error, execute_in_both_orders, random

from trnlab import chips
from trnlab.compiler import compile
from trnlab.graph.flops import asked
from trnlab.graph.interpret import interpret
from trnlab.numerics.dtypes import bfloat16, float16, float32

TOLERANCE = {float32: FP32, bfloat16: BF16, float16: 2.0**-11}


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

    def both(b, x, w, y, ends):
        turned = b.grouped_dot(y, b.transpose(w, (0, 2, 1)), ends)
        return b.grouped_dot(x, w, ends), turned, b.grouped_outer(x, y, ends)

    graph = build(both, x, w, y, ends)
    got = execute_in_both_orders(graph, [x, w, y, ends], chip=chip)
    wanted = rows_times(x, w, ends), rows_times(y, w.transpose(0, 2, 1), ends), outer(x, y, ends)
    for one, want in zip(got, wanted):
        assert one.dtype == dtype.numpy
        assert error(one, want) <= TOLERANCE[dtype]
    assert "grouped" in calls(graph, chip)
    assert "dot" not in calls(graph, chip)


def test_gradients_of_turned_matrices_are_not_turned():
    x, y, ends = random(200, 40), random(200, 72, seed=1), np.array([50, 200], np.int32)
    graph = build(lambda b, x, y, ends: b.transpose(b.grouped_outer(x, y, ends), (0, 2, 1)), x, y, ends)
    (got,) = execute_in_both_orders(graph, [x, y, ends])
    assert error(got, outer(x, y, ends).transpose(0, 2, 1)) <= FP32
    assert {kind for kind in calls(graph) if kind != "rows"} <= {"grouped", "move"}
    program = compile(graph, chips.get("trn1"), {"precision": "fp32"})
    assert all(np.prod(t.shape) < got.size for t in program.tensors if t.kind == "temp")
