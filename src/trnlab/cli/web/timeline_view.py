# SPDX-License-Identifier: Apache-2.0
"""The timeline of a run, or of what it has executed so far, with its source beside it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from trnlab import documents, profile
from trnlab.cli.web.folders import FoundRun
from trnlab.cli.web.live import executed
from trnlab.cli.web.shell import View, address
from trnlab.cli.web.site import ServedSite
from trnlab.cli.web.source import NAMES, beside
from trnlab.documents import Document, Note, Section
from trnlab.profile.data import FILE, join
from trnlab.profile.pages import findings, pictures
from trnlab.quoting import markup as escape

Asked = Mapping[str, str]


def timeline(site: ServedSite, asked: Asked) -> View:
    """All instructions of a step; parameters: from, to, i (a chosen instruction), line."""
    run = site.runs.get(asked.get("run", ""))
    back = f'<p class="ways"><a href="{escape(address("/run", {"run": run.name}))}">The run</a></p>'
    head = f"<header><p class='over'>trnlab profile</p><h1>{escape(run.name)}</h1></header>"
    if run.summary.get("step"):
        body = _ended(run.folder, (run.folder / FILE).stat().st_mtime_ns)
    else:
        body = _now(site, run)
    return View(f"timeline of {run.name}", f"{back}{head}{body}", NAMES, here="/runs")


@lru_cache(maxsize=4)
def _ended(folder: Path, stamp: int) -> str:
    found = profile.load(folder)
    if found.step is None:
        return documents.body(Document("", [Section(parts=[Note("nothing of this run was timed", loud=True)])]))
    kinds = list(zip(findings.step_names(found.summary), found.kinds))
    section = pictures.timeline(found.summary, found.step, kinds)
    drawn = join([kind for _, kind in kinds]) if kinds else found.step
    return beside(section, drawn, found.summary["script"])


def _now(site: ServedSite, run: FoundRun) -> str:
    """What a run that goes on executes most, as the compile cache has it."""
    found = executed(site, run.folder)
    if found is None:
        said = "nothing of this run can be timed yet: it has not begun to execute, or another cache has its programs"
        return documents.body(Document("", [Section(parts=[Note(said, loud=True)])]))
    name, step = found
    summary = {"script": run.summary.get("script", "")}
    return beside(pictures.timeline(summary, step, (), f"{name}, as it is executed now"), step, summary["script"])
