# SPDX-License-Identifier: Apache-2.0
"""trace.json: what Perfetto needs to open it, and what a reader finds in it."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trnlab.profile import Profile, perfetto
from trnlab.timeline import CORE_ENGINES, ENGINES
from trnlab.units import PS_PER_US


@pytest.fixture
def events(run_folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((run_folder / "trace.json").read_text())["traceEvents"]
    return found


def slices(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] == "X"]


def test_every_event_is_metadata_or_a_slice_on_a_named_track(events: list[dict[str, Any]]) -> None:
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    processes = {e["pid"] for e in events if e["name"] == "process_name"}
    assert {e["ph"] for e in events} == {"M", "X"}
    for e in slices(events):
        assert (e["pid"], e["tid"]) in named
        assert e["pid"] in processes
        assert e["ts"] >= 0
        assert e["dur"] >= 0
        assert e["name"]


def test_slices_of_a_track_do_not_overlap(events: list[dict[str, Any]]) -> None:
    tracks = defaultdict(list)
    for e in slices(events):
        tracks[e["tid"]].append((e["ts"], e["ts"] + e["dur"]))
    for spans in tracks.values():
        assert all(a[1] <= b[0] + 1e-6 for a, b in pairwise(spans))


def test_there_is_a_track_for_each_engine_and_each_queue(events: list[dict[str, Any]], ran: Profile) -> None:
    assert ran.step is not None
    t = ran.step.timeline
    queues = {f"{ENGINES[e]} q{t.ops[op].queue}" for e, op in zip(t.engine, t.op) if t.ops[op].lanes}
    names = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {"calls", "critical path", *CORE_ENGINES, *queues}


def test_every_instruction_is_there_with_its_text_line_op_and_what_it_waited_for(
    events: list[dict[str, Any]], ran: Profile
) -> None:
    assert ran.step is not None
    t = ran.step.timeline
    shown = {e["args"]["id"]: e for e in slices(events) if e["cat"] in ENGINES}
    assert sorted(shown) == list(range(len(t)))
    for i, e in shown.items():
        assert (e["ts"], e["dur"]) == (t.start[i] / PS_PER_US, (t.end[i] - t.start[i]) / PS_PER_US)
        assert set(e["args"]) >= {"opcode", "operands", "nki_source_location", "hlo_name", "waited for"}
        assert e["args"]["operands"] == ran.step.texts[ran.step.text[i]]
        assert t.blocker[i] < 0 or f"#{t.blocker[i]} " in e["args"]["waited for"]


def test_a_long_step_is_cut_and_says_so(ran: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ran.step is not None
    monkeypatch.setattr(perfetto, "MOST", 10)
    content = json.loads(perfetto.trace(ran))
    until = np.sort(ran.step.timeline.start)[10] / PS_PER_US
    assert content["otherData"]["cut"] == f"only the first 10 instructions of {len(ran.step.timeline)}"
    assert all(e["ts"] < until for e in slices(content["traceEvents"]))


def test_a_run_without_a_step_gives_a_trace_without_events(ran: Profile) -> None:
    assert json.loads(perfetto.trace(replace(ran, step=None)))["traceEvents"] == []
