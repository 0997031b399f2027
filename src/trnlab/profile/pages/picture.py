# SPDX-License-Identifier: Apache-2.0
"""One picture of a timeline for documents: a whole step, and below it a moment of the step with every instruction.

    Path("timeline.svg").write_text(profile.picture(profile.load(folder)))

A small SVG without scripts; it follows the reader's light or dark theme.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from trnlab.errors import RunError
from trnlab.profile.critical import KINDS, Pieces, pieces
from trnlab.profile.data import Ints, Profile, Step
from trnlab.profile.lanes import LaneRow, rows
from trnlab.profile.names import nice_time, short_label
from trnlab.quoting import markup as escape
from trnlab.timeline import Timeline

WIDTH, LEFT, RIGHT = 960, 96, 16
LANE, GAP = 22, 5
LEVELS = 5  # of how much of a column is covered
Floats = np.ndarray[Any, np.dtype[np.float64]]
MOMENT = 24  # of the step's length, one such part is shown in detail
_LIGHT = {
    "ink": "#1c1f23",
    "lane": "#f1efeb",
    "tensor": "#2f6bd6",
    "vector": "#16957a",
    "scalar": "#d48a12",
    "gpsimd": "#8a5cc7",
    "sync": "#7d8590",
    "cc": "#b0487f",
    "dma": "#cf4a5f",
    "latency": "#b9bec6",
}
_DARK = {
    "ink": "#e7e9ec",
    "lane": "#22262b",
    "tensor": "#6d9cf2",
    "vector": "#41c3a3",
    "scalar": "#e9b14c",
    "gpsimd": "#b48df0",
    "sync": "#8f98a3",
    "cc": "#e58bb8",
    "dma": "#f07d8d",
    "latency": "#59616b",
}


def picture(profile: Profile, moment: tuple[int, int] | None = None) -> str:
    """The SVG. `moment`: from and to in picoseconds of what is shown in detail; the longest attention by default.

    Raises RunError for a run without a timed step.
    """
    step = profile.step
    if step is None or not len(step.timeline):
        raise RunError("the run has no timed step to draw", code="TRN810", remedy="run the script to its end")
    lanes = _merged(rows(step.timeline, pieces(step)))
    first, last = moment or _moment(step.timeline)
    down = 34 + len(lanes) * (LANE + GAP)
    low = down + 26
    about = f"One training step: {nice_time(step.timeline.total)}, {len(step.timeline):,} instructions"
    detail = f"{nice_time(last - first)} of it, from {nice_time(first)} on ({_heard(step, first, last)})"
    body = "".join(
        [
            *_panel(lanes, 0, step.timeline.total, 34, about),
            _marker(first, last, step.timeline.total, 34, down, low),
            *_panel(lanes, first, last, low + 34, detail),
        ]
    )
    height = low + 34 + len(lanes) * (LANE + GAP) + 4
    return _svg(body, height, about)


def strip(timeline: Timeline, title: str) -> str:
    """The engines and the DMA queues over the whole of a timeline, such as a kernel's, as an SVG of one panel."""
    nothing = np.empty(0, np.int64)
    lanes = [row for row in _merged(rows(timeline, Pieces(*(nothing,) * 5))) if row.lane != "critical"]
    height = 34 + len(lanes) * (LANE + GAP) + 4
    return _svg("".join(_panel(lanes, 0, timeline.total, 34, title)), height, title)


def _svg(body: str, height: int, title: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="13">\n<title>{escape(title)}</title>\n'
        f"<style>{_style()}</style>\n{body}</svg>\n"
    )


def _style() -> str:
    def rules(colours: dict[str, str]) -> str:
        lines = [f".{name}{{stroke:{colour}}}" for name, colour in colours.items() if name != "ink"]
        return f"text{{fill:{colours['ink']}}}{''.join(lines)}"

    return f"path{{fill:none}}{rules(_LIGHT)}@media (prefers-color-scheme:dark){{{rules(_DARK)}}}"


def _merged(found: list[LaneRow]) -> list[LaneRow]:
    """The critical path, the engines that compute, and all DMA queues as one row."""
    queues = [row for row in found if row.lane == "dma"]
    kept = [row for row in found if row.lane not in ("calls", "sync", "dma")]
    if queues:
        start, end, refs = (np.concatenate([getattr(q, name) for q in queues]) for name in ("start", "end", "refs"))
        order = np.argsort(start, kind="stable")
        kept.append(LaneRow("dma", "DMA", start[order], end[order], refs[order]))
    return [replace(row, name="critical path") if row.lane == "critical" else row for row in kept]


