# SPDX-License-Identifier: Apache-2.0
"""A routine that is called again in the same situation is not timed again, and nobody can tell from the timeline."""

from __future__ import annotations

import gc
import random
import weakref
from dataclasses import replace

import numpy as np
import pytest
from streams import layer, program_of, random_routine

from trnlab import chips
from trnlab.compiler import compile
from trnlab.graph.builder import GraphBuilder
from trnlab.numerics.dtypes import dtype, float32
from trnlab.policy import chosen
from trnlab.sim.timing import layout, on_both, outline_of, outline_program, time_pair, time_program
from trnlab.sim.timing import outline as outlines
from trnlab.sim.timing.core import Core, PassColumns
from trnlab.sim.timing.replay import INDICES, TIMES, TimingReplay
from trnlab.sim.timing.timer import calls_in_order, plans_of

CHIPS = [chips.get(name) for name in ("trn1", "trn2")]
both = pytest.mark.parametrize("chip", CHIPS, ids=["trn1", "trn2"])


@pytest.fixture
def seen(monkeypatch):
    """Look at every call, and count how often the situation was known."""
    known, counts = TimingReplay.known, {False: 0, True: 0}

    def counted(self, p, situation):
        found = known(self, p, situation)
        counts[found is not None] += 1
        return found

    monkeypatch.setattr(TimingReplay, "known", counted)
    monkeypatch.setattr(TimingReplay, "pays", staticmethod(lambda p, slots, calls: calls > 2))
    return counts


def alone(program, chip, monkeypatch, **options):
    """The timeline without looking at what was seen before."""
    with monkeypatch.context() as patch:
        patch.setattr(TimingReplay, "pays", staticmethod(lambda p, slots, calls: False))
        return time_program(program, chip, **options)


