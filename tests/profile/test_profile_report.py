# SPDX-License-Identifier: Apache-2.0
"""report.html and the picture for documents: whole, self-contained, and with the data of the run."""

from __future__ import annotations

import base64
import html.parser
import json
import re
import shutil
import xml.etree.ElementTree as xml
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trnlab import documents, profile
from trnlab.documents.charts import ticks
from trnlab.errors import RunError
from trnlab.profile import Profile, view
from trnlab.profile.critical import pieces
from trnlab.profile.lanes import rows
from trnlab.profile.pages.page import document
from trnlab.profile.pages.picture import _coverage

VOID = {"meta", "br", "line", "circle", "path", "img", "input"}


class Elements(html.parser.HTMLParser):
    """Checks that every element is closed, and keeps the contents of those with a class."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[tuple[str, str]] = []
        self.by_class: dict[str, str] = {}
        self.headings: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append((tag, dict(attrs).get("class") or ""))
            self.by_class.setdefault(self.open[-1][1], "")

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1][1]:
            self.by_class[self.open[-1][1]] += data
        if self.open and self.open[-1][0] == "h2":
            self.headings.append(data)


def parsed(text: str) -> Elements:
    found = Elements()
    found.feed(text)
    assert found.open == []
    return found


def columns(found: Elements) -> tuple[dict[str, Any], dict[str, Any]]:
    """The header of the timeline's data and its columns, decoded as the page's script does."""
    header = json.loads(found.by_class["data-header"])
    columns = {}
    for part, described in zip(("data-bars", "data-instructions"), header["columns"], strict=True):
        data, at = zlib.decompress(base64.b64decode(found.by_class[part])), 0
        for name, size, count, differences in described:
            column = np.frombuffer(data, f"<u{size}", count, at).astype(np.int64)
            at += -(-size * count // 4) * 4
            signed = np.where(column & 1, -(column + 1) // 2, column // 2)
            columns[name] = np.cumsum(signed) if differences else column
        assert at == len(data)
    return header, columns


def test_the_page_needs_nothing_but_itself(run_folder: Path) -> None:
    text = (run_folder / "report.html").read_text()
    assert not re.search(r"https?:|<[a-z][^>]*\s(src|href)=|url\(|@import|//[a-z]+\.[a-z]", text)
    assert "prefers-color-scheme: dark" in text
    assert '<meta name="viewport"' in text


def test_the_page_shows_the_pictures_first(run_folder: Path) -> None:
    found = parsed((run_folder / "report.html").read_text())
    assert found.headings == [
        "Loss",
        "One step, instruction by instruction",
        "What could make it faster",
        "Time lost by cause",
        "What each engine did",
        "The costliest source lines",
        "Where the time goes",
        "Roofline",
        "Engines",
        "HBM",
        "Numbers",
        "Assumed figures",
    ]


def test_the_page_holds_every_bar_of_the_timeline(run_folder: Path, ran: Profile) -> None:
    header, data = columns(parsed((run_folder / "report.html").read_text()))
    assert ran.step is not None
    t, step = ran.step.timeline, ran.step
    assert header["unit"] == 1
    for number, (row, shown) in enumerate(zip(rows(t, pieces(step)), header["rows"], strict=True)):
        assert (shown["lane"], shown["name"], shown["count"]) == (row.lane, row.name, len(row.start))
        assert np.array_equal(data[f"start {number}"], row.start)
        assert np.array_equal(data[f"start {number}"] + data[f"length {number}"], row.end)
        assert np.array_equal(data[f"ref {number}"], row.refs)
    number = np.arange(len(t))
    for name, waited in (("blocker", t.blocker), ("held", t.held)):
        back = np.where(data[name] & 1, -(data[name] + 1) // 2, data[name] // 2)
        assert np.array_equal(np.where(back == 0, -1, number - back), waited)
    assert [header["texts"][i] for i in data["text"]] == [step.texts[i] for i in step.text]
    assert np.array_equal(data["buffer"] - 1, step.buffer)
    assert np.array_equal(data["chain"], step.critical)


def test_the_page_holds_what_the_memories_hold(run_folder: Path, ran: Profile) -> None:
    header, data = columns(parsed((run_folder / "report.html").read_text()))
    assert ran.step is not None
    for number, memory in enumerate(header["occupancy"]):
        used = ran.step.occupancy[memory["name"]]
        assert memory["capacity"] == used.capacity
        assert np.array_equal(data[f"time {number}"], used.time)
        assert np.array_equal(data[f"bytes {number}"], used.bytes)


def test_long_times_fit_the_pages_integers(ran: Profile) -> None:
    assert ran.step is not None
    t = ran.step.timeline
    slow = {name: getattr(t, name) * 10_000 for name in ("start", "end", "begin", "done")}
    step = replace(ran.step, timeline=replace(t, total=t.total * 10_000, completion=t.completion * 10_000, **slow))
    header = json.loads(view.packed(step, pieces(step), "train.py")[0])
    assert header["unit"] > 1
    assert header["total"] <= view.MOST_TICKS


def test_the_page_of_a_long_step_shows_its_beginning(ran: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ran.step is not None
    monkeypatch.setattr(view, "MOST", 10)
    header, data = columns(parsed(documents.page(document(ran))))
    assert header["total"] == np.sort(ran.step.timeline.start)[10]
    assert not header["whole"]
    shown = [data[f"ref {i}"] for i, row in enumerate(header["rows"]) if row["lane"] != "calls" and row["count"]]
    assert max(refs.max() for refs in shown) < len(data["text"])


def test_what_a_user_wrote_cannot_break_the_page(ran: Profile) -> None:
    summary = {**ran.summary, "name": "<b>run</b>", "arguments": ["</script><script>alert(1)</script>"]}
    text = documents.page(document(replace(ran, summary=summary)))
    parsed(text)
    assert "<b>run" not in text
    assert "alert(1)</script>" not in text
    assert "y = x @ w  # \\u003c/script>" in text


def test_an_interrupted_run_shows_what_there_is(ran: Profile) -> None:
    kept = {k: ran.summary[k] for k in list(ran.summary)[: list(ran.summary).index("step")]}
    cut = {**kept, "status": "interrupted", "complete": False, "loss": [3.0, None, 2.5], "reference_loss": []}
    found = parsed(documents.page(document(Profile(ran.folder, cut, None))))
    assert found.headings == ["Loss", "Numbers"]
    assert parsed(documents.page(document(Profile(ran.folder, {**cut, "loss": []}, None)))).headings == ["Numbers"]
    assert "This run is interrupted" in documents.page(document(Profile(ran.folder, cut, None)))


def test_rendering_a_run_that_was_killed_works_too(run_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(run_folder, tmp_path / "killed", ignore=lambda *_: ["report.html", "trace.json"]))
    summary = json.loads((folder / "summary.json").read_text())
    for name in list(summary)[list(summary).index("step") :]:
        del summary[name]
    (folder / "summary.json").write_text(json.dumps({**summary, "status": "running", "complete": False}))
    shown = profile.show(folder)
    assert "running: what follows is partial" in shown
    assert str(folder / "report.html") in shown
    assert json.loads((folder / "trace.json").read_text())["traceEvents"] == []


def test_showing_a_run_again_leaves_its_files_alone(run_folder: Path) -> None:
    before = (run_folder / "report.html").stat().st_mtime_ns
    assert profile.show(run_folder).startswith("train-1 on trn1.2xlarge (trn1, bf16)\n")
    assert (run_folder / "report.html").stat().st_mtime_ns == before


def test_what_cannot_be_written_is_an_error_and_leaves_nothing_half(run_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(run_folder, tmp_path / "copy"))
    (folder / "report.html").unlink()
    (folder / "report.html").mkdir()
    with pytest.raises(RunError, match="TRN813"):
        profile.render(folder)
    assert {path.name for path in folder.iterdir()} == {path.name for path in run_folder.iterdir()}


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 10, [0, 2, 4, 6, 8, 10]), (2.1, 4.9, [2, 3, 4, 5]), (0.01, 0.02, np.arange(10, 21, 2) / 1000), (3, 3, [3])],
)
def test_ticks_are_round_and_cover_the_range(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high, 5) == pytest.approx(expected)


def test_coverage_is_what_counting_gives() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        start = np.sort(rng.integers(0, 900, 30))
        end = start + rng.integers(0, 60, 30)
        fine = np.zeros(1000)
        for a, b in zip(start, end):
            fine[a:b] = 1
        found = _coverage(start, end, 100, 900, 40)
        assert np.allclose(found, fine[100:900].reshape(40, 20).mean(1))


def test_the_picture_is_a_small_svg_without_scripts(ran: Profile) -> None:
    text = profile.picture(ran)
    root = xml.fromstring(text)
    assert root.tag.endswith("svg")
    assert len(text) < 100_000
    assert not [e for e in root.iter() if e.tag.endswith(("script", "image", "foreignObject"))]
    assert "One training step" in text
    with pytest.raises(RunError):
        profile.picture(replace(ran, step=None))
