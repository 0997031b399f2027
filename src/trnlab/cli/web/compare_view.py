# SPDX-License-Identifier: Apache-2.0
"""Two runs beside each other, as `trnlab compare` has them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from trnlab import documents, profile
from trnlab.cli.web.shell import View, field, form
from trnlab.cli.web.site import ServedSite
from trnlab.profile.data import FILE
from trnlab.quoting import markup as escape

MOST = 300  # runs that a field proposes


def compare(site: ServedSite, asked: Mapping[str, str]) -> View:
    """The form, and what got faster, slower, appeared or vanished from one run to the other."""
    names = [asked.get(name, "") for name in ("first", "second")]
    head = "<header><p class='over'>trnlab compare</p><h1>Compare two runs</h1></header>"
    newest = sorted(site.runs.all().values(), key=lambda run: str(run.summary.get("started", "")), reverse=True)
    proposed = "".join(f'<option value="{escape(run.name)}"></option>' for run in newest[:MOST])
    fields = [
        field(name, label, value, list="runs", required="required")
        for name, label, value in zip(("first", "second"), ("From", "To"), names)
    ]
    before = head + form("/compare", fields, "Compare") + f'<datalist id="runs">{proposed}</datalist>'
    if not all(names):
        said = '<p class="say">Choose two runs: of each its name in the list.</p>'
        return View("compare", before + said, here="/compare")
    folders = [site.runs.get(name).folder for name in names]
    body, scripts = _compared(*((folder, (folder / FILE).stat().st_mtime_ns) for folder in folders))
    return View("compare", before + body, scripts, here="/compare")


@lru_cache(maxsize=8)
def _compared(first: tuple[Path, int], second: tuple[Path, int]) -> tuple[str, tuple[str, ...]]:
    """The comparison and its scripts. The numbers are when the summaries were written."""
    runs = profile.open_run(first[0]), profile.open_run(second[0])
    found = profile.comparison.document(profile.compare(*runs), runs)
    return documents.body(found), tuple(script.name for script in found.scripts)
