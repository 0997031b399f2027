# SPDX-License-Identifier: Apache-2.0
"""Execution of a gang: one machine per core, the streams in turns between the events where cores meet.

The schedule is fixed by the gang's events: before each, its members run up to it, in their order; the rest runs after
the last. Ranks have HBM tensors of their own; cores of a rank get the same arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trnlab import checks
from trnlab.chips.spec import Chip
from trnlab.isa.meeting import Meeting, Place
from trnlab.numerics.dtypes import DType
from trnlab.numerics.rounding import store
from trnlab.program.gang import Event, Gang, attributes, meeting
from trnlab.program.routine import COL
from trnlab.sim.checks.cores import Watch
from trnlab.sim.functional.machine import Frame, Machine, RunOptions
from trnlab.sim.functional.meaning import as_read, operand_array

Array = np.ndarray[Any, Any]
Views = dict[str, tuple[Array, DType]]


class GangRun:
    """One execution of a gang over `memories`: per rank, its tensors by number, C-contiguous."""

    def __init__(
        self, gang: Gang, memories: Sequence[Sequence[Array]], chip: Chip, options: RunOptions | None = None
    ) -> None:  # fmt: skip
        self.gang = gang
        self.machines = [Machine(chip, options, sbuf_bytes=m.routine.sbuf_bytes) for m in gang.members]
        self.frames: list[Frame] = []
        for member, machine in zip(gang.members, self.machines):
            tensors = memories[member.place.rank]
            self.frames.append(machine.begin(member.routine, [tensors[t] for t in member.tensors]))
        self.at = [0] * len(gang.members)
        self.watch = None if checks.level("race") == "off" else Watch(gang, memories)

    def run(self) -> None:
        """Everything, from start to end. Raises what `Machine.call` raises."""
        for event in self.gang.events:
            for m, at in zip(event.members, event.at):
                self._advance(m, at)
            self._meet(event)
        for m, member in enumerate(self.gang.members):
            self._advance(m, len(member.routine))

    def _advance(self, m: int, last: int) -> None:
        for at in self.watch.stops(m, self.at[m], last) if self.watch is not None else ():
            assert self.watch is not None
            self._execute(m, at)
            saved = self.watch.before(m, at)
            self._execute(m, at + 1)
            self.watch.after(m, at, saved)
        self._execute(m, last)

    def _execute(self, m: int, last: int) -> None:
        self.machines[m].advance(self.frames[m], self.at[m], last)
        self.at[m] = last

    def _meet(self, event: Event) -> None:
        """Let the members of an event execute their sides."""
        places = [self.gang.members[m].place for m in event.members]
        meet([(p, self.frames[m], at) for p, m, at in zip(places, event.members, event.at)])
        for m, at in zip(event.members, event.at):
            self.at[m] = at + 1
            if self.watch is not None:
                self.watch.passed(m, at)


def meet(sides: Sequence[tuple[Place, Frame, int]]) -> None:
    """Execute all sides of a meeting, each an instruction of a frame: all read before any writes."""
    instr = meeting(sides[0][1].routine, sides[0][2])
    assert instr is not None
    views = [_views(instr, frame, at) for _, frame, at in sides]
    arrays = {place: _read(found, instr.moves_bits) for (place, _, _), found in zip(sides, views)}
    results = []
    for place, frame, at in sides:
        attrs = attributes(frame.routine, at)
        results.append(instr.meaning({**arrays[place], **instr.received(place, arrays, attrs)}, attrs))
    for found, result in zip(views, results):
        _write(found, result)


def _views(instr: Meeting, frame: Frame, at: int) -> Views:
    """The operands of an instruction, as writable arrays with their formats."""
    routine, views = frame.routine, {}
    for record in routine.operands[int(routine.first_operand[at]) : int(routine.first_operand[at + 1])]:
        name = instr.operands[int(record[COL["role"]])].name
        views[name] = operand_array(record, frame.base, frame.pitch)
    return views


def _read(views: Views, bits: bool) -> dict[str, Array]:
    """The operands as their instruction gets them: copies of the bits, or numbers."""
    return {name: array.copy() if bits else as_read(array, dtype) for name, (array, dtype) in views.items()}


def _write(views: Views, results: dict[str, Array]) -> None:
    for name, value in results.items():
        target, dtype = views[name]
        target[...] = (value if value.dtype == target.dtype else store(value, dtype)).reshape(target.shape)
