# SPDX-License-Identifier: Apache-2.0
"""The vendor's JSON: what we write reads as theirs, what we read is what is in the file."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from profile_samples import measured_dump

from trnlab import profile
from trnlab.errors import RunError
from trnlab.profile import Profile, vendor
from trnlab.profile.critical import pieces
from trnlab.profile.stall_attribution import lost
from trnlab.timeline import CAUSES, CORE_ENGINES, ENGINES


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    path = tmp_path / "kernel.json"
    path.write_text(json.dumps(measured_dump()))
    return path


@pytest.fixture(scope="module")
def exported(ran: Profile) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(vendor.export(ran))
    return found


def test_instructions_are_written_with_their_times_in_nanoseconds(ran: Profile, exported: dict[str, Any]) -> None:
    assert ran.step is not None
    t, rows = ran.step.timeline, exported["instruction"]
    assert len(rows) == len(t)
    for i in (0, len(t) // 2, len(t) - 1):
        assert rows[i]["timestamp"] * 1000 == pytest.approx(int(t.start[i]))
        assert rows[i]["subgroup"].lower() == ENGINES[t.engine[i]]
        assert rows[i]["operands"] == ran.step.texts[ran.step.text[i]]
    assert {"MATMUL", "DMA_DIRECT2D", "COPY"} <= {row["opcode"] for row in rows}
    assert any(row["nki_source_location"] == "/home/me/train.py:12" for row in rows)
    assert exported["metadata"][0]["is_simulation"] is True


def test_waiting_and_work_fill_an_engines_time(ran: Profile, exported: dict[str, Any]) -> None:
    assert ran.step is not None
    t = ran.step.timeline
    for name, code in vendor.SUBGROUPS.items():
        mine = [row for row in exported["instruction"] if row["subgroup"] == name]
        waited = sum(row["evt_wait_time"] for row in mine) * 1000
        busy = int((t.end[t.engine == code] - t.start[t.engine == code]).sum())
        assert waited + busy == pytest.approx(int(t.end[t.engine == code].max()), abs=1000)


def test_the_exported_summary_has_the_vendors_names_and_units(ran: Profile, exported: dict[str, Any]) -> None:
    s, (found,) = ran.summary, exported["summary"]
    assert found["total_time"] == pytest.approx(s["step_time_s"])
    assert found["tensor_engine_active_time_percent"] == s["engines"]["tensor"]["active"]
    assert found["dma_active_time"] == pytest.approx(s["engines"]["dma"]["active"] * s["step_time_s"])
    assert (found["hbm_read_bytes"], found["hbm_write_bytes"]) == (s["hbm"]["read_bytes"], s["hbm"]["write_bytes"])
    assert found["mfu_estimated_percent"] == s["mfu"]
    assert found["instance_type"] == "trn1.2xlarge"


def test_active_time_is_the_union_of_the_instructions(ran: Profile, exported: dict[str, Any]) -> None:
    s = ran.summary
    for name in CORE_ENGINES:
        spans = [row for row in exported["active_time"] if row["engine"] == name]
        assert all(a["end_ts"] < b["start_ts"] for a, b in pairwise(spans))
        active = sum(row["duration_ns"] for row in spans) / 1e9
        assert active == pytest.approx(s["engines"][name]["active"] * s["step_time_s"], rel=1e-6)


def test_what_is_exported_can_be_imported_and_is_the_same(ran: Profile, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    profile.export(ran.folder, path)
    found = vendor.read(path)
    assert ran.step is not None
    assert found.step is not None
    comparison = profile.compare(ran, found)
    assert comparison.totals[0] == comparison.totals[1]
    assert comparison.measured
    assert comparison.unpaired == ({}, {})
    assert all(abs(pair.error) < 0.01 for pair in comparison.pairs)


def test_a_measured_run_is_read(dump: Path) -> None:
    found = vendor.read(dump)
    assert found.step is not None
    t, step = found.step.timeline, found.step
    assert t.total == 3_000_000
    names = [t.ops[op].name for op in t.op]
    assert names == ["DMA_DIRECT2D", "dma packet", "dma packet", "MATMUL", "MATMUL", "ACTIVATE"]
    assert t.start.tolist() == [100_000, 700_000, 720_000, 1_200_000, 1_312_000, 1_600_000]
    assert t.done[-1] == 2_300_000
    assert [op.n for op in t.ops if op.name in ("MATMUL", "ACTIVATE")] == [512, 512]
    assert [CAUSES[c] for c in t.cause[3:]] == ["issue", "issue", "operand"]
    assert t.blocker.tolist()[3:] == [-1, 3, 4]
    assert step.sources[step.source[3]][0] == "kernel.py:12"
    sbuf, psum = step.occupancy["sbuf"], step.occupancy["psum"]
    assert (sbuf.time.tolist(), sbuf.bytes.tolist()) == ([0, 700_000], [0, sbuf.capacity // 2])
    assert (psum.capacity, psum.bytes.tolist()) == (2 << 20, [0, 1 << 18])
    assert t.meta["half_rate"] == [(0, 1_250_000), (2_000_000, 2_500_000)]


def test_the_time_of_a_measured_run_is_accounted_for_to_the_picosecond(dump: Path) -> None:
    step = vendor.read(dump).step
    assert step is not None
    assert sum(loss.time for loss in lost(step, pieces(step))) == step.timeline.total


def test_an_engine_that_takes_the_next_instruction_is_free_of_the_one_before(dump: Path) -> None:
    step = vendor.read(dump).step
    assert step is not None
    t = step.timeline
    for code in range(len(ENGINES)):
        mine = np.flatnonzero(t.engine == code)
        assert (t.end[mine[:-1]] <= t.start[mine[1:]]).all()


def test_a_measured_run_is_shown_with_a_page_beside_it(dump: Path) -> None:
    told = profile.show_measured(dump)
    assert "kernel on trn2.3xlarge, measured" in told
    assert "MATMUL" in told
    assert dump.with_suffix(".html").read_text().count('class="timeline"') == 1


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"instruction": [{}]}', '{"instruction": 3}'])
def test_what_is_no_profile_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(RunError, match="TRN815"):
        vendor.read(path)
    with pytest.raises(RunError, match="TRN811"):
        vendor.read(tmp_path / "missing.json")


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("instruction", "timestamp", 1e18),
        ("instruction", "duration", "12"),
        ("dma", "duration", float("nan")),
        ("dma", "dma_queue", 1 << 70),
        ("instruction_usage", "usage_avg", "0.5"),
        ("instruction_usage", "usage_avg", 1e12),
        ("summary", "total_time", 1e30),
    ],
)
def test_numbers_that_no_profile_has_are_refused(dump: Path, kind: str, name: str, value: object) -> None:
    """Found by damaged files: an error where a page is drawn, and gigabytes of a text that is multiplied."""
    content = measured_dump()
    content[kind][0][name] = value
    dump.write_text(json.dumps(content))
    with pytest.raises(RunError, match="TRN815"):
        vendor.read(dump)