def _moment(t: Timeline) -> tuple[int, int]:
    """Around the longest call of attention, or else of anything."""
    named = [call for call in t.calls if call.count and call.label.startswith("attention")] or list(t.calls)
    pieces = [slice(call.first, call.first + call.count) for call in named]
    spans = [(int(t.start[piece].min()), int(t.done[piece].max())) for piece in pieces]
    first, last = max(spans, key=lambda span: span[1] - span[0])
    length = max(t.total // MOMENT, 1)
    middle = (first + last) // 2
    start = max(0, min(middle - length // 2, t.total - length))
    return start, start + length


def _heard(step: Step, first: int, last: int) -> str:
    """The call that has most of the instructions in the moment."""
    t = step.timeline
    calls = t.call[(t.start >= first) & (t.start < last)]
    return short_label(t.calls[int(np.bincount(calls).argmax())].label) if len(calls) else "nothing"


def _panel(lanes: list[LaneRow], first: int, last: int, top: int, title: str) -> Iterator[str]:
    yield f'<text x="{LEFT}" y="{top - 12}" font-weight="600">{escape(title)}</text>\n'
    for number, row in enumerate(lanes):
        y = top + number * (LANE + GAP) + LANE // 2
        yield f'<text x="{LEFT - 10}" y="{y + 4}" text-anchor="end">{escape(row.name)}</text>'
        yield f'<path class="lane" stroke-width="{LANE}" d="M{LEFT} {y}H{WIDTH - RIGHT}"/>\n'
        kinds = np.zeros(len(row.start), np.int64) if row.kinds is None else row.kinds
        for kind in np.unique(kinds).tolist():
            mine = kinds == kind
            name = row.lane if row.kinds is None else KINDS[kind]
            yield from _strips(name, row.start[mine], row.end[mine], first, last, y)


def _strips(name: str, start: Ints, end: Ints, first: int, last: int, y: int) -> Iterator[str]:
    """Runs of columns that are about equally covered, a path for each level."""
    columns = WIDTH - LEFT - RIGHT
    level = np.ceil(_coverage(start, end, first, last, columns) * LEVELS - 0.01).astype(np.int64)
    for value in range(1, LEVELS + 1):
        edges = np.flatnonzero(np.diff(level == value, prepend=False, append=False))
        runs = "".join(f"M{LEFT + a} {y}h{b - a}" for a, b in edges.reshape(-1, 2).tolist())
        if runs:
            opacity = "" if value == LEVELS else f' opacity="{value / LEVELS:g}"'
            yield f'<path class="{name}" stroke-width="{LANE}"{opacity} d="{runs}"/>\n'


def _coverage(start: Ints, end: Ints, first: int, last: int, columns: int) -> Floats:
    """How much of each column of [first, last) some interval covers, from 0 to 1."""
    a, b = (np.clip((x - first) / (last - first), 0, 1) * columns for x in (start, end))
    marks = np.arange(columns + 1, dtype=np.float64)
    # The length covered left of a mark: the sum over intervals, each clipped at the mark.
    order = np.argsort(a, kind="stable")
    a, b = a[order], np.maximum.accumulate(b[order])
    a = np.maximum(a, np.concatenate([[0.0], b[:-1]]))
    length = np.concatenate([[0.0], np.cumsum(np.maximum(b - a, 0))])
    begun = np.searchsorted(a, marks, side="right")
    inside = np.where(begun > 0, np.maximum(b[np.maximum(begun - 1, 0)] - marks, 0), 0) if len(a) else 0.0
    return np.diff(length[begun] - inside)


def _marker(first: int, last: int, total: int, top: int, bottom: int, low: int) -> str:
    """Lines from the moment in the whole step to its detail, whose title they pass on both sides."""
    scale = (WIDTH - LEFT - RIGHT) / total
    a, b = LEFT + first * scale, LEFT + last * scale
    lines = f"M{a:.1f} {top - 6}V{bottom}L{LEFT - 4} {low}v30M{b:.1f} {top - 6}V{bottom}L{WIDTH - RIGHT + 4} {low}v30"
    return f'<path class="latency" d="{lines}"/>\n'
