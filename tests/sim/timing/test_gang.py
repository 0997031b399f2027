# SPDX-License-Identifier: Apache-2.0
"""The time of cores that run together: aligned where they meet, otherwise as each alone."""

from __future__ import annotations

import numpy as np
import pytest

from trnlab import chips
from trnlab.isa.base import Engine
from trnlab.isa.collectives.meeting import CorePlace
from trnlab.program import Builder
from trnlab.program.gang import GangMember, program_of
from trnlab.program.routine import Program, Routine
from trnlab.sim.timing import estimate, outline_of, outline_program, summarise, time_pair, time_program, time_routine
from trnlab.timeline import CAUSES, Timeline, from_bytes

TRN2 = chips.get("trn2")
PEER = CAUSES.index("peer")


def stream(adds: int, meet: str = "") -> Routine:
    """Load, add so many times, meet the other core, store."""
    b = Builder("stream", TRN2)
    x, y = (b.param(name, (128, 512), "float32") for name in "xy")
    t, r = b.tile((128, 512), "float32"), b.tile((128, 512), "float32")
    b.dma_copy(dst=t, src=x, queue=0)
    b.dma_copy(dst=r, src=x, queue=1)
    for _ in range(adds):
        b.tensor_tensor(dst=t, data1=t, data2=t, op="add")
    b.dma_copy(dst=y, src=t, queue=0)
    if meet == "barrier":
        b.core_barrier(data=y)
    elif meet == "exchange":
        b.sendrecv(dst=r, src=t, send_to_rank=0, recv_from_rank=0, queue=0)
    b.dma_copy(dst=r, src=y, queue=0)
    b.tensor_tensor(dst=t, data1=t, data2=r, op="add")
    return b.build()


def gang(*routines: Routine) -> Program:
    members = [GangMember(CorePlace(0, core), r, (0, 1)) for core, r in enumerate(routines)]
    return program_of("pair", members, [routines[0].buffers[p] for p in routines[0].params])


def pair(meet: str, *adds: int) -> Program:
    routines = [stream(n, meet) for n in adds]
    if meet == "exchange":  # the first sends to the second and the other way round
        table = tuple(
            tuple((k, v if k not in ("send_to_rank", "recv_from_rank") else 1) for k, v in attrs)
            for attrs in routines[0].attr_table
        )
        object.__setattr__(routines[0], "attr_table", table)
    return gang(*routines)


def rows(timeline: Timeline, core: int, name: str) -> np.ndarray:
    kinds = np.array([op.name == name for op in timeline.ops])[timeline.op]
    return np.flatnonzero(kinds & (timeline.core_of() == core))


@pytest.mark.parametrize(("meet", "name"), [("barrier", "barrier"), ("exchange", "sendrecv")])
def test_both_start_to_meet_when_the_later_is_ready(meet, name):
    t = time_program(pair(meet, 1, 40), TRN2)
    early, late = rows(t, 0, name)[0], rows(t, 1, name)[0]
    assert t.start[early] == t.start[late]
    assert (t.cause[early], t.blocker[early]) == (PEER, late)
    assert t.cause[late] != PEER
    after = early + 1
    assert t.start[after] >= t.start[early]
    swapped = time_program(pair(meet, 40, 1), TRN2)
    assert swapped.total == t.total


def test_a_core_alone_takes_as_long_as_before_the_other_comes():
    """Up to the meeting each is timed as alone, to the picosecond; a slower partner delays what follows."""
    alone = time_routine(stream(40), TRN2)
    t = time_program(pair("barrier", 1, 40), TRN2)
    mine = np.flatnonzero(t.core_of() == 1)
    before = slice(0, 43)
    np.testing.assert_array_equal(t.start[mine][before], alone.start[before])
    np.testing.assert_array_equal(t.done[mine][before], alone.done[before])
    quick = time_program(pair("barrier", 1, 2), TRN2)
    last = np.flatnonzero(t.core_of() == 0)[-1]
    assert t.start[last] > quick.start[last]


def test_cores_that_never_meet_are_timed_as_each_alone():
    t = time_program(gang(stream(3), stream(9)), TRN2)
    for core, adds in enumerate((3, 9)):
        alone = time_routine(stream(adds), TRN2)
        mine = t.core_of() == core
        for column in ("start", "end", "begin", "done"):
            np.testing.assert_array_equal(getattr(t, column)[mine], getattr(alone, column))
    assert t.total == time_routine(stream(9), TRN2).total


def test_the_same_gang_has_the_same_timeline_and_it_can_be_saved():
    made = pair("barrier", 2, 7)
    t = time_program(made, TRN2)
    assert t.same_times(time_program(made, TRN2))
    read = from_bytes(t.to_bytes())
    assert read.same_times(t)
    assert (read.cores, [c.label for c in read.calls]) == (2, ["pair, core 0", "pair, core 1"])


@pytest.mark.parametrize("meet", ["barrier", "exchange"])
def test_outlines_and_pairs_say_what_the_timeline_says(meet):
    """Estimates time a program by a pass of their own (`pair`), and keep no instructions."""
    made = pair(meet, 3, 20)
    t = time_program(made, TRN2)
    assert time_pair(made, TRN2).same_times(t)
    for outline in (outline_program(made, TRN2), outline_program(made, TRN2, cores=2)):
        assert (outline.total, outline.ends) == (t.total, outline_of(t, made).ends)
        np.testing.assert_array_equal(outline.computing, outline_of(t, made).computing)
    assert estimate(made, TRN2) <= t.total


@pytest.mark.parametrize("adds", [(1, 40), (40, 1), (5, 5)])
def test_the_longest_chain_adds_up_across_cores(adds):
    t = time_program(pair("barrier", *adds), TRN2)
    summary = summarise(t)
    assert sum(summary.critical.values()) == t.total
    assert all(value >= 0 for value in summary.critical.values())
    assert all(0 <= use.share <= 1 for use in summary.engines)
    assert summary.engine(Engine.VECTOR.name.lower()).instructions == sum(adds) + 2
