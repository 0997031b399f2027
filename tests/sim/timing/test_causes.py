# SPDX-License-Identifier: Apache-2.0
"""The law of causes, on random programs: where the time went adds up to the whole, to the picosecond."""

from __future__ import annotations

import numpy as np
import pytest
from streams import layer, program_of, random_routine

from trnlab import chips
from trnlab.profile.critical import pieces
from trnlab.profile.data import Step, step_of
from trnlab.profile.stall_attribution import by_engine, lines, lost
from trnlab.program import Program
from trnlab.runtime.analysis.details import details
from trnlab.sim.timing import time_program
from trnlab.timeline import CAUSES

ON_A_TENSOR = [CAUSES.index(name) for name in ("operand", "reuse", "overwrite")]


def programs() -> list[Program]:
    found = []
    for name in ("trn1", "trn2", "trn3"):
        chip = chips.get(name)
        found += [program_of(random_routine(chip, seed), calls=3, distinct=seed % 2 == 0) for seed in range(8)]
        found.append(program_of(layer(chip), calls=4, sbuf_base=(0, 64 * 1024)))
    return found


def step(program: Program) -> Step:
    chip = chips.get(program.target)
    timeline = time_program(program, chip)
    return step_of(timeline, details(program, timeline, chip))


@pytest.mark.parametrize("program", programs(), ids=lambda p: f"{p.target} {p.routines[0].name}")
def test_causes_add_up_to_the_whole(program: Program) -> None:
    timed = step(program)
    t, chain = timed.timeline, pieces(timed)
    causes = lost(timed, chain)
    assert sum(cause.time for cause in causes) == t.total
    assert all(cause.time > 0 for cause in causes)
    for engine in by_engine(timed).values():
        assert engine.busy + sum(wait.time for wait in engine.waits) + engine.ends == t.total
        assert min([engine.busy, engine.ends, *(wait.time for wait in engine.waits)]) >= 0
    assert sum(line.critical for line in lines(timed, chain)) + causes_of_the_ends(causes) == t.total
    on_a_tensor = np.isin(t.cause, ON_A_TENSOR) & (t.blocker >= 0)
    assert (timed.buffer[on_a_tensor] >= 0).all()
    assert (timed.buffer[~on_a_tensor] < 0).all()
    for used in timed.occupancy.values():
        assert 0 <= used.bytes.min() <= used.bytes.max() <= used.capacity


def causes_of_the_ends(causes: list) -> int:  # type: ignore[type-arg]
    return sum(cause.time for cause in causes if cause.waiting_for == "start and end")
