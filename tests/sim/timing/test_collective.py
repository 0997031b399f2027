# SPDX-License-Identifier: Apache-2.0
"""The time of collectives: against what is published, laws, and how they sit between the streams of a gang."""

from __future__ import annotations

import numpy as np
import pytest

from trnlab import chips, isa
from trnlab.collectives import Collective as Asked
from trnlab.fabric.world import World
from trnlab.isa.base import Work
from trnlab.isa.collectives.collective import CollectiveInstruction
from trnlab.isa.collectives.meeting import CorePlace
from trnlab.program import Builder
from trnlab.program.gang import GangMember, joined, program_of
from trnlab.sim.timing import summarise, time_program
from trnlab.sim.timing.collective import collective_time

TRN2 = chips.get("trn2")
NAMES = [name for name, instr in isa.REGISTRY.items() if isinstance(instr, CollectiveInstruction)]
SIZES = [2**n for n in range(8, 31)]


def microseconds(name, nbytes, ranks, span, chip=TRN2, cores=1):
    """`span`: cores from the first rank's to the last's, two of which are a rank."""
    group = tuple(np.linspace(0, span // 2 - 1, ranks).astype(int).tolist())
    groups = tuple(zip(group, (*group[1:], group[0]))) if "permute" in name else (group,)
    work = Work(f"collective.{name}", n=nbytes // cores, m=ranks, k=span, nbytes=nbytes, groups=groups)
    return sum(collective_time(work, chip)) / 1e6


def test_small_gathers_take_what_the_vendors_tool_printed():
    """6.2 us for 1 KiB over 32 ranks, 10 us over 8, on an instance that is not named: within a factor of two."""
    assert 6.2 / 2 < microseconds("all_gather", 1024, 32, 64) < 6.2 * 2
    assert 10 / 2 < microseconds("all_gather", 1024, 8, 8) < 10 * 2


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("ranks", "span"), [(2, 2), (4, 8), (8, 64), (6, 12), (64, 128)])
def test_more_bytes_never_take_less_time(name, ranks, span):
    times = [microseconds(name, size, ranks, span) for size in SIZES]
    assert times == sorted(times)
    assert times[0] > TRN2.links.launch.value / 1000


@pytest.mark.parametrize("name", NAMES)
def test_two_cores_carry_no_less_and_more_chips_are_no_faster(name):
    for size in SIZES:
        assert microseconds(name, size, 4, 8, cores=2) <= microseconds(name, size, 4, 8)
        assert microseconds(name, size, 4, 8) <= microseconds(name, size, 4, 64)


def rank(number: int, adds: int):
    """Load, add so many times, store, all_reduce, add on, and use the result."""
    b = Builder("rank", TRN2)
    x, y, z = (b.param(name, (128, 512), "float32") for name in "xyz")
    t, u = b.tile((128, 512), "float32"), b.tile((128, 512), "float32")
    b.dma_copy(dst=t, src=x, queue=0)
    for _ in range(adds):
        b.tensor_tensor(dst=t, data1=t, data2=t, op="add")
    b.dma_copy(dst=y, src=t, queue=0)
    b.all_reduce(dst=z, src=y, groups=((0, 1),))
    b.dma_copy(dst=u, src=x, queue=0)
    b.dma_copy(dst=t, src=z, queue=0)
    routine = b.build()
    tensors = [routine.buffers[p] for p in routine.params]
    return program_of("ranks", [GangMember(CorePlace(number, 0), routine, (0, 1, 2))], tensors)


def test_a_collective_waits_for_the_last_rank_and_its_engine_does_not():
    gang = joined([rank(0, 1), rank(1, 40)])
    t = time_program(gang, TRN2)
    kinds = np.array([op.name == "all_reduce" for op in t.ops])[t.op]
    early, late = np.flatnonzero(kinds)
    assert t.start[early] < t.start[late]
    assert t.done[early] == t.done[late]
    assert t.begin[early] == t.end[late]
    assert t.held[early] == late
    assert t.start[early + 1] < t.start[late], "another transfer starts meanwhile"
    assert t.start[early + 2] >= t.done[early], "what reads the result waits"
    assert t.same_times(time_program(gang, TRN2))
    summary = summarise(t)
    assert sum(summary.critical.values()) == t.total


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
@pytest.mark.parametrize(("ranks", "span", "cluster"), [(64, 128, "trn2.48xlarge"), (128, 256, "2xtrn2.48xlarge")])
def test_kernels_and_programs_ask_the_network_for_the_same_schedule(name, ranks, span, cluster):
    """Ranks that fill their instances with both cores: what the trigger takes, and what the fabric says."""
    world = World(cluster, ranks)
    trigger = TRN2.sync.semaphore.value / 1000
    for size in (1 << 12, 1 << 20, 1 << 26, 1 << 30):
        wanted = world.cost(Asked(name, (tuple(range(ranks)),)), size).seconds * 1e6
        assert microseconds(name, size, ranks, span, cores=2) - trigger == pytest.approx(wanted, rel=1e-6)
