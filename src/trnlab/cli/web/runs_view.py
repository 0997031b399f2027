# SPDX-License-Identifier: Apache-2.0
"""Runs: all of them, and one as it goes on or as it ended."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

from trnlab import documents, profile
from trnlab.cli.web.folders import FoundRun
from trnlab.cli.web.live import live
from trnlab.cli.web.shell import View, address, choice, field, form
from trnlab.cli.web.site import ServedSite
from trnlab.documents import Curve, CurveChart, Document, HeadlineFigure, Note, Section, Table
from trnlab.profile.data import FILE
from trnlab.profile.names import nice_time
from trnlab.profile.pages import page as run_page
from trnlab.profile.pages import pictures
from trnlab.quoting import markup as escape
from trnlab.units import PS_PER_S

ROWS = 50  # of the list
RUNNING = "running"
SLOW_S = 3  # between two looks at a list, and at a run
FAST_S = 1
SLOWER = 3  # times as long as the others a first step is left out of its picture
Asked = Mapping[str, str]


def _loss(run: FoundRun) -> float:
    loss = run.summary.get("loss") or [math.inf]
    return loss[-1] if isinstance(loss[-1], int | float) and math.isfinite(loss[-1]) else math.inf


SORTS: Mapping[str, tuple[str, Callable[[FoundRun], Any], bool]] = {
    "newest": ("newest first", lambda run: str(run.summary.get("started", "")), True),
    "oldest": ("oldest first", lambda run: str(run.summary.get("started", "")), False),
    "name": ("name", lambda run: run.name, False),
    "loss": ("least loss", _loss, False),
    "step": ("shortest step", lambda run: run.summary.get("step_time_s") or math.inf, False),
    "mfu": ("highest MFU", lambda run: run.summary.get("mfu") or 0.0, True),
    "steps": ("most steps", lambda run: run.summary.get("steps") or 0, True),
}


def runs(site: ServedSite, asked: Asked) -> View:
    """The list, with what it can be searched and sorted by."""
    sort = asked.get("sort", "")
    fields = [
        field("q", "Search", asked.get("q", ""), "search", placeholder="name, script, target, status"),
        choice("sort", "Sort by", sort, [(key, told) for key, (told, _, _) in SORTS.items()]),
    ]
    part = address("/runs/part", asked)
    body = (
        f"<header><p class='over'>trnlab run</p><h1>Runs</h1></header>{form('/runs', fields, data_live='yes')}"
        f'<div data-part="{escape(part)}" data-every="{SLOW_S}">{_list(site, asked)}</div>'
    )
    return View("runs", body, here="/runs")


def runs_part(site: ServedSite, asked: Asked) -> Mapping[str, object]:
    """The list alone."""
    return {"html": _list(site, asked), "over": False}


def _list(site: ServedSite, asked: Asked) -> str:
    words = asked.get("q", "").lower().split()
    found = [run for run in site.runs.all().values() if all(word in _said(run) for word in words)]
    _, key, down = SORTS.get(asked.get("sort", ""), SORTS["newest"])
    found.sort(key=key, reverse=down)
    pages = max(1, -(-len(found) // ROWS))
    number = asked.get("page", "1")
    here = min(max(int(number) if number.isdecimal() else 1, 1), pages)
    shown = found[(here - 1) * ROWS : here * ROWS]
    if not shown:
        return documents.body(Document("", [Section(parts=[Note(_none(site, words), loud=True)])]))
    rows = [_row(run) for run in shown]
    links = [address("/run", {"run": run.name}) for run in shown]
    head = ("run", "status", "target", "precision", "steps", "loss", "step", "MFU", "started")
    table = Table(rows, head, (4, 5, 6, 7), links=links)
    going = sum(run.summary.get("status") == RUNNING for run in found)
    title = f"{len(found):,} runs, {going} of them going on" if going else f"{len(found):,} runs"
    said = documents.body(Document("", [Section(heading=title, parts=[table])]))
    return said + _pager(asked, here, pages)


def _none(site: ServedSite, words: list[str]) -> str:
    if words:
        return "no run has all of these words"
    places = ", ".join(map(str, site.folders))
    return f"there are no runs below {places}: trnlab run --target trn1.2xlarge train.py leaves one in runs/"


def _pager(asked: Asked, here: int, pages: int) -> str:
    """Links to the pages of a list."""
    if pages == 1:
        return ""
    near = sorted({1, *range(max(1, here - 2), min(pages, here + 2) + 1), pages})
    links = [
        f'<a href="{escape(address("/runs", asked, page=str(n)))}"{" aria-current=page" if n == here else ""}>{n}</a>'
        for n in near
    ]
    return f'<nav class="pager" aria-label="pages">{"".join(links)}</nav>'


def _said(run: FoundRun) -> str:
    """All words of a run that a search looks at."""
    said = (str(run.summary.get(name)) for name in ("script", "target", "status", "precision"))
    return " ".join((run.name, *said)).lower()


def _row(run: FoundRun) -> tuple[str, ...]:
    s = run.summary
    if not s:
        return run.name, run.problem
    loss = pictures.number(s["loss"][-1]) if s["loss"] else ""
    step = nice_time(s["step_time_s"] * PS_PER_S) if "step_time_s" in s else ""
    mfu = f"{s['mfu']:.1%}" if "mfu" in s else ""
    return run.name, s["status"], s["target"], s["precision"], f"{s['steps']:,}", loss, step, mfu, s["started"]


def run(site: ServedSite, asked: Asked) -> View:
    """One run: while it goes on its curves and what is known of its programs, then its report."""
    found = site.runs.get(asked.get("run", ""))
    links = _ways(found)
    if found.summary.get("status") == RUNNING or not found.summary:
        part = address("/run/part", {"run": found.name})
        body = f'{links}<div data-part="{escape(part)}" data-every="{FAST_S}">{_going(found)}</div>'
        return View(found.name, body, here="/runs")
    document, scripts = _ended(found.folder, (found.folder / FILE).stat().st_mtime_ns)
    return View(found.name, f"{links}{document}", scripts, here="/runs")


def run_part(site: ServedSite, asked: Asked) -> Mapping[str, object]:
    """A run as it is now; over: it has ended, and has a report."""
    found = site.runs.get(asked.get("run", ""))
    over = bool(found.summary) and found.summary["status"] != RUNNING
    return {"html": _going(found), "over": over, "reload": over}


def _ways(found: FoundRun) -> str:
    """Links to other views of a run."""
    ways = [
        (address("/timeline", {"run": found.name}), "Timeline and source"),
        (address("/compare", {"first": found.name}), "Compare with another"),
    ]
    said = "".join(f'<a href="{escape(to)}">{escape(name)}</a>' for to, name in ways)
    return f'<p class="ways">{said}</p>'


def _going(found: FoundRun) -> str:
    """A run that goes on."""
    if not found.summary:
        return documents.body(Document(found.name, [Section(parts=[Note(found.problem, loud=True)])]))
    s = profile.read_summary(found.folder)
    return documents.body(
        Document(
            found.name,
            [*pictures.loss(s), *wall(s), *live(found.folder)],
            over=f"trnlab run on {s['target']}, {s['precision']}: {s['status']}",
            lede=" ".join([s["script"], *s["arguments"]]),
            figures=list(_figures(s)),
        )
    )


def _figures(s: Mapping[str, Any]) -> Iterator[HeadlineFigure]:
    yield HeadlineFigure("Steps", f"{s['steps']:,}")
    if s["loss"]:
        first, last = (pictures.number(s["loss"][i]) for i in (0, -1))
        yield HeadlineFigure("Loss", last, f"from {first}")
    if s["step_wall_s"]:
        yield HeadlineFigure("One step here", nice_time(median(s["step_wall_s"]) * PS_PER_S), "to simulate")


def wall(s: Mapping[str, Any]) -> list[Section]:
    """How long each step took on this host; the first, which compiles, is told and not drawn where it would hide the
    others."""
    seconds = s["step_wall_s"]
    if len(seconds) < 2:
        return []
    slow = seconds[0] > SLOWER * median(seconds[1:])
    curve = Curve("seconds", "var(--vector)", [None, *seconds[1:]] if slow else seconds)
    say = "Seconds that this host took to simulate each step; what the chip would take is told when the run ends."
    say += f" The first, which compiled, took {seconds[0]:.1f} s and is not drawn." if slow else ""
    return [Section(heading="Step time here", say=say, parts=[CurveChart([curve], "seconds of each step")])]


@lru_cache(maxsize=8)
def _ended(folder: Path, stamp: int) -> tuple[str, tuple[str, ...]]:
    """The report of a run, as `trnlab profile` has it, and its scripts. stamp: of its summary, which tells it from an
    earlier run in the same folder."""
    found = profile.load(folder)
    made = run_page.document(found)
    made = replace(made, sections=[*made.sections, *wall(found.summary)])
    return documents.body(made), tuple(script.name for script in made.scripts)