@both
@pytest.mark.parametrize("distinct", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_the_timeline_is_the_same_to_the_picosecond(chip, seed, distinct, seen, monkeypatch):
    routine = layer(chip) if seed == 0 else random_routine(chip, seed)
    for sbuf_base in ((0,), (0, 65536)):
        program = program_of(routine, 24, distinct=distinct, sbuf_base=sbuf_base)
        timeline = time_program(program, chip)
        assert timeline.same_times(alone(program, chip, monkeypatch))
        outline = outline_program(program, chip)
        whole = outline_of(timeline, program)
        assert (outline.total, outline.starts, outline.ends) == (timeline.total, whole.starts, whole.ends)
    assert seen[True] > 0


@both
@pytest.mark.parametrize("arbitration", [layout.PROGRAM_ORDER, layout.NO_CONTENTION])
def test_whoever_arbitrates(chip, arbitration, seen, monkeypatch):
    program = program_of(random_routine(chip, 4), 24)
    timed = time_program(program, chip, arbitration=arbitration)
    assert timed.same_times(alone(program, chip, monkeypatch, arbitration=arbitration))


@both
def test_other_routines_in_between_make_other_situations(chip, seen, monkeypatch):
    """Two routines in turns, on the same memory: what one leaves behind is part of the other's situation."""
    first, second = program_of(layer(chip), 1), program_of(layer(chip, rows=2), 1)
    calls = tuple(type(first.calls[0])(turn % 3 % 2, (0, 1)) for turn in range(36))
    tensors = first.tensors
    program = type(first)("turns", chip.name, (first.routines[0], second.routines[0]), tensors, calls, (), ())
    assert time_program(program, chip).same_times(alone(program, chip, monkeypatch))
    assert seen[True] > 0


def test_halves_of_two_cores_take_the_same_course_again(seen, monkeypatch):
    chip, b = chips.get("trn2"), GraphBuilder("layers")
    form = dtype("bfloat16")
    x = b.input("x", (2048, 2048), form)
    for i in range(24):
        x = b.gelu(b.dot_general(x, b.input(f"w{i}", (2048, 2048), form), ((1,), (0,)), dt=form))
    b.output(b.reduce(b.convert(x, float32), (0,)))
    program = compile(b.build(), chip, {"precision": "bf16"})
    assert set(on_both(program, chip)) == {True, False}  # a sum over all rows stays on one core
    timeline, outline = time_pair(program, chip), outline_program(program, chip, cores=2)
    assert seen[True] > 8
    with monkeypatch.context() as patch:
        patch.setattr(TimingReplay, "pays", staticmethod(lambda p, slots, calls: False))
        plain = time_pair(program, chip)
    assert timeline.same_times(plain)
    assert (outline.total, outline.ends) == (plain.total, outline_of(plain, program).ends)


def test_half_rate_windows_are_timed_call_by_call(seen):
    """Their phase is part of no situation."""
    chip = chips.get("trn2")
    time_program(program_of(layer(chip), 6), chip, window_phase=0)
    assert seen == {False: 0, True: 0}


def columns_beside(program, chip, cut):
    """What the pass fills where collectives leave so much to transfers."""
    policy, core, out = chosen(chip.name), Core(chip), PassColumns(program.num_instructions)
    core.clocks.cut = np.array(cut)
    for _ in calls_in_order(program, chip, [core], plans_of(program, chip, policy), out):
        pass
    return [getattr(out, name).tolist() for name in (*TIMES, *INDICES, "cause")]


@both
@pytest.mark.parametrize("seed", range(6))
def test_what_collectives_leave_to_transfers_is_part_of_a_situation(chip, seed, seen, monkeypatch):
    """For stretches of some calls each, which begin and end within calls; the first of them from the start on."""
    program, rng = program_of(layer(chip), 60), random.Random(seed)
    total = columns_beside(program, chip, [(layout.NEVER, layout.WHOLE)])[1][-1]
    cut, begin = [(layout.NEVER, layout.WHOLE)], 0
    while begin < 2 * total:
        begin += rng.randrange(1, total // 3)
        cut.append((begin, layout.WHOLE // rng.choice((1, 2, 17))))
    seen[True] = 0
    found = columns_beside(program, chip, cut)
    assert seen[True] > 2
    monkeypatch.setattr(TimingReplay, "pays", staticmethod(lambda p, slots, calls: False))
    assert found == columns_beside(program, chip, cut)
    assert found != columns_beside(program, chip, cut[:1])


def test_no_collective_is_as_good_as_one_that_leaves_everything(seen):
    chip = chips.get("trn1")
    program = program_of(random_routine(chip, 2), 24)
    bare, whole = (columns_beside(program, chip, cut) for cut in (np.zeros((0, 2), int), [(0, layout.WHOLE)]))
    assert bare == whole


def test_an_outline_that_was_asked_for_lately_is_told_again(monkeypatch):
    chip, made = chips.get("trn1"), []
    plain = outlines._outline
    monkeypatch.setattr(outlines, "_outline", lambda *args: made.append(args) or plain(*args))
    program = program_of(layer(chip), 4)
    first = outline_program(program, chip)
    named = replace(program, name="other", routines=tuple(replace(r, name="other") for r in program.routines))
    assert outline_program(named, chip) is first
    assert len(made) == 1
    others = [
        (program_of(layer(chip), 4), chip),  # other routines, though they do the same
        (replace(program, calls=program.calls[:3]), chip),
        (replace(program, streams=2), chip),
        (program, replace(chip, name="other")),
    ]
    for number, other in enumerate(others, 2):
        assert outline_program(*other) is not first
        assert len(made) == number
    assert outline_program(program, chip) is first


def test_few_outlines_are_kept_and_none_keeps_a_program(monkeypatch):
    monkeypatch.setattr(outlines, "_LATEST", {})
    chip = chips.get("trn1")
    program = program_of(layer(chip), 2)
    gone = weakref.ref(program.routines[0])
    for count in range(1, outlines.MOST + 4):
        outline_program(replace(program, streams=count), chip)
    assert len(outlines._LATEST) == outlines.MOST
    del program
    gc.collect()
    assert gone() is None
