# SPDX-License-Identifier: Apache-2.0
"""What a real nccom-test wrote: its JSON report, or the table that it prints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trnlab.errors import UsageError
from trnlab.files import json_of

SIZE, TIME, AVERAGE = "size(B)", "time", "time:avg(us)"


@dataclass(frozen=True)
class Measured:
    """One row: bytes of the larger of input and output, microseconds, and the algorithm where the tool says it."""

    size: int
    microseconds: float
    algorithm: str = ""


def read(path: Path) -> list[Measured]:
    """The rows of a file, by size. Raises UsageError (TRN188) for one that holds no results."""
    try:
        text = path.read_text(encoding="utf-8")
        rows = [_row(found) for found in _records(text)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise _refused(path, str(error)) from None
    if not rows or any(row.size < 1 or not 0 < row.microseconds < float("inf") for row in rows):
        raise _refused(path, f"{len(rows)} rows")
    return sorted(rows, key=lambda row: row.size)


def _records(text: str) -> list[dict[str, Any]]:
    if text.lstrip().startswith(("{", "[")):
        found = json_of(text)
        return list(found["results"] if isinstance(found, dict) else found)
    lines = [line.split() for line in text.splitlines()]
    heads = [number for number, line in enumerate(lines) if line[:1] == [SIZE]]
    if not heads:
        raise ValueError(f"no line begins with {SIZE}")
    head = lines[heads[0]]
    return [dict(zip(head, line)) for line in lines[heads[0] + 1 :] if line and line[0].isdigit() and len(line) > 1]


def _row(found: dict[str, Any]) -> Measured:
    times = [name for name in found if name.startswith(TIME)]
    name = AVERAGE if AVERAGE in found else times[0] if times else AVERAGE
    return Measured(int(found[SIZE]), float(found[name]), str(found.get("algorithm", "")))


def _refused(path: Path, got: str) -> UsageError:
    return UsageError(
        f"{path} holds no results of nccom-test",
        code="TRN188",
        got=got,
        limit=f'{{"results": [{{"{SIZE}": ..., "{AVERAGE}": ...}}]}} or the table that the tool prints',
        remedy="run nccom-test with --report-to-json-file FILE, or keep what it prints",
    )
