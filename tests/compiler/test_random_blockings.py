# SPDX-License-Identifier: Apache-2.0
"""Products in blockings that nobody would choose, with any number of PSUM's banks, and epilogues whose tiles wait for
each other: what the results are does not hang on how they are cut, in either order."""

from __future__ import annotations

import random as chance
from functools import partial

import ml_dtypes
import numpy as np
import pytest
from compiled import build, execute_in_both_orders, random

from trnlab.compiler import routine_table, row_epilogues
from trnlab.compiler.lowerings import row_epilogue, sinks
from trnlab.compiler.lowerings.row_epilogue import Depth
from trnlab.errors import CapacityError
from trnlab.kernels import matmul
from trnlab.kernels.blocking import choose as choosing
from trnlab.numerics.dtypes import float32
from trnlab.program import Builder

CASES = 60
LONG_ROW = 4200  # of fewer elements rows stay on chip, and are no statistics
MOST_BYTES = 24 * 1024  # of a partition for blocks, at most: so little that they are many


def plain(b, z, beside):
    return (z,)


def waits(b, z, beside):
    """A chain of instructions that wait for each other, as an optimizer's update is."""
    for _ in range(4):
        z = b.multiply(b.add(z, beside), 0.5)
    return (z,)


def reads(b, z, beside):
    return (b.multiply(z, beside),)


def squares(b, z, beside):
    return z, b.reduce(b.multiply(z, z), (0, 1))


def sums(b, z, beside):
    """Largest elements and sums of exponentials of rows."""
    top = b.reduce(z, (1,), "maximum")
    grown = b.exponential(b.subtract(z, b.broadcast_in_dim(top, z.shape, (0,))))
    return z, top, b.reduce(grown, (1,))


def rows(b, z, beside):
    """A loop over whole rows, and a sum over rows."""
    z = b.add(z, beside)
    mean = b.multiply(b.reduce(z, (1,)), 1 / z.shape[1])
    apart = b.subtract(z, b.broadcast_in_dim(mean, z.shape, (0,)))
    return apart, b.reduce(apart, (0,)), b.reduce(z, (0,))


def expected(epilogue, z, beside):
    if epilogue is rows:
        apart = z + beside - (z + beside).mean(1)[:, None]
        return apart, apart.sum(0), (z + beside).sum(0)
    if epilogue is waits:
        for _ in range(4):
            z = (z + beside) * 0.5
        return (z,)
    if epilogue is squares:
        return z, np.square(z).sum()
    if epilogue is sums:
        top = z.max(1)
        return z, top, np.exp(z - top[:, None]).sum(1)
    return (z,) if epilogue is plain else (z * beside,)


def any_blocking(rng, problem, budget, chip, followed=True):
    """One of all blockings that fit in a part of SBUF. Raises CapacityError where none does."""
    if problem.accumulators < 1:
        raise CapacityError("no bank is left for results", code="TRN502")
    for room in (min(budget, MOST_BYTES), budget):
        many = [choosing._candidates(problem, room, lhs_resident) for lhs_resident in (True, False)]
        found = [choosing._picked(each, n) for each in many for n in range(len(each.depth))]
        if found:
            return choosing._deeper(rng.choice(found), problem, room)
    raise CapacityError("no blocks fit", code="TRN501")


class FewBanks(Builder):
    """A builder with a part of PSUM."""

    number = 8

    def __init__(self, *given, banks=None, **more):
        super().__init__(*given, banks=banks or self.number, **more)


@pytest.mark.parametrize("case", range(CASES))
def test_results_do_not_hang_on_blocks(case, monkeypatch):
    rng = chance.Random(case)
    epilogue, turned = rng.choice([plain, waits, waits, reads, squares, sums]), [rng.random() < 0.5 for _ in range(2)]
    m, k = (rng.choice([1, 96, 128, 200, 384, 640]) for _ in range(2))
    n = LONG_ROW if epilogue is sums else rng.choice([130, 512, 700, 1300])
    FewBanks.number = rng.choice([8, 6, 4, 3] if any(turned) or 1 in (m, k) else [8, 8, 6, 4, 3, 2, 1])
    dtype = rng.choice([np.float32, np.float32, ml_dtypes.bfloat16])
    x = random(*((m, k) if turned[0] else (k, m)), seed=case).astype(dtype)
    y = (random(*((n, k) if turned[1] else (k, n)), seed=case + 1) / np.sqrt(k, dtype=np.float32)).astype(dtype)
    beside = random(m, n, seed=case + 2)
    monkeypatch.setattr(routine_table, "Builder", FewBanks)
    monkeypatch.setattr(matmul, "choose", partial(any_blocking, rng))
    monkeypatch.setattr(sinks, "least_seconds", lambda *given: 1.0)  # room for one more tile, where there is

    def function(b, x, y, beside):
        z = b.dot_general(x, y, ((int(turned[0]),), (int(turned[1]),)), dt=float32)
        return epilogue(b, z, beside)

    graph = build(function, x, y, beside)
    found = execute_in_both_orders(graph, [x, y, beside], chip=rng.choice(["trn1", "trn2"]))
    left, right = (v.astype(np.float64) for v in (x, y))
    z = (left if turned[0] else left.T) @ (right.T if turned[1] else right)
    for got, want in zip(found, expected(epilogue, z, beside), strict=True):
        error = np.abs(np.asarray(got, np.float64).reshape(np.shape(want)) - want)
        assert (error <= 2e-5 * np.abs(want) + 3e-5).all(), (epilogue.__name__, error.max())


@pytest.mark.parametrize("case", range(CASES // 2))
def test_nor_do_those_of_loops_over_rows(case, monkeypatch):
    """Any number of rows open, and of those that wait; sums on the PE array where banks are left, or on GpSimdE."""
    rng = chance.Random(case)
    turned, depth = [rng.random() < 0.5 for _ in range(2)], Depth(rng.randint(1, 4), rng.randint(1, 3))
    m, k = rng.choice([1024, 1100, 1290]), rng.choice([96, 200, 384])
    n = rng.choice([768, 1000, 1300])
    FewBanks.number = rng.choice([8, 8, 7, 6, 5])
    dtype = rng.choice([np.float32, ml_dtypes.bfloat16])
    x = random(*((m, k) if turned[0] else (k, m)), seed=case).astype(dtype)
    y = (random(*((n, k) if turned[1] else (k, n)), seed=case + 1) / np.sqrt(k, dtype=np.float32)).astype(dtype)
    beside = random(m, n, seed=case + 2)
    monkeypatch.setattr(routine_table, "Builder", FewBanks)
    monkeypatch.setattr(row_epilogue, "DEPTHS", (depth,))
    monkeypatch.setattr(row_epilogues, "_pays", lambda candidate, chip: True)
    monkeypatch.setattr(matmul, "choose", partial(any_blocking, rng))

    def function(b, x, y, beside):
        z = b.dot_general(x, y, ((int(turned[0]),), (int(turned[1]),)), dt=float32)
        return rows(b, z, beside)

    graph = build(function, x, y, beside)
    found = execute_in_both_orders(graph, [x, y, beside])
    left, right = (v.astype(np.float64) for v in (x, y))
    z = (left if turned[0] else left.T) @ (right.T if turned[1] else right)
    for got, want in zip(found, expected(rows, z, beside), strict=True):
        error = np.abs(np.asarray(got, np.float64) - want)
        assert (error <= 2e-5 * np.abs(want) + (3e-5 if want.ndim > 1 else 2e-3)).all(), error.max()
