# SPDX-License-Identifier: Apache-2.0
"""Reading a run back, the critical path in pieces, and rows of bars."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from trnlab.errors import RunError
from trnlab.profile import Profile, load, schema
from trnlab.profile.critical import KINDS, by_kind, by_label, pieces
from trnlab.profile.data import Step, join
from trnlab.profile.lanes import rows
from trnlab.profile.names import short_label, short_place
from trnlab.profile.routines import uses
from trnlab.sim.timing import summarise
from trnlab.sim.timing.summary import critical_path
from trnlab.units import PS_PER_S


def step_of(profile: Profile) -> Step:
    assert profile.step is not None
    return profile.step


@pytest.fixture
def broken(run_folder: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(run_folder, tmp_path / "copy"))


def test_the_step_is_its_executables_one_after_the_other(ran: Profile) -> None:
    step, t = step_of(ran), step_of(ran).timeline
    assert len(ran.summary["step"]) == 2
    assert len(t) == ran.summary["instructions_per_step"] == len(step.text) == len(step.source)
    assert t.total == pytest.approx(ran.summary["step_time_s"] * PS_PER_S)
    assert [call.first for call in t.calls] == np.cumsum([0, *(c.count for c in t.calls[:-1])]).tolist()
    assert (t.blocker < np.arange(len(t))).all()
    assert all(step.texts[text].split(" = ")[1].startswith(t.ops[op].name) for text, op in zip(step.text, t.op))


def test_every_instruction_knows_its_source_line(ran: Profile) -> None:
    step = step_of(ran)
    found = {step.sources[i] for i in step.source}
    assert ("/home/me/train.py:12 in forward", "y = x @ w  # </script>") in found


def test_joining_keeps_the_dependencies_of_each_part(ran: Profile) -> None:
    one = step_of(ran)
    two = join([one, one])
    count, total = len(one.timeline), one.timeline.total
    assert (two.timeline.total, len(two.timeline), len(two.critical)) == (2 * total, 2 * count, 2 * len(one.critical))
    for name in ("start", "end", "begin", "done"):
        column = getattr(two.timeline, name)
        assert np.array_equal(column[count:], column[:count] + total)
    free = one.timeline.blocker < 0
    assert np.array_equal(two.timeline.blocker[count:], np.where(free, -1, one.timeline.blocker + count))
    assert [two.texts[i] for i in two.text[count:]] == [one.texts[i] for i in one.text]


def test_the_pieces_of_the_critical_path_follow_each_other_and_add_up_as_the_simulator_says(ran: Profile) -> None:
    for step in (step_of(ran), *parts(ran)):
        found = pieces(step)
        assert (found.until > found.since).all()
        assert (found.since[1:] >= found.until[:-1]).all()
    for step in parts(ran):
        found = pieces(step)
        assert (found.since[1:] == found.until[:-1]).all()
        assert by_kind(step, found) == summarise(step.timeline).critical
        labels = by_label(step, found)
        assert sum(int(times.sum()) for times in labels.values()) == int((found.until - found.since).sum())
        assert all(len(times) == len(KINDS) for times in labels.values())


def test_a_transfer_that_the_next_one_overtakes_takes_no_negative_time(ran: Profile) -> None:
    """They share lanes, of which the next one has others that are free earlier: it was not held back by it then."""
    tried = 0
    for step in parts(ran):
        t, path = step.timeline, step.critical
        moves = np.array([op.lanes > 0 for op in t.ops])[t.op]
        for first, second in zip(path[:-1].tolist(), path[1:].tolist()):
            if not (moves[first] and moves[second]):
                continue
            held, begin = t.held.copy(), t.begin.copy()
            held[second] = first
            begin[first] = min(begin[second] + 1000, t.done[first])
            times = replace(t, held=held, begin=begin)
            changed = replace(step, timeline=times, critical=critical_path(times))
            found = pieces(changed)
            assert (found.until > found.since).all()
            assert (found.since[1:] == found.until[:-1]).all()
            assert by_kind(changed, found) == summarise(changed.timeline).critical
            tried += begin[first] > begin[second]
    assert tried


def parts(ran: Profile) -> list[Step]:
    """The executables of the step, each alone."""
    from trnlab.profile.data import _load_step

    return [_load_step(ran.folder, entry["executable"]) for entry in ran.summary["step"]]


def test_no_row_has_bars_that_overlap_and_no_instruction_is_lost(ran: Profile) -> None:
    step = step_of(ran)
    t, found = step.timeline, rows(step.timeline, pieces(step))
    for row in found:
        assert (row.start[1:] >= row.end[:-1]).all()
        assert (row.end >= row.start).all()
    by_lane = {lane: [i for row in found if row.lane == lane for i in row.refs.tolist()] for lane in ("calls", "dma")}
    assert sorted(by_lane["calls"]) == list(range(len(t.calls)))
    moves = np.flatnonzero(np.array([op.lanes > 0 for op in t.ops])[t.op])
    assert sorted(by_lane["dma"]) == moves.tolist()


def test_routines_add_up(ran: Profile) -> None:
    found = uses(step_of(ran).timeline)
    assert sum(use.bytes for use in found) == ran.summary["hbm"]["read_bytes"] + ran.summary["hbm"]["write_bytes"]
    assert sum(use.calls for use in found) == len(step_of(ran).timeline.calls)


def test_a_run_that_was_killed_has_no_step(broken: Path) -> None:
    summary = json.loads((broken / "summary.json").read_text())
    for name in (*schema.TIMED, *schema.LISTS, *schema.EXPLAINED):
        summary.pop(name, None)  # some are there only where they say something
    (broken / "summary.json").write_text(json.dumps({**summary, "status": "running", "complete": False}))
    assert load(broken).step is None


@pytest.mark.parametrize(
    ("where", "content", "code"),
    [
        ("summary.json", None, "TRN810"),
        ("summary.json", "{", "TRN812"),
        ("summary.json", "[]", "TRN812"),
        ("summary.json", '{"schema": "trnlab.summary", "version": 1}', "TRN812"),
        ("details", None, "TRN811"),
        ("details", "{", "TRN812"),
        ("details", '{"schema": "trnlab.details", "version": 1}', "TRN812"),
        ("timelines", None, "TRN811"),
        ("timelines", "TRNTIME1", "TRN812"),
    ],
)
def test_what_is_missing_or_damaged_is_refused(broken: Path, where: str, content: str | None, code: str) -> None:
    path = broken / where if where.endswith(".json") else sorted((broken / where).iterdir())[0]
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    with pytest.raises(RunError) as caught:
        load(broken)
    assert caught.value.code == code


def test_details_of_another_program_are_refused(broken: Path) -> None:
    one, two = sorted((broken / "details").iterdir())
    one.write_bytes(two.read_bytes())
    with pytest.raises(RunError, match="TRN812"):
        load(broken)


@pytest.mark.parametrize(
    ("label", "short"),
    [
        ("rows: aten.gelu aten.add.Tensor", "rows: gelu, add"),
        ("rows: aten.add.Tensor aten.add.Scalar aten.mul ... (x52)", "rows: add, mul, … (x52)"),
        ("attention: trnlab.attention", "attention"),
        ("dot: aten.mm aten.sum.dim_IntList", "dot: mm, sum"),
        ("scale", "scale"),
    ],
)
def test_labels_are_short(label: str, short: str) -> None:
    assert short_label(label) == short


def test_places_are_seen_from_the_script() -> None:
    assert short_place("/home/me/models/gpt.py:7 in forward", "/home/me/train.py") == "models/gpt.py:7 in forward"
    assert short_place("/usr/lib/torch/nn/linear.py:7", "/home/me/train.py") == "nn/linear.py:7"
    assert short_place("", "/home/me/train.py") == ""
