# SPDX-License-Identifier: Apache-2.0
"""Who triggers a kernel's transfers: by what they move, and what the kernel says itself."""

from __future__ import annotations

import numpy as np
import pytest

import trnlab.nki.neuronxcc as nki
import trnlab.nki.neuronxcc.language as nl
from trnlab import chips, policy
from trnlab.isa.base import Engine, Work
from trnlab.sim.timing import time_routine
from trnlab.sim.timing.cost import dma_cost
from trnlab.sim.timing.schedule import planned
from trnlab.sim.timing.summary import engine_use

X = np.zeros((512, 512), np.float32)


@pytest.fixture(autouse=True)
def one_by_one():
    """Transfers of several iterations are not merged."""
    with policy.use(coalesce=False):
        yield


def through_hbm(target: str, flags: str = ""):
    """A kernel that keeps something in HBM in between: two loads and two stores a block."""

    @nki.jit(platform_target=target, additional_compile_opt=flags)
    def kernel(x):
        out, kept = (nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm) for _ in range(2))
        for i in nl.affine_range(4):
            nl.store(kept[nl.ds(128 * i, 128)], nl.add(nl.load(x[nl.ds(128 * i, 128)]), 1.0))
        for i in nl.affine_range(4):
            nl.store(out[nl.ds(128 * i, 128)], nl.multiply(nl.load(kept[nl.ds(128 * i, 128)]), 2.0))
        return out

    return kernel


def triggers(kernel, chip, **options):
    """How many transfers each engine triggers, and on how many queues in all."""
    routine = kernel.trace(X).routine
    plan = planned(routine, chip, policy.SCHEDULED.with_options(**options))
    moved = [i for i in range(len(routine)) if plan.ops[plan.row_of[i]].queue >= 0]
    engines = [Engine(plan.engine[i]) for i in moved]
    return {e: engines.count(e) for e in set(engines)}, len(
        {(plan.engine[i], plan.ops[plan.row_of[i]].queue) for i in moved}
    )


def test_arguments_and_results_are_gpsimds():
    counted, queues = triggers(through_hbm("trn2"), chips.get("trn2"))
    assert counted == {Engine.GPSIMD: 8, Engine.SYNC: 4, Engine.SCALAR: 4}, "argument and result; loads; stores"
    assert queues == 3


def test_other_policies():
    assert triggers(through_hbm("trn2"), chips.get("trn2"), triggers="sync") == ({Engine.SYNC: 16}, 8)
    assert triggers(through_hbm("trn2", "--disable-dge"), chips.get("trn2")) == ({Engine.SYNC: 16}, 1)
    assert triggers(through_hbm("trn1"), chips.get("trn1")) == ({Engine.SYNC: 16}, 1)


def test_rings_of_later_chips_follow_each_other_at_once():
    """K0388: 129 transfers in 28 us. On NeuronCore-v2, and where descriptors are made, there is time between two."""
    trn1, trn2 = chips.get("trn1"), chips.get("trn2")
    ring, made = (Work(kind, n=512, m=128, nbytes=65536) for kind in ("dma.ring", "dma.copy"))
    between = [
        dma_cost(work, chip, Engine.SYNC, from_hbm=True, to_hbm=False).interval
        for work, chip in ((ring, trn2), (made, trn2), (made, trn1))
    ]
    assert between == [0, round(trn2.dma.queue_interval.value * 1000), 330_000]


def test_software_takes_a_transfer_up_late_but_not_slowly():
    """Profiles: GpSimdE's loads follow every 581 ns, its stores start 1.19 us after their operands, and its triggers
    are active for some 43 ns each."""
    chip = chips.get("trn2")
    figures = dict(chips.figures(chip))

    @nki.jit(platform_target="trn2")
    def kernel(x):
        out = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.add(nl.load(x[0:128]), nl.load(x[128:256])))
        return out

    t = time_routine(kernel.trace(X).routine, chip, policy=policy.SCHEDULED)
    first, second, store = np.flatnonzero(t.engine == Engine.GPSIMD)
    (add,) = np.flatnonzero(t.engine == Engine.VECTOR)
    waited = figures["dma.wake_gpsimd"].value + figures["sync.semaphore"].value
    assert t.start[second] - t.start[first] == figures["dma.trigger_gpsimd"].value * 1000
    assert t.start[store] - t.done[add] == waited * 1000
    use = next(use for use in engine_use(t) if use.name == "gpsimd")
    assert use.active == 3 * figures["dma.active_gpsimd"].value * 1000 < use.busy


@pytest.mark.parametrize("rows", [1, 128])
def test_a_trigger_costs_by_the_engines_that_it_feeds(rows: int) -> None:
    """Public kernels add vectors one and 128 elements at a time: 486 ns and 581 to 607 ns a transfer."""
    chip = chips.get("trn2")

    def total(count: int) -> int:
        @nki.jit(platform_target="trn2")
        def kernel(x):
            out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
            for i in nl.affine_range(count):
                nl.store(out[i], nl.load(x[i]))
            return out

        return time_routine(kernel.trace(np.zeros((count, rows, 1), np.float32)).routine, chip).total

    each = (total(200) - total(100)) / 200 / 1000
    assert each == pytest.approx({1: 486, 128: 581}[rows], rel=0.02)
