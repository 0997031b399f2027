# SPDX-License-Identifier: Apache-2.0
"""What the summary says of where the time went and what to do about it, and how page and terminal tell it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trnlab import documents, profile
from trnlab.profile import Profile
from trnlab.profile.pages.findings import findings, step_names, steps
from trnlab.profile.pages.page import document
from trnlab.profile.words import waited


def test_the_causes_in_the_summary_add_up_to_the_step(ran: Profile) -> None:
    s = ran.summary
    assert s["step_ps"] == pytest.approx(s["step_time_s"] * 1e12)
    assert sum(row["ps"] for row in s["lost"]) == s["step_ps"]
    for use in s["engine_time"].values():
        assert use["busy_ps"] + use["ends_ps"] + sum(row["ps"] for row in use["waiting"]) == s["step_ps"]


def test_advice_is_ranked_and_never_gains_more_than_the_step(ran: Profile) -> None:
    gains = [entry["gain_ps"] for entry in ran.summary["advice"]]
    assert gains == sorted(gains, reverse=True)
    assert gains
    assert 0 < gains[0] < ran.summary["step_ps"]
    costs = {entry["cost"] for entry in ran.summary["advice"]}
    assert {"transfer latency", "data movement"} <= costs
    line = next(entry for entry in ran.summary["advice"] if entry["cost"] == "line")
    assert line["line"].startswith("/home/me/train.py:12")


def test_utilisations_are_shares(ran: Profile) -> None:
    s = ran.summary
    assert 0 < s["mfu"] <= s["hfu"] < 1
    assert s["mbu"] == s["hbm"]["bandwidth_used"]
    assert 0 < s["dma"]["efficiency"] <= 1
    assert s["spill"] == {"save_bytes": 0, "reload_bytes": 0, "cost_ps": 0, "psum_bytes": 0, "tiles": []}
    assert len(s["costliest_lines"]) <= 10
    assert sum(routine["hbm_bytes"] for routine in s["roofline"]["routines"]) <= sum(
        s["hbm"][side] for side in ("read_bytes", "write_bytes")
    )


def test_steps_that_ran_the_same_are_one_kind(ran: Profile) -> None:
    (kind,) = ran.summary["step_kinds"]
    assert kind["steps"] == [[1, 3]]
    assert kind["step_time_s"] == pytest.approx(ran.summary["step_time_s"])
    assert ran.kinds == ()
    assert not list(steps(ran.summary))


def test_steps_of_several_kinds_stand_side_by_side(run_folder: Path, tmp_path: Path) -> None:
    summary = json.loads((run_folder / "summary.json").read_text())
    both = summary["step"]
    summary["step_kinds"] = [
        {"executables": both, "step_time_s": 2e-5, "steps": [[1, 1], [3, 9]]},
        {"executables": both[:1], "step_time_s": 1e-5, "steps": [[2, 2]]},
    ]
    for name in ("timelines", "details"):
        (tmp_path / name).symlink_to(run_folder / name)
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    found = profile.load(tmp_path)
    assert step_names(found.summary) == ["steps 1, 3 to 9 (8)", "step 2"]
    assert found.step is not None
    assert len(found.kinds[0].timeline) == len(found.step.timeline)
    text = documents.page(document(found))
    assert "2 kinds of steps" in text
    assert '"steps":["steps 1, 3 to 9 (8)","step 2"]' in text


def test_what_was_waited_for_is_told_in_words() -> None:
    row = {"waiting_for": "sync q2", "part": "first byte", "cause": "operand", "buffer": "w", "ps": 1}
    assert waited(row) == "sync q2, up to the first byte: for w to be written"
    assert waited({**row, "waiting_for": "start and end"}) == "the program's start and end"
    assert waited({**row, "part": "work", "cause": "reuse"}) == "sync q2: for w to be free again"


def test_the_terminal_names_causes_and_advice(ran: Profile) -> None:
    told = profile.text(ran.summary)
    assert "held up by" in told
    assert "could gain" in told
    assert "nothing spilled" in told


def test_a_summary_of_an_earlier_version_is_shown_without_them(ran: Profile) -> None:
    older = {key: value for key, value in ran.summary.items() if key not in ("lost", "advice", "step_kinds")}
    assert not list(findings(older))
    assert "held up by" not in profile.text(older)


def test_every_field_of_the_summary_is_described(ran: Profile) -> None:
    described = (Path(__file__).parents[2] / "docs" / "summary.md").read_text()
    assert [name for name in ran.summary if f"`{name}" not in described] == []
    for name in ("lost", "advice", "costliest_lines"):
        row = ran.summary[name][0]
        assert [key for key in row if f".{key}`" not in described and f"`{key}`" not in described] == []
