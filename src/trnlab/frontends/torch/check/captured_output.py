# SPDX-License-Identifier: Apache-2.0
"""What a script prints while it is followed is not shown, but the last of what it complained of can be told."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout


class OutputTail(io.TextIOBase):
    """Keeps the last `room` characters that are written to it, whatever a script prints."""

    def __init__(self, room: int) -> None:
        self.room, self._kept = room, ""

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, text: str) -> int:
        """As a file's: how many characters were taken."""
        self._kept = (self._kept + text)[-self.room :] if self.room else ""
        return len(text)

    @property
    def line(self) -> str:
        """The last one with something in it."""
        return next((line.strip() for line in reversed(self._kept.splitlines()) if line.strip()), "")


@contextmanager
def silent() -> Iterator[OutputTail]:
    """Within the block nothing is shown, warnings neither; yields the end of what went to standard error."""
    said = OutputTail(4096)
    with redirect_stdout(OutputTail(0)), redirect_stderr(said), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield said
