# SPDX-License-Identifier: Apache-2.0
"""Lines of the speed table, and how to measure what goes into one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Line:
    """One figure. `met` is None for a figure without a target; `target` says what is asked, in words."""

    what: str
    value: float | None
    unit: str
    target: str
    met: bool | None
    note: str = ""

    @property
    def verdict(self) -> str:
        """The last column but the note."""
        return "FAILED" if self.value is None else {True: "met", False: "MISSED", None: ""}[self.met]


def at_most(what: str, value: float, limit: float, unit: str, note: str = "") -> Line:
    """A line that is met by a small value."""
    return Line(what, value, unit, f"<= {limit:g} {unit}", value <= limit, note)


def at_least(what: str, value: float, limit: float, unit: str, note: str = "") -> Line:
    """A line that is met by a large value."""
    return Line(what, value, unit, f">= {limit:g} {unit}", value >= limit, note)


def report(lines: Sequence[Line]) -> None:
    """Hand the lines to the process that asked for them."""
    print(json.dumps([asdict(line) for line in lines]))


def seconds(function: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    """How long one call takes."""
    start = clock()
    function()
    return clock() - start


def in_turns(
    functions: Sequence[Callable[[], Any]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """The least seconds that each function took, called in turns after one call each that does not count. clock:
    `time.process_time` for what one thread computes, where others want the same cores.

    What else the machine does only ever adds time, and to some libraries far more than to others: of several
    measurements the least says most about the code.
    """
    for function in functions:
        function()
    measured = [[seconds(function, clock) for function in functions] for _ in range(rounds)]
    return [min(column) for column in zip(*measured)]


def table(lines: Sequence[Line]) -> str:
    """The lines, aligned."""
    rows = [("", "measured", "target", "", "")]
    for line in lines:
        value = "" if line.value is None else f"{line.value:.3g} {line.unit}"
        rows.append((line.what, value, line.target, line.verdict, line.note))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return "\n".join("  ".join((*(f"{x:<{w}}" for x, w in zip(row, widths)), row[4])).rstrip() for row in rows)
