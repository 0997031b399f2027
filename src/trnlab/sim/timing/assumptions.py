# SPDX-License-Identifier: Apache-2.0
"""How much a predicted time leans on figures that nobody has published: time it again with each of them changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trnlab import chips
from trnlab.chips import Chip, Figure
from trnlab.program.routine import Program
from trnlab.sim.timing.plan import forget
from trnlab.sim.timing.timer import time_program

FACTOR = 2.0


@dataclass(frozen=True, slots=True)
class Assumption:
    """An assumed figure, and the run's time in picoseconds with half of it and with twice as much."""

    path: str
    figure: Figure
    halved: int
    doubled: int

    def leverage(self, total: int) -> float:
        """The larger change of the run's time, relative to `total`."""
        return max(abs(self.halved - total), abs(self.doubled - total)) / total


def assumptions(program: Program, chip: Chip) -> list[Assumption]:
    """The assumed figures that the time of a program depends on, the most important first.

    Times it twice per assumed figure of the chip.
    """
    total = time_program(program, chip).total
    found = [a for a in _each(program, chip) if a.leverage(total) > 0]
    return sorted(found, key=lambda a: (-a.leverage(total), a.path))


def _each(program: Program, chip: Chip) -> Iterator[Assumption]:
    for path, figure in chips.assumed(chip):
        if path.startswith("sbuf.reserved"):
            continue  # decides what fits, not how long it takes
        halved, doubled = (_total(program, chip, path, figure.value * f) for f in (1 / FACTOR, FACTOR))
        yield Assumption(path, figure, halved, doubled)


def _total(program: Program, chip: Chip, path: str, value: float) -> int:
    changed = chips.with_figures(chip, {path: value})
    try:
        return time_program(program, changed).total
    finally:
        for routine in program.routines:
            forget(routine, changed)
