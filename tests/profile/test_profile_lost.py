# SPDX-License-Identifier: Apache-2.0
"""Where the time went, by cause: every table adds up to the step, to the picosecond."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from profile_samples import big_step, two_cores

from trnlab import chips
from trnlab.profile import Profile, load, vendor
from trnlab.profile.critical import pieces
from trnlab.profile.data import Step
from trnlab.profile.lanes import rows
from trnlab.profile.stall_attribution import ENDS, FIRST_BYTE, SEMAPHORE, WORK, by_engine, lines, lost, workers
from trnlab.timeline import CAUSES


@pytest.fixture(params=["run", "loop"])
def step(request: pytest.FixtureRequest, ran: Profile) -> Step:
    assert ran.step is not None
    return ran.step if request.param == "run" else big_step(2000)


def test_the_causes_add_up_to_the_step_to_the_picosecond(step: Step) -> None:
    found = lost(step, pieces(step))
    assert sum(loss.time for loss in found) == step.timeline.total
    assert all(loss.time > 0 for loss in found)
    assert {loss.part for loss in found} <= {WORK, FIRST_BYTE, SEMAPHORE}
    assert [loss.time for loss in found] == sorted((loss.time for loss in found), reverse=True)
    assert sum(loss.waiting_for == ENDS for loss in found) == 1


def test_what_each_engine_did_adds_up_to_the_step_to_the_picosecond(step: Step) -> None:
    t = step.timeline
    for name, engine in by_engine(step).items():
        assert engine.busy + sum(wait.time for wait in engine.waits) + engine.ends == t.total, name
        assert all(wait.time > 0 for wait in engine.waits)


def test_a_wait_names_its_engine_its_cause_and_its_tensor() -> None:
    step = big_step(1000)
    waits = by_engine(step)["scalar"].waits
    assert (waits[0].waiting_for, waits[0].cause, waits[0].buffer) == ("tensor", "operand", "acc")
    waits = by_engine(step)["tensor"].waits
    assert {wait.waiting_for for wait in waits if wait.buffer.startswith("tile")} <= {f"sync q{i}" for i in range(5)}


def test_every_wait_for_a_tensor_knows_which(step: Step) -> None:
    t = step.timeline
    on_a_tensor = np.isin(t.cause, [CAUSES.index(name) for name in ("operand", "reuse", "overwrite")])
    assert ((step.buffer >= 0) == (on_a_tensor & (t.blocker >= 0))).all()


def test_lines_share_the_critical_path(step: Step) -> None:
    chain = pieces(step)
    found = lines(step, chain)
    assert sum(line.critical for line in found) == int((chain.until - chain.since).sum())
    assert sum(line.instructions for line in found) == len(step.timeline)
    assert [line.critical for line in found] == sorted((line.critical for line in found), reverse=True)


def test_queues_are_told_apart_by_the_engine_that_triggers_them(step: Step) -> None:
    index, names = workers(step.timeline)
    t = step.timeline
    moves = np.array([op.lanes > 0 for op in t.ops])[t.op]
    assert all((" q" in names[i]) == move for i, move in zip(index.tolist(), moves.tolist()))


def test_memories_are_never_fuller_than_they_are(step: Step) -> None:
    for used in step.occupancy.values():
        assert used.bytes.min() >= 0
        assert used.bytes.max() <= used.capacity
        assert used.bytes[-1] == 0
        assert (np.diff(used.time) > 0).all()
    assert step.occupancy["sbuf"].bytes.max() > 0


def test_a_loop_over_two_tiles_and_a_bank_holds_just_these() -> None:
    used = big_step(1000).occupancy
    assert used["sbuf"].bytes.max() == 128 * (2 * 512 * 2 + 128 * 2)
    assert used["psum"].bytes.max() == 128 * 512 * 4


def test_two_cores_have_engines_and_memories_of_their_own(tmp_path: Path) -> None:
    """A kernel on a pair of cores: both add up, and together they hold twice what one does."""
    folder = two_cores(tmp_path / "pair-1")
    found = load(folder)
    assert found.step is not None
    t = found.step.timeline
    assert t.cores == 2
    times = by_engine(found.step)
    assert {"vector 0", "vector 1", "gpsimd 0", "gpsimd 1"} <= set(times)
    for engine in times.values():
        assert engine.busy + sum(wait.time for wait in engine.waits) + engine.ends == t.total
    assert sum(row["ps"] for row in found.summary["lost"]) == found.summary["step_ps"]
    names = {row.name for row in rows(t, pieces(found.step)) if len(row.start)}
    assert {"vector 0", "vector 1"} <= names
    used = found.step.occupancy["sbuf"]
    assert used.capacity == 2 * 128 * chips.get("trn2").sbuf.bytes_per_partition.value
    assert used.bytes.max() == 2 * 128 * 512 * 4
    export = json.loads(vendor.export(found))
    assert {row["nc_idx"] for row in export["instruction"]} == {0, 1}
