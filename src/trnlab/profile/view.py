# SPDX-License-Identifier: Apache-2.0
"""The data of the page's timeline: columns of integers, compressed, and the strings that they index.

The header is JSON: unit (picoseconds of one tick), total (ticks), rows, tables of strings, and the columns in their
order: [name, bytes of an integer, count, whether they are differences]. Integers are unsigned and little-endian. The
columns come in two parts, each deflated on its own, so that the page can draw before it has unpacked the second:

    bars            one entry per bar, row by row: start and length in ticks, ref (the instruction, or the call in the
                    rows of calls); kind, for bars of the critical path only; then occupancy
    instructions    one entry per instruction: text, source, op, buffer (0 for none, else 1 + its number), cause, and
                    how far back the instructions lie that it waited for (blocker, held; signed as differences are,
                    since those of another core may come later; 0 for none); then the chain, the instructions of the
                    critical path in order of time
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from trnlab.profile.critical import KINDS, Pieces
from trnlab.profile.data import Ints, Step
from trnlab.profile.lanes import LaneRow, rows
from trnlab.profile.names import short_label, short_place
from trnlab.timeline import CAUSES

MOST_TICKS = 2**32 - 1
MOST = 2_000_000  # instructions; of a longer step the page shows the beginning
Columns = Mapping[str, Ints]
_DIFFERENCES = ("start", "time", "ref", "chain")


def packed(step: Step, chain: Pieces, script: str, parts: Sequence[tuple[str, int]] = ()) -> tuple[str, str, str]:
    """Header as JSON, and the two parts of the columns as base64; all safe inside a script element.

    parts: names and lengths in picoseconds of the steps that `step` consists of, where they are several.
    """
    unit = max(1, -(-step.timeline.total // (MOST_TICKS - 1)))
    until = _end(step)
    found = (row for row in rows(step.timeline, chain) if row.lane != "critical" or len(step.critical))
    tracks = [_cut(row, until) for row in (*_parts(parts), *found)]
    drawn = [row.refs for row in tracks if row.lane not in ("steps", "calls") and len(row.refs)]
    shown = 1 + max((int(refs.max()) for refs in drawn), default=-1)
    used = {name: (o, int(np.searchsorted(o.time, until, side="right"))) for name, o in step.occupancy.items()}
    columns = ({**_bars(tracks, unit), **_occupancy(step, used, unit)}, _instructions(step, shown))
    header = {
        "unit": unit,
        "total": until // unit,
        "whole": until == step.timeline.total,
        "rows": [{"lane": row.lane, "name": row.name, "count": len(row.start)} for row in tracks],
        "occupancy": [{"name": name, "capacity": o.capacity, "count": count} for name, (o, count) in used.items()],
        "steps": [name for name, _ in parts],
        "kinds": KINDS,
        "causes": CAUSES,
        **_tables(step, script),
    }
    described, data = zip(*(_pack(part) for part in columns))
    text = json.dumps({**header, "columns": described}, separators=(",", ":")).replace("<", "\\u003c")
    return text, data[0], data[1]


def _parts(parts: Sequence[tuple[str, int]]) -> Iterator[LaneRow]:
    """A row of steps, one after the other."""
    if parts:
        end = np.cumsum([length for _, length in parts])
        yield LaneRow("steps", "steps", end - [length for _, length in parts], end, np.arange(len(parts)))


def _pack(columns: Columns) -> tuple[list[list[Any]], str]:
    """What the columns are, and their content. Every column starts at a multiple of four bytes."""
    described: list[list[Any]] = []
    blobs = []
    for name, column in columns.items():
        differences = name.partition(" ")[0] in _DIFFERENCES
        values = _zigzag(np.diff(column, prepend=0)) if differences else column
        largest = int(values.max()) if len(values) else 0
        size = 1 if largest < 1 << 8 else 2 if largest < 1 << 16 else 4
        blob = values.astype(f"<u{size}").tobytes()
        blobs.append(blob + b"\0" * (-len(blob) % 4))
        described.append([name, size, len(column), differences])
    return described, base64.b64encode(zlib.compress(b"".join(blobs), 6)).decode()


def _zigzag(values: Ints) -> Ints:
    """Integers of either sign as unsigned ones: 0, -1, 1, -2, 2 become 0, 1, 2, 3, 4."""
    return np.where(values < 0, -2 * values - 1, 2 * values)


def _bars(tracks: list[LaneRow], unit: int) -> dict[str, Ints]:
    """All bars; a row's `start` and `ref` begin again from zero, so each row is a column of its own."""
    found: dict[str, Ints] = {}
    for number, row in enumerate(tracks):
        start = row.start // unit
        found[f"start {number}"] = start
        found[f"length {number}"] = np.maximum(row.end // unit - start, 0)
        found[f"ref {number}"] = row.refs
        if row.kinds is not None:
            found[f"kind {number}"] = row.kinds
    return found


def _occupancy(step: Step, used: Mapping[str, Any], unit: int) -> dict[str, Ints]:
    found: dict[str, Ints] = {}
    for number, (o, count) in enumerate(used.values()):
        found[f"time {number}"] = o.time[:count] // unit
        found[f"bytes {number}"] = o.bytes[:count]
    return found


def _instructions(step: Step, shown: int) -> dict[str, Ints]:
    """Columns of the first `shown` instructions."""
    t = step.timeline
    number = np.arange(len(t))
    columns = {
        "text": step.text,
        "source": step.source,
        "op": t.op,
        "buffer": step.buffer + 1,
        "cause": t.cause,
        "blocker": np.where(t.blocker < 0, 0, _zigzag(number - t.blocker)),
        "held": np.where(t.held < 0, 0, _zigzag(number - t.held)),
    }
    cut = {name: column[:shown] for name, column in columns.items()}
    return {**cut, "chain": step.critical[step.critical < shown]}


def _tables(step: Step, script: str) -> dict[str, Any]:
    t = step.timeline
    labels: dict[str, int] = {}
    places: dict[str, int] = {}
    calls = []
    for c in t.calls:
        place = places.setdefault(short_place(c.loc, script), len(places))
        calls.append([labels.setdefault(short_label(c.label), len(labels)), c.count, place])
    return {
        "texts": step.texts,
        "sources": [[short_place(place, script), line] for place, line in step.sources],
        "labels": list(labels),
        "places": list(places),
        "buffers": step.buffers,
        "calls": calls,
        "ops": [[op.name, op.flops, op.n * op.m if op.lanes else 0] for op in t.ops],
    }


def _end(step: Step) -> int:
    """Where the page's timeline ends."""
    start = step.timeline.start
    return step.timeline.total if len(start) <= MOST else int(np.partition(start, MOST)[MOST])


def _cut(row: LaneRow, until: int) -> LaneRow:
    """The bars that start before `until`."""
    count = int(np.searchsorted(row.start, until))
    kinds = None if row.kinds is None else row.kinds[:count]
    return LaneRow(row.lane, row.name, row.start[:count], np.minimum(row.end[:count], until), row.refs[:count], kinds)
