# SPDX-License-Identifier: Apache-2.0
"""The data of the page's timeline: columns of integers, compressed, and the strings that they index.

The header is JSON: unit (picoseconds of one tick), total (ticks), rows, and tables of strings. The columns follow
each other in the order of header.columns, all little-endian uint32: first those with one entry per bar, row by row,
`start` as the difference from the bar before; then those with one entry per instruction, where NONE means nothing.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import numpy as np

from trnlab.profile.critical import KINDS, Pieces
from trnlab.profile.data import Ints, Step
from trnlab.profile.lanes import Row, rows
from trnlab.profile.names import short_label, short_place
from trnlab.timeline import CAUSES

NONE = 2**32 - 1
MOST = 300_000  # instructions; of a longer step the page shows the beginning


def packed(step: Step, chain: Pieces, script: str) -> tuple[str, str]:
    """Header as JSON and columns as base64, both safe inside a script element."""
    unit = max(1, -(-step.timeline.total // (NONE - 1)))
    until = _end(step)
    tracks = [_cut(row, until) for row in rows(step.timeline, chain)]
    shown = 1 + max((int(row.refs.max()) for row in tracks if row.lane != "calls" and len(row.refs)), default=-1)
    columns = {**_bars(tracks, unit), **_instructions(step, shown)}
    header = {
        "unit": unit,
        "total": until // unit,
        "whole": until == step.timeline.total,
        "rows": [{"lane": row.lane, "name": row.name, "count": len(row.start)} for row in tracks],
        "kinds": KINDS,
        "causes": CAUSES,
        **_tables(step, script),
        "columns": [[name, len(column)] for name, column in columns.items()],
    }
    data = b"".join(column.astype("<u4").tobytes() for column in columns.values())
    text = json.dumps(header, separators=(",", ":")).replace("<", "\\u003c")
    return text, base64.b64encode(zlib.compress(data, 9)).decode()


def _bars(tracks: list[Row], unit: int) -> dict[str, Ints]:
    starts = [row.start // unit for row in tracks]
    lengths = [np.maximum(row.end // unit - start, 0) for row, start in zip(tracks, starts)]
    kinds = [np.zeros(len(row.start), np.int64) if row.kinds is None else row.kinds for row in tracks]
    return {
        "start": np.concatenate([np.diff(start, prepend=0) for start in starts]),
        "length": np.concatenate(lengths),
        "ref": np.concatenate([row.refs for row in tracks]),
        "kind": np.concatenate(kinds),
    }


def _instructions(step: Step, shown: int) -> dict[str, Ints]:
    """Of the first `shown` instructions; what an instruction waits for is always an earlier one."""
    t = step.timeline
    critical = np.zeros(len(t), np.int64)
    critical[step.critical] = 1
    columns = {"text": step.text, "source": step.source, "call": t.call, "op": t.op, "cause": t.cause}
    waited = {name: np.where(column < 0, NONE, column) for name, column in (("blocker", t.blocker), ("held", t.held))}
    return {name: column[:shown] for name, column in {**columns, **waited, "critical": critical}.items()}


def _tables(step: Step, script: str) -> dict[str, Any]:
    t = step.timeline
    labels: dict[str, int] = {}
    calls = [
        [labels.setdefault(short_label(c.label), len(labels)), c.count, short_place(c.loc, script)] for c in t.calls
    ]
    return {
        "texts": step.texts,
        "sources": [[short_place(place, script), line] for place, line in step.sources],
        "labels": list(labels),
        "calls": calls,
        "ops": [[op.name, op.flops, op.n * op.m if op.lanes else 0] for op in t.ops],
    }


def _end(step: Step) -> int:
    """Where the page's timeline ends."""
    start = step.timeline.start
    return step.timeline.total if len(start) <= MOST else int(np.partition(start, MOST)[MOST])


def _cut(row: Row, until: int) -> Row:
    """The bars that start before `until`."""
    count = int(np.searchsorted(row.start, until))
    kinds = None if row.kinds is None else row.kinds[:count]
    return Row(row.lane, row.name, row.start[:count], np.minimum(row.end[:count], until), row.refs[:count], kinds)
