# SPDX-License-Identifier: Apache-2.0
"""The source beside a timeline: each line with its share of the critical path."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trnlab import documents
from trnlab.documents import Document, Section
from trnlab.profile.critical import pieces
from trnlab.profile.data import Step
from trnlab.profile.names import nice_time
from trnlab.profile.pages.page import SCRIPTS
from trnlab.profile.stall_attribution import lines
from trnlab.quoting import markup as escape
from trnlab.storage import plain_files

NAMES = [*(script.name for script in SCRIPTS), "beside.js"]  # of scripts that draw both
LARGEST = 1 << 20  # bytes of a file that is shown
MOST_FILES = 12
AROUND = 3  # lines of a long file around one that takes time
SHORT = 400  # lines of a file that is shown whole
_PLACE = re.compile(r"^(?P<file>.*):(?P<line>\d+)(?: in .*)?$")


@dataclass
class LineTime:
    """A line of a file, and what it takes."""

    text: str
    critical: int = 0  # picoseconds of the critical path
    instructions: int = 0
    sources: list[int] = field(default_factory=list)  # numbers in the step's table


def beside(section: Section, step: Step, script: str) -> str:
    """A timeline and its source."""
    drawn = documents.body(Document("", [section]))
    return f'<div class="beside"><div>{drawn}</div>{panel(step, script)}</div>'


def panel(step: Step, script: str) -> str:
    """Files with the lines that instructions come from, those that take most first; "" where nothing is known."""
    files = _by_file(step)
    order = sorted(files, key=lambda name: -sum(line.critical for line in files[name].values()))
    total = max(step.timeline.total, 1)
    shown = [_file(name, files[name], total, Path(script).parent) for name in order[:MOST_FILES]]
    return f'<section class="source" aria-label="source">{"".join(shown)}</section>' if shown else ""


def _by_file(step: Step) -> dict[str, dict[int, LineTime]]:
    found: dict[str, dict[int, LineTime]] = {}
    for each in lines(step, pieces(step)):
        place, text = step.sources[each.source]
        match = _PLACE.match(place)
        if match is None:
            continue
        line = found.setdefault(match["file"], {}).setdefault(int(match["line"]), LineTime(text))
        line.critical += each.critical
        line.instructions += each.instructions
        line.sources.append(each.source)
    return found


def _file(name: str, timed: Mapping[int, LineTime], total: int, folder: Path) -> str:
    """A file. One that is no longer what was run is not shown beside times of what it was, but those lines alone."""
    path = Path(name)
    title = path.relative_to(folder) if path.is_relative_to(folder) else Path(*path.parts[-2:])
    text = _text(path)
    same = all(n <= len(text) and text[n - 1].strip() == line.text.strip() for n, line in timed.items())
    rows = "".join(_rows(text if same else (), timed, total))
    changed = '<p class="over">It has changed since: only the lines that were run are shown.</p>'
    return f"<h3>{escape(title)}</h3>{'' if same else changed}<table>{rows}</table>"


def _text(path: Path) -> Sequence[str]:
    """The lines of a file of Python, as it is now; none where it cannot be read, or is something else."""
    if path.suffix != ".py":
        return ()
    try:
        return plain_files.read(path, most=LARGEST).decode("utf-8").splitlines()
    except (OSError, ValueError):
        return ()


def _rows(text: Sequence[str], timed: Mapping[int, LineTime], total: int) -> Iterator[str]:
    """Rows of lines; only those that were run where there is no text."""
    if not text:
        shown = sorted(timed)
    elif len(text) <= SHORT:
        shown = list(range(1, len(text) + 1))
    else:
        near = {n for number in timed for n in range(number - AROUND, number + AROUND + 1)}
        shown = sorted(n for n in near if 1 <= n <= len(text))
    for before, number in zip((0, *shown), shown):
        if number > before + 1:
            yield '<tr><td>…</td><td class="heat"></td><td></td></tr>'
        yield _row(number, text[number - 1] if text else timed[number].text, timed.get(number), total)


def _row(number: int, text: str, line: LineTime | None, total: int) -> str:
    if line is None:
        return f'<tr><td>{number}</td><td class="heat"></td><td>{escape(text)}</td></tr>'
    share = line.critical / total
    told = f"{share:.1%}" if line.critical else ""
    says = f"{line.instructions:,} instructions, {nice_time(line.critical)} of the critical path"
    sources = ",".join(map(str, line.sources))
    return (
        f'<tr class="timed" data-sources="{sources}"><td>{number}</td>'
        f'<td class="heat" style="--share:{share:.1%}">{told}</td>'
        f'<td><button title="{escape(says)}">{escape(text) or " "}</button></td></tr>'
    )
