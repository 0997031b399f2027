# SPDX-License-Identifier: Apache-2.0
"""Two runs side by side: verdicts, pairs of instructions, and how terminal, page and JSON tell them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from profile_samples import big_step, measured_dump, measured_twin

from trnlab import documents, profile
from trnlab.errors import RunError
from trnlab.profile import Profile, schema
from trnlab.profile.compare import APPEARED, EQUAL, FASTER, SLOWER, VANISHED, by_opcode


def changed(ran: Profile, factor: float) -> Profile:
    """The run with every instruction of VectorE so much longer, and nothing else moved."""
    assert ran.step is not None
    t = ran.step.timeline
    mine = t.engine == 1
    longer = (t.done - t.start) * factor
    done = t.done.copy()
    done[mine] = (t.start + longer)[mine]
    return replace(
        ran, summary={**ran.summary, "name": "other"}, step=replace(ran.step, timeline=replace(t, done=done))
    )


def test_a_run_is_the_same_as_itself(ran: Profile) -> None:
    found = profile.compare(ran, ran)
    assert all(change.verdict == EQUAL for rows in found.changes.values() for change in rows)
    assert "nothing changed" in documents.text(profile.comparison.document(found))
    assert "as long" in documents.text(profile.comparison.document(found))


def test_work_that_takes_longer_is_found_where_it_is(ran: Profile) -> None:
    found = {c.name: c for c in profile.compare(ran, changed(ran, 2.0)).changes["engine"]}
    assert found["vector"].time[1] == pytest.approx(2 * found["vector"].time[0], rel=1e-6)
    assert all(c.time[0] == c.time[1] for name, c in found.items() if name != "vector")


def test_what_is_faster_one_way_is_slower_the_other(ran: Profile) -> None:
    other = Profile(Path(), {"name": "big"}, big_step(1000))
    there, back = profile.compare(ran, other), profile.compare(other, ran)
    opposite = {FASTER: SLOWER, SLOWER: FASTER, APPEARED: VANISHED, VANISHED: APPEARED, EQUAL: EQUAL}
    for kind, rows in there.changes.items():
        verdicts = {c.name: (c.verdict, c.difference) for c in back.changes[kind]}
        assert {c.name: (opposite[c.verdict], -c.difference) for c in rows} == verdicts


def test_the_differences_add_up_to_that_of_the_steps(ran: Profile) -> None:
    other = Profile(Path(), {"name": "big"}, big_step(1000))
    found = profile.compare(ran, other)
    assert sum(c.difference for c in found.changes["engine"]) == found.totals[1] - found.totals[0]
    ends = next(c for c in found.changes["engine"] if c.name == "start and end")
    for kind in ("opcode", "line", "graph op"):
        assert sum(c.difference for c in found.changes[kind]) + ends.difference == found.totals[1] - found.totals[0]


def test_what_appeared_and_vanished_is_told(ran: Profile) -> None:
    assert ran.step is not None
    lines = tuple((place, text.replace("@", "%")) for place, text in ran.step.sources)
    other = replace(ran, summary={**ran.summary, "name": "other"}, step=replace(ran.step, sources=lines))
    verdicts = {c.name: c.verdict for c in profile.compare(ran, other).changes["line"]}
    assert verdicts["train.py in forward: y = x @ w  # </script>"] == VANISHED
    assert verdicts["train.py in forward: y = x % w  # </script>"] == APPEARED


def test_a_line_that_moved_is_still_the_same_line(ran: Profile) -> None:
    assert ran.step is not None
    lines = tuple((place.replace(":12 ", ":112 "), text) for place, text in ran.step.sources)
    found = profile.compare(ran, replace(ran, step=replace(ran.step, sources=lines)))
    assert all(change.verdict == EQUAL for change in found.changes["line"])


def test_a_measured_kernel_is_held_against_the_predicted_one(tmp_path: Path) -> None:
    path = tmp_path / "kernel.json"
    path.write_text(json.dumps(measured_dump()))
    measured, predicted = profile.open_run(path), measured_twin()
    found = profile.compare(measured, predicted)
    rows = {(row[0], row[1]): row for row in by_opcode(found.pairs)}
    *_, count, x, y, error = rows["MATMUL, at half rate", "tensor"]
    assert (count, x) == (1, 412_000)  # two instructions of the hardware are one matmul in float32
    assert error == pytest.approx(abs(y / x - 1))
    assert rows["ACTIVATE", "scalar"][2] == 1
    assert found.unpaired == ({}, {})
    told = documents.text(profile.comparison.document(found))
    assert "Instruction by instruction" in told
    assert "By source line" not in told


def test_what_only_one_side_has_is_named(tmp_path: Path) -> None:
    content = measured_dump()
    extra = {**content["instruction"][-1], "id": 99, "opcode": "RECIPROCAL", "subgroup": "Vector", "timestamp": 2400}
    content["instruction"].append(extra)
    path = tmp_path / "kernel.json"
    path.write_text(json.dumps(content))
    found = profile.compare(profile.open_run(path), measured_twin())
    assert found.unpaired[0] == {"RECIPROCAL on vector, 512 elements": 1}


def test_the_page_holds_both_timelines(ran: Profile) -> None:
    other = changed(ran, 1.5)
    text = documents.page(profile.comparison.document(profile.compare(ran, other), (ran, other)))
    assert text.count('class="timeline"') == 2
    assert '<div class="linked">' in text


def test_json_holds_everything(ran: Profile) -> None:
    found = json.loads(json.dumps(profile.compare(ran, changed(ran, 1.5)).to_json()))
    assert (found["schema"], found["version"]) == ("trnlab.comparison", 1)
    assert set(found["changes"]) == {"engine", "opcode", "line", "graph op"}
    assert sum(row["count"][0] for row in found["changes"]["opcode"]) == ran.summary["instructions_per_step"]


def test_a_run_without_time_cannot_be_compared(run_folder: Path, tmp_path: Path) -> None:
    summary = json.loads((run_folder / "summary.json").read_text())
    for name in (*schema.TIMED, *schema.LISTS, *schema.EXPLAINED):
        summary.pop(name, None)  # some are there only where they say something
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(RunError, match="TRN814"):
        profile.open_run(tmp_path)
