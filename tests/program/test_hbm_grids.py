# SPDX-License-Identifier: Apache-2.0
"""Tensors in HBM are cut where a kernel's stores begin and end: no dependency is lost, and false ones are gone."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from trnlab import chips
from trnlab.program import Builder
from trnlab.program.access import AP, hbm_view
from trnlab.program.routine import COL, Routine
from trnlab.program.text import operands_of
from trnlab.runtime.cache.codec import Encoder, decode
from trnlab.sim.timing import time_routine


def stores(*views: tuple[int, tuple[tuple[int, int], ...]], shape: tuple[int, ...]) -> Routine:
    """A routine that stores to these views (offset, dimensions) of one tensor, in an order that is left open."""
    b = Builder("stores", chips.get("trn2"))
    b.leaves_order = True
    out = b.param("out", shape, "float32")
    for offset, dims in views:
        target = hbm_view(out.buffer, offset, dims)
        tile = b.tile((target.partitions, target.free), "float32")
        b.memset(dst=tile, value=0.0)
        b.dma_copy(dst=target, src=tile)
    return b.build()


def ranges(routine: Routine) -> list[tuple[AP, range]]:
    """The operands in HBM with their slots."""
    found = []
    for i in range(len(routine)):
        rows = routine.operands[int(routine.first_operand[i]) : int(routine.first_operand[i + 1])]
        for record, (_, ap) in zip(rows, operands_of(routine, i)):
            if record[COL["is_hbm"]]:
                found.append((ap, range(record[COL["first"]], record[COL["last"]] + 1)))
    return found


def elements(ap: AP) -> set[int]:
    """The elements that an operand touches."""
    at = np.array([ap.offset // 4])
    for step, count in [(ap.partition_step // 4, ap.partitions), *ap.dims]:
        at = np.add.outer(at, step * np.arange(count)).ravel()
    return set(at.tolist())


@pytest.mark.parametrize("seed", range(20))
def test_no_dependency_is_lost(seed: int) -> None:
    """Whatever is stored where: operands with a common element have a common slot."""
    rng = np.random.default_rng(seed)
    views = []
    for _ in range(12):
        rows, columns = rng.integers(1, 17, 2)
        step = int(rng.choice([1, 2, 16, 17, 32]))
        pitch = int(rng.choice([1, 32, 64, 48]))
        free = ((step, int(columns)),) if step * (columns - 1) < 300 else ((1, int(columns)),)
        reach = pitch * (rows - 1) + free[0][0] * (columns - 1)
        views.append((int(rng.integers(0, 2048 - reach)), ((pitch, int(rows)), *free)))
    routine = stores(*views, shape=(64, 32))
    for (a, slots_a), (b, slots_b) in combinations(ranges(routine), 2):
        if elements(a) & elements(b):
            assert set(slots_a) & set(slots_b)


def test_stores_to_a_vector_do_not_share_slots() -> None:
    """Blocks of a vector."""
    routine = stores(*[(128 * i, ((1, 128), (1, 1))) for i in range(10)], shape=(1280,))
    assert not any(set(a) & set(b) for (_, a), (_, b) in combinations(ranges(routine), 2))


@pytest.mark.parametrize("width", [64, 512])
def test_stores_to_strips_do_not_share_slots(width: int) -> None:
    """Tiles of a matrix that has more columns than one of them."""
    views = [(r * 1024 + c, ((1024, 128), (1, width))) for r in (0, 128) for c in range(0, 1024, width)]
    routine = stores(*views, shape=(256, 1024))
    assert not any(set(a) & set(b) for (_, a), (_, b) in combinations(ranges(routine), 2))


def test_time_of_stores_to_a_vector() -> None:
    """They follow each other at the rate of their triggers, not at that of round trips to HBM."""
    chip = chips.get("trn2")
    times = [
        time_routine(stores(*[(128 * i, ((1, 128), (1, 1))) for i in range(n)], shape=(12800,)), chip).total
        for n in (50, 100)
    ]
    trigger = max(chip.dma.trigger.value, chip.dma.queue_interval.value) * 1000
    assert times[1] - times[0] == pytest.approx(50 * trigger, rel=0.1)


def test_grids_are_stored() -> None:
    """Executable files keep them."""
    routine = stores(*[(128 * i, ((1, 128), (1, 1))) for i in range(4)], shape=(512,))
    encoder = Encoder()
    tree = encoder.encode(routine)
    assert decode(tree, encoder.arrays).buffers == routine.buffers
