# SPDX-License-Identifier: Apache-2.0
"""What a run says beside its results: one line each, on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable

from trnlab.errors import CacheError, RunError, TrnlabError, UsageError
from trnlab.quoting import one_line, visible

Say = Callable[[str], None]

_ERASE_LINE = "\r\x1b[2K"


def say(line: str) -> None:
    """Write one notice. On a terminal it takes the place of a progress bar, which is drawn anew by its owner."""
    start = _ERASE_LINE if sys.stderr.isatty() else ""
    sys.stderr.write(f"{start}trnlab: {visible(line)}\n")
    sys.stderr.flush()


def tell(error: TrnlabError) -> None:
    """Show an error: in one line when it is about the request or the machine, in full when about the user's code."""
    if isinstance(error, UsageError | CacheError | RunError) and error.where is None:
        say(one_line(_one_line(error)))
    else:
        sys.stderr.write(f"{visible(error)}\n")


def _one_line(error: TrnlabError) -> str:
    """Code, what, and then limit, value, chip and the way out where they are known."""
    parts = [f"{error.code}: {error.what}"]
    for label, value in (("limit", error.limit), ("got", error.got), ("chip", error.chip), ("do", error.remedy)):
        if value is not None:
            parts.append(f"{label}: {value}")
    return "; ".join(parts)
