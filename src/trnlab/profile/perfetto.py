# SPDX-License-Identifier: Apache-2.0
"""A step as Chrome trace events, the JSON that Perfetto opens: one track per engine and per DMA queue.

The format: "Trace Event Format" of the Chromium project. Times are in microseconds; we write all digits, down to
picoseconds. What a slice says of its instruction has the names that it has in the vendor's JSON, see `vendor`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from trnlab.profile.critical import KINDS, pieces
from trnlab.profile.data import Profile, Step
from trnlab.profile.lanes import LaneRow, rows
from trnlab.profile.names import short_label, short_place
from trnlab.profile.vendor import opcode
from trnlab.timeline import CAUSES
from trnlab.units import PS_PER_US

MOST = 100_000  # instructions; a longer step is cut there, and the trace says so
PROCESSES = {"calls": 1, "critical": 1, "engine": 2, "dma": 3}
_TITLES = {1: "Program", 2: "NeuronCore engines", 3: "DMA queues"}
Event = dict[str, Any]


def trace(profile: Profile) -> bytes:
    """The file; without events when nothing was timed."""
    step = profile.step
    events = [] if step is None else list(_events(step, str(profile.summary["script"])))
    cut = step is not None and len(step.timeline) > MOST
    about = {key: str(profile.summary[key]) for key in ("name", "target", "chip", "precision", "trnlab", "status")}
    if cut:
        about["cut"] = f"only the first {MOST} instructions of {len(step.timeline) if step else 0}"
    content = {"displayTimeUnit": "ns", "otherData": about, "traceEvents": events}
    return json.dumps(content, separators=(",", ":")).encode()


def _events(step: Step, script: str) -> Iterator[Event]:
    described = _Described(step, script)
    until = _cut(step)
    tracks = rows(step.timeline, pieces(step))
    for pid, title in _TITLES.items():
        yield _meta("process_name", pid, 0, name=title)
        yield _meta("process_sort_index", pid, 0, sort_index=pid)
    for number, row in enumerate(tracks):
        pid, tid = PROCESSES.get(row.lane, PROCESSES["engine"]), number + 1
        yield _meta("thread_name", pid, tid, name=row.name)
        yield _meta("thread_sort_index", pid, tid, sort_index=tid)
        yield from _slices(row, pid, tid, described, until)


def _slices(row: LaneRow, pid: int, tid: int, described: _Described, until: int) -> Iterator[Event]:
    for at, (start, end, ref) in enumerate(zip(row.start.tolist(), row.end.tolist(), row.refs.tolist())):
        if start >= until:
            return
        if row.lane == "calls":
            name, more = described.call(ref)
        else:
            name, more = described.instruction(ref)
        if row.kinds is not None:
            name, more = f"{KINDS[row.kinds[at]]}: {name}", {"id": ref, "hlo_name": more["hlo_name"]}
        place = {"ph": "X", "pid": pid, "tid": tid, "ts": start / PS_PER_US, "dur": (end - start) / PS_PER_US}
        yield {**place, "name": name, "cat": row.lane, "args": more}


class _Described:
    """Names and arguments of slices."""

    def __init__(self, step: Step, script: str) -> None:
        self.step, self.t = step, step.timeline
        self.labels = [short_label(call.label) for call in self.t.calls]
        self.places = [short_place(place, script) for place, _ in step.sources]
        self.call_places = [short_place(call.loc, script) for call in self.t.calls]

    def call(self, i: int) -> tuple[str, Event]:
        """A call of a routine, described."""
        info = self.t.calls[i]
        about = {"nki_source_location": self.call_places[i], "hlo_name": info.label, "instructions": info.count}
        return self.labels[i], about

    def instruction(self, i: int) -> tuple[str, Event]:
        """An instruction, described."""
        t, op = self.t, self.t.ops[self.t.op[i]]
        more = {
            "opcode": opcode(op.name),
            "operands": self.step.texts[self.step.text[i]],
            "nki_source_location": self.places[self.step.source[i]],
            "hlo_name": self.labels[t.call[i]],
            "waited for": self._waited(i),
            "id": i,
        }
        if op.lanes:
            more["transfer_size"] = op.n * op.m
        return op.name, more

    def _waited(self, i: int) -> str:
        """Why it did not start, or flow, earlier."""
        t = self.t
        reasons = []
        if t.blocker[i] >= 0:
            reasons.append(f"{CAUSES[t.cause[i]]}: #{t.blocker[i]} {t.ops[t.op[t.blocker[i]]].name}")
        if t.held[i] >= 0:
            reasons.append(f"DMA engines: #{t.held[i]} {t.ops[t.op[t.held[i]]].name}")
        return ", ".join(reasons) or "nothing"


def _cut(step: Step) -> int:
    """The time from which nothing is shown."""
    start = step.timeline.start
    return step.timeline.total + 1 if len(start) <= MOST else int(np.partition(start, MOST)[MOST])


def _meta(what: str, pid: int, tid: int, **more: Any) -> Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": more}
