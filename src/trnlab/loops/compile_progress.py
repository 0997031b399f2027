# SPDX-License-Identifier: Apache-2.0
"""Says on stderr that Numba compiles loops, once it has taken longer than a second; nothing where they were kept."""

from __future__ import annotations

import functools
import os
import sys
import time
from typing import Any

AFTER_S = 1.0  # of the processor, until it is said
SILENT = "TRNLAB_LOOPS_SILENT"  # for processes whose parent tells
EVERY_S = 5.0  # between one line and the next


class CompileProgress:
    """Counts loops and seconds. Numba tells it when it begins and ends to compile a function."""

    def __init__(self) -> None:
        self._depth, self._began = 0, 0.0
        self._done, self._spent, self._due = 0, 0.0, AFTER_S

    def on_start(self, event: Any) -> None:
        """A function is compiled; perhaps for another one that is."""
        self._depth += 1
        if self._depth == 1:
            self._began = time.process_time()

    def on_end(self, event: Any) -> None:
        """It is done."""
        self._depth -= 1
        if self._depth:
            return
        self._done += 1
        self._spent += time.process_time() - self._began
        if self._spent >= self._due:
            self._due = self._spent + EVERY_S
            say(
                f"compiling loops of the simulator, which are kept for the next start: "
                f"{self._done} so far, {self._spent:.0f} s"
            )


def say(line: str) -> None:
    """One line on stderr."""
    sys.stderr.write(f"trnlab: {line}\n")
    sys.stderr.flush()


@functools.cache
def listen() -> None:
    """Have Numba tell, from now on."""
    if os.environ.get(SILENT):
        return
    from numba.core import event

    class Listener(event.Listener):  # type: ignore[misc]
        on_start, on_end = (staticmethod(f) for f in (_TELLER.on_start, _TELLER.on_end))

    event.register("numba:compile", Listener())


_TELLER = CompileProgress()
