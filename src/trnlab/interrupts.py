# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C while the command line is still being imported, and when it is done: no traceback of Python's import.

Python raises KeyboardInterrupt wherever it is, and in a callback of an import loses it. Until the command itself
runs, which ends its work as it should, the process ends at once. What comes before this module is Python's own start;
it imports next to nothing, so that it comes early.
"""

from __future__ import annotations

# What `signal` is made of: that imports `enum`, and with it ten milliseconds in which Ctrl-C would be a traceback.
import _signal as signal  # type: ignore[import-not-found,unused-ignore]
import os

STATUS = 130  # as shells have it of a process that Ctrl-C ended


def _end(number: int, frame: object) -> None:
    try:
        os.write(2, b"trnlab: interrupted\n")
    finally:
        os._exit(STATUS)


def end_at_once() -> None:
    """Let Ctrl-C end the process, where nobody decided otherwise: nohup has it ignored. To be called from the main
    thread."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_again() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again, where `end_at_once` was called."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
