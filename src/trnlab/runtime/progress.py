# SPDX-License-Identifier: Apache-2.0
"""What a run says while a program is compiled that the cache did not have: lines, on a terminal and in a log alike.

A program that is soon done is not worth a line. What soon means is counted in time of the processor, so that what a
run says does not hang on what else the machine does.
"""

from __future__ import annotations

import time

from trnlab.runtime.notices import say

AFTER_S, EVERY_S = 2.0, 5.0  # of the processor: until the first line, and between lines


class Compiling:
    """A program that is being compiled."""

    def __init__(self, name: str, chip: str, kept: bool) -> None:
        self._name, self._chip, self._kept = name, chip, kept
        self._started, self._spent = time.perf_counter(), time.process_time()
        self._due, self._total = AFTER_S, 0

    def __call__(self, done: int, total: int) -> None:
        """So many parts are done."""
        self._total = total
        if (spent := time.process_time() - self._spent) >= self._due:
            first = "" if self._due > AFTER_S else self._why()
            self._due = spent + EVERY_S
            say(f"compiling {self._name!r} for {self._chip}{first}: {done} of {total} parts, {self._seconds():.0f} s")

    def ended(self) -> None:
        """It is done."""
        if self._due > AFTER_S:
            say(f"compiled {self._name!r}: {self._total} parts, {self._seconds():.0f} s")

    def _why(self) -> str:
        return ", which the cache will keep" if self._kept else ""

    def _seconds(self) -> float:
        return time.perf_counter() - self._started
