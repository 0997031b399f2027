# SPDX-License-Identifier: Apache-2.0
"""Which instructions belong to which iteration, of loops whose iterations the kernel declares independent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trnlab.errors import Location


@dataclass(frozen=True)
class LoopSpan:
    """One execution of a loop, or a launch grid."""

    kind: str  # "loop" or "grid"
    buffers: int  # how many there were when it began; those are outside of it
    where: Location | None = None  # the line of the loop


@dataclass
class IterationSpan:
    """Instructions first..last (last excluded) of one iteration; parent: the span around the loop, or -1."""

    loop: int
    iteration: int
    parent: int
    first: int
    last: int


@dataclass
class Spans:
    """All iterations of all such loops of one routine, outer ones before those inside."""

    loops: list[LoopSpan] = field(default_factory=list)
    spans: list[IterationSpan] = field(default_factory=list)
    _open: list[int] = field(default_factory=list)

    @property
    def inside(self) -> bool:
        """Whether an iteration of a loop is open, the launch grid's aside."""
        return any(self.loops[self.spans[span].loop].kind == "loop" for span in self._open)

    def loop(self, kind: str, buffers: int, where: Location | None = None) -> int:
        """Number of a loop that begins."""
        self.loops.append(LoopSpan(kind, buffers, where))
        return len(self.loops) - 1

    def begin(self, loop: int, iteration: int, instruction: int) -> int:
        """Number of the span of an iteration that begins with the next instruction."""
        self.spans.append(
            IterationSpan(loop, iteration, self._open[-1] if self._open else -1, instruction, instruction)
        )
        self._open.append(len(self.spans) - 1)
        return self._open[-1]

    def end(self, span: int, instruction: int) -> None:
        """The iteration is over; whatever is open inside it, too."""
        while self._open and self._open[-1] >= span:
            self.spans[self._open.pop()].last = instruction

    def of_instructions(self, count: int) -> np.ndarray[Any, np.dtype[np.int32]]:
        """The innermost span of each instruction, -1 for none."""
        inner = np.full(count, -1, np.int32)
        for number, span in enumerate(self.spans):
            inner[span.first : span.last] = number
        return inner

    def columns(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        """Rows of loop, iteration, parent, depth, buffers outside of the loop, and whether it is a grid."""
        rows = np.zeros((max(len(self.spans), 1), 6), np.int32)
        for number, span in enumerate(self.spans):
            loop = self.loops[span.loop]
            depth = rows[span.parent, 3] + 1 if span.parent >= 0 else 0
            rows[number] = (span.loop, span.iteration, span.parent, depth, loop.buffers, loop.kind == "grid")
        return rows
