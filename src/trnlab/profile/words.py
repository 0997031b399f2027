# SPDX-License-Identifier: Apache-2.0
"""Entries of the summary in words, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trnlab.profile.names import short_place
from trnlab.profile.stall_attribution import ENDS, FIRST_BYTE, SEMAPHORE

Row = Mapping[str, Any]
_WHY = {
    "operand": "for {buffer} to be written",
    "reuse": "for {buffer} to be free again",
    "overwrite": "for {buffer} to be written before it is again",
    "issue": "one instruction after the other",
    "port": "at a memory port that both use",
    "queue": "on its queue or DMA engines",
    "start": "at the start",
    "peer": "to meet another core",
    "part": "for a part of the PE array",
}


def waited(row: Row) -> str:
    """A cause in words: "vector: for acc to be written"."""
    if row["waiting_for"] == ENDS:
        return "the program's start and end"
    why = str(_WHY.get(row["cause"], row["cause"])).format(buffer=row["buffer"] or "a tensor")
    part = {FIRST_BYTE: ", up to the first byte", SEMAPHORE: ", the signal that it is done"}
    return f"{row['waiting_for']}{part.get(row.get('part', ''), '')}" + (f": {why}" if why else "")


def advice_text(entry: Row, script: str) -> str:
    """What to do, in a sentence."""
    where = short_place(entry["line"], script)
    return f"{where}: {entry['what']}" if where else entry["what"]
