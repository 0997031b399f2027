# SPDX-License-Identifier: Apache-2.0
"""Streams of collectives: they share links and never exceed them, more of them never delay a collective, and programs
are never faster for having to share DMA engines and HBM with them.
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from trnlab import chips
from trnlab.compiler import compile
from trnlab.errors import UsageError
from trnlab.graph.builder import GraphBuilder
from trnlab.isa.base import Engine
from trnlab.numerics.dtypes import float32
from trnlab.program.communication import collective_of
from trnlab.runtime.session import from_environment
from trnlab.sim.timing import estimate, layout, outline_of, outline_program, streams, time_program, transfers
from trnlab.sim.timing.communication import uses_of
from trnlab.sim.timing.streams import LEAST, CollectiveStreams, StreamUse

PLACES = [("trn1", "trn1.32xlarge", 4), ("trn2", "trn2.48xlarge", 8), ("trn1", "4xtrn1.32xlarge", 8)]
SEEDS = range(3)


def program_of(place, seed, units=5):
    """Sums over different groups beside products and passes over memory, some of which they wait for."""
    chip, cluster, ranks = place
    rng, b = random.Random(seed), GraphBuilder("beside")
    half = ranks // 2
    groups = [
        (tuple(range(ranks)),),
        tuple((i, i + 1) for i in range(0, ranks, 2)),
        tuple((i, i + half) for i in range(half)),
    ]
    y = b.input("y", (512, 512), float32)
    for i in range(units):
        x = b.input(f"x{i}", (rng.choice((64, 256, 1024)), 512), float32)
        b.output(b.all_reduce([y if rng.random() < 0.4 else x], rng.choice(groups))[0])
        y = b.tanh(b.matmul(y, b.input(f"w{i}", (512, 512), float32)) if rng.random() < 0.3 else y)
    b.output(y)
    return compile(
        b.build(), chips.get(chip), {"precision": "fp32", "cluster": cluster, "ranks": ranks, "bucket_mib": 0}
    )


@pytest.fixture(scope="module")
def programs():
    return {(place, seed): program_of(place, seed) for place in PLACES for seed in SEEDS}


def ends(program, timeline):
    """When each collective is done."""
    return [
        int(timeline.done[call.first : call.first + call.count].max())
        for call, (_, routine) in zip(timeline.calls, program)
        if collective_of(routine) is not None
    ]


@pytest.mark.parametrize("place", PLACES)
def test_no_collective_is_done_later_with_streams_than_without(programs, place):
    gained = False
    for seed in SEEDS:
        program, chip = programs[place, seed], chips.get(place[0])
        one = time_program(program, chip, competition=False)
        for count in (2, 3, 4):
            more = time_program(replace(program, streams=count), chip, competition=False)
            assert all(a <= b for a, b in zip(ends(program, more), ends(program, one)))
            assert more.total <= one.total
            gained |= more.total < one.total
    assert gained


@pytest.mark.parametrize("place", PLACES)
def test_a_program_is_never_faster_beside_collectives(programs, place):
    slowed = False
    for seed in SEEDS:
        for count in (1, 3):
            program, chip = replace(programs[place, seed], streams=count), chips.get(place[0])
            free, shared = (
                time_program(program, chip, competition=on, arbitration=layout.PROGRAM_ORDER) for on in (False, True)
            )
            assert (shared.start >= free.start).all()
            assert shared.total >= free.total
            if count == 1:  # of several that share links, one that starts later leaves more to the others (ADR 68)
                assert (shared.done >= free.done).all()
            assert time_program(program, chip).total >= time_program(program, chip, competition=False).total
            assert estimate(program, chip) <= time_program(program, chip).total
            slowed |= bool((shared.done > free.done).any())
    assert slowed


@pytest.mark.parametrize("place", PLACES)
def test_no_row_is_earlier_beside_collectives_than_with_networks_of_their_own(programs, place, monkeypatch):
    """For any number of streams; where they share no link, rows are never earlier for competition alone."""
    for seed in SEEDS:
        for count in (1, 2, 3, 4):
            program, chip = replace(programs[place, seed], streams=count), chips.get(place[0])
            shared = time_program(program, chip, arbitration=layout.PROGRAM_ORDER)
            with monkeypatch.context() as patch:
                patch.setattr(streams, "_speed", lambda use, running: 1.0)
                free, apart = (
                    time_program(program, chip, competition=on, arbitration=layout.PROGRAM_ORDER)
                    for on in (False, True)
                )
            for beside in (shared, apart):
                assert (beside.start >= free.start).all()
                assert (beside.done >= free.done).all()


def test_a_collective_that_starts_later_leaves_links_to_the_next():
    """Why rows of several streams may be earlier beside transfers: the first is late, and the second gains by it."""
    ends = []
    for late in (0, 90):
        two = CollectiveStreams(2, 0, competes=True)
        first = two.place(StreamUse("a", np.array([0.75])), late, 100)
        assert first == late + 100
        ends.append(two.place(StreamUse("b", np.array([0.5])), 10, 100))
    assert ends == [155, 130]


def test_one_stream_has_one_collective_at_a_time(programs):
    for (place, _), program in programs.items():
        for count in (1, 2):
            t = time_program(replace(program, streams=count), chips.get(place[0]))
            mine = t.engine == Engine.CC
            start, end = np.sort(t.start[mine]), t.end[mine]
            at_once = max(int(((t.start[mine] <= time) & (end > time)).sum()) for time in start)
            assert at_once <= count


def test_what_collectives_take_together_is_no_more_than_there_is():
    """Random collectives on streams: at any moment no link is above its rate, and transfers get their least share."""
    rng = random.Random(3)
    for count in (1, 2, 4):
        several = CollectiveStreams(count, 0, competes=True)
        works, spans = [], []
        for number in range(60):
            links = np.array([rng.choice((0, rng.random())) for _ in range(5)])
            use = StreamUse(number % 5, links, rng.random() / 2, rng.random() / 2, 1.5)
            stream = several.of(use)
            begin = max(int(stream[0]), rng.randrange(100_000))
            works.append(rng.randrange(1, 20_000))
            stream[0] = several.place(use, begin, works[-1])
            spans.append((begin, int(stream[0])))
            assert spans[-1][1] - begin >= works[-1]
        for section in several._sections:
            assert len(section.running) <= count
            taken = sum((speed * use.links for use, speed in section.running), np.zeros(5))
            assert (taken <= 1 + 1e-9).all()
        cut = several.cut()
        assert (np.diff(cut[:, 0]) > 0).all()
        assert (cut[:, 1] >= round(LEAST * layout.WHOLE)).all()
        assert (cut[[0, -1], 1] == layout.WHOLE).all()


def test_a_transfer_takes_as_long_as_what_is_left_to_it():
    half = layout.WHOLE // 2
    cut = np.array([(layout.NEVER, layout.WHOLE), (1000, half), (2000, layout.WHOLE)], np.int64)
    lengths = [
        transfers._competing(begin, share, cut) for begin, share in ((0, 900), (1000, 400), (900, 300), (1500, 1000))
    ]
    assert lengths == [900, 800, 100 + 400, 500 + 750]
    assert transfers._competing(5000, 700, cut) == 700


def test_a_collective_takes_what_it_puts_on_the_links(programs):
    for (place, _), program in programs.items():
        for use in uses_of(program, chips.get(place[0])).values():
            assert 0 < use.links.max() <= 1
            assert 0 < use.dma < 1
            assert 0 < use.hbm < 1


def test_a_rank_has_as_many_streams_as_cc_cores():
    for target, most in (("trn1.32xlarge", 3), ("trn2.48xlarge", 4)):
        assert from_environment({"TRNLAB_TARGET": target, "TRNLAB_STREAMS": str(most)}).streams == most
        for told in (str(most + 1), "0", "many"):
            with pytest.raises(UsageError, match="TRN196"):
                from_environment({"TRNLAB_TARGET": target, "TRNLAB_STREAMS": told})


@pytest.mark.parametrize("place", PLACES)
def test_an_outline_says_what_the_timeline_says(programs, place):
    """Of calls that are timed one at a time, against all rows of the timeline."""
    for seed in SEEDS:
        program, chip = programs[place, seed], chips.get(place[0])
        outline = outline_program(program, chip)
        whole = outline_of(time_program(program, chip), program)
        assert (outline.total, outline.ends) == (whole.total, whole.ends)
        assert outline.collectives == whole.collectives != {}
        assert np.array_equal(outline.computing, whole.computing)
        assert len(outline.computing) > 1
