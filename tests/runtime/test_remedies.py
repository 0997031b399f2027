# SPDX-License-Identifier: Apache-2.0
"""What would help a step of several ranks is found by timing it again."""

from dataclasses import replace

import numpy as np
import pytest

from trnlab import chips
from trnlab.collectives import Collective
from trnlab.compiler import compile
from trnlab.compiler.fusing.groups import GroupKind
from trnlab.compiler.pipeline import Assembly
from trnlab.estimate.job import NullCommunicator
from trnlab.fabric.world import DEALT, FASTER_CARDS, World
from trnlab.graph.builder import GraphBuilder
from trnlab.numerics.dtypes import float32
from trnlab.runtime import device
from trnlab.runtime.analysis.remedies import RankStep, remedies
from trnlab.runtime.cache.executables import Cache
from trnlab.runtime.communication import UncapturedCollective
from trnlab.runtime.session import from_environment
from trnlab.runtime.step_cost import StepPrograms
from trnlab.sim.timing import time_program

SIZE = 64


def gradients(count=4, side=1024):
    """Products whose sums over all ranks update parameters."""
    b = GraphBuilder("gradients")
    x = b.input("x", (128, side), float32)
    weights = [b.input(f"w{i}", (side, side), float32) for i in range(count)]
    for w in weights:
        x = b.tanh(b.matmul(x, w))
        summed = b.all_reduce([b.matmul(b.transpose(x, (1, 0)), x)], (tuple(range(SIZE)),))[0]
        b.output(b.subtract(w, b.multiply(summed, 0.1)), alias_of=w)
    return b.build()


@pytest.fixture(scope="module")
def job():
    session = from_environment({"TRNLAB_TARGET": "2xtrn1.32xlarge", "TRNLAB_CACHE": "/nonexistent"})
    session.cache, session.communicator = None, NullCommunicator(0, SIZE)
    graph = gradients()
    made = device.obtain(graph, session)
    return RankStep(StepPrograms([(made, 1)]), {made.key: graph}, session)


def test_each_gain_is_the_difference_of_two_timings(job):
    made = job.step.calls[0][0]
    step_s = made.timeline.total / 1e12
    rows = remedies(job)
    for row in rows:
        if row["step_s"] is not None:
            assert row["gain"] == pytest.approx(1 - row["step_s"] / step_s)
    gains = [row["gain"] for row in rows if row["gain"] is not None]
    assert gains == sorted(gains, reverse=True)
    faster = next(row for row in rows if row["what"].startswith("EFA of twice"))
    retimed = time_program(replace(made.program, changes=(FASTER_CARDS,)), made.chip)
    assert faster["step_s"] == retimed.total / 1e12 < step_s
    other = next(row for row in rows if row["what"] == "on 2xtrn1n.32xlarge")
    assert other["step_s"] < step_s
    assert "$49.56/h" in other["costs"]


def test_a_host_that_traces_the_step_is_in_all_of_its_times(job):
    bare, traced_s = remedies(job), 0.25
    traced = remedies(replace(job, step=replace(job.step, tracing=[traced_s])))
    before = {row["what"]: row["step_s"] for row in bare if row["step_s"] is not None}
    assert len(before) >= 3
    for row in traced:
        if row["step_s"] is not None:
            assert row["step_s"] == pytest.approx(before[row["what"]] + traced_s)
            assert row["gain"] == pytest.approx(1 - row["step_s"] / (job.step.seconds + traced_s))
            assert abs(row["gain"]) < 0.01, "all of this step but its host takes less"


def test_other_buckets_are_what_a_session_with_them_compiles(job):
    smaller = next(row for row in remedies(job) if "TRNLAB_BUCKET_MIB=5" in row["what"])
    told = replace(job.session, bucket_mib=5, executables={}, compiled={}, known={})
    assert smaller["step_s"] == device.obtain(gradients(), told).timeline.total / 1e12


def test_what_cannot_be_timed_says_why(job):
    rows = {row["what"]: row for row in remedies(job)}
    assert "no network cards" in rows["on 32xtrn1.2xlarge"]["why"]
    assert "trnlab estimate" in rows["on trn2"]["why"]
    assert rows["on trn2"]["step_s"] is None


def test_known_routines_give_the_program_that_a_compilation_from_nothing_gives():
    chip, known = chips.get("trn1"), {}
    options = {"precision": "bf16", "cluster": "2xtrn1.32xlarge", "ranks": SIZE}
    compile(gradients(2, 256), chip, options, known)
    count = len(known)
    for changed in ({"bucket_mib": 0}, {"overlap": "shift:1"}):
        found = compile(gradients(2, 256), chip, {**options, **changed}, known)
        alone = compile(gradients(2, 256), chip, {**options, **changed})
        assert time_program(found, chip).total == time_program(alone, chip).total
        assert [c.args for c in found.calls] == [c.args for c in alone.calls]
    assert len(known) <= count + 3, "what computes is not made again"


def test_a_step_from_the_cache_lends_its_routines_and_remedies_are_not_stored(job, tmp_path, monkeypatch):
    graph, found, recorded = gradients(), [], []
    lowered = Assembly._lower

    def lower(self, unit, *others):
        recorded.append(unit[0].kind)
        return lowered(self, unit, *others)

    monkeypatch.setattr(Assembly, "_lower", lower)
    for cached in ("miss", "hit"):
        session = replace(job.session, cache=Cache(tmp_path), executables={}, compiled={}, known={})
        made = device.obtain(graph, session)
        assert made.cache == cached
        recorded.clear()
        found.append(remedies(RankStep(StepPrograms([(made, 1)]), {made.key: graph}, session)))
    assert found[0] == found[1]
    assert set(recorded) <= {GroupKind.COLLECTIVE}, "what computes is not recorded again"
    assert len(session.cache.entries()) == 1


def test_changed_worlds_have_faster_cards_and_ranks_dealt_out():
    plain, faster = (World("2xtrn1.32xlarge", SIZE, changes=c) for c in ((), (FASTER_CARDS,)))
    for number, (before, after) in enumerate(zip(plain.network.rates, faster.network.rates)):
        assert after == before * (2 if plain.network.kind(number) == "card" else 1)
    dealt = World("2xtrn1.32xlarge", SIZE, changes=(DEALT,))
    assert sorted(dealt.placed) == sorted(plain.placed)
    assert (np.diff(dealt.placed // 16)[::2] == 1).all(), "neighbours are on different instances"


def test_exchanges_outside_of_programs_are_timed_again_too(job):
    asked = Collective("all_reduce", (tuple(range(SIZE)),))
    before = World("2xtrn1.32xlarge", SIZE).cost(asked, 1 << 26)
    step = StepPrograms([], [UncapturedCollective(asked, "gradient", 1 << 26, 1 << 26, before)])
    row = next(r for r in remedies(RankStep(step, {}, job.session)) if r["what"].startswith("EFA of twice"))
    assert row["step_s"] == World("2xtrn1.32xlarge", SIZE, changes=(FASTER_CARDS,)).cost(asked, 1 << 26).seconds
