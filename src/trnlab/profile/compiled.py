# SPDX-License-Identifier: Apache-2.0
"""What the hardware's compiler is taken to have made of kernels, in words, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from trnlab.profile.names import short_place
from trnlab.units import format_bytes, format_time

Row = Mapping[str, Any]
LINES = 3  # whose tiles left a memory, that are told


def compiled(kernel: Row) -> str:
    """The policy, and what its passes changed: "scheduled; versions: +3 tiles; reuse: -12 instructions"."""
    changes = [text for entry in kernel.get("passes", ()) if (text := changed(entry))]
    return "; ".join([kernel.get("policy", ""), *(changes or ["no pass changed anything"])])


def changed(entry: Row) -> str:
    """What one pass did; empty where that is nothing."""
    if entry["option"] == "demand":
        return "demand: does not fit as written, reordered"
    parts = []
    for name, singular in (("instructions", "instruction"), ("tiles", "tile")):
        more = entry[name][1] - entry[name][0]
        if more:
            parts.append(f"{more:+,} {singular}{'s' * (abs(more) != 1)}")
    moved = entry["moved_bytes"][1] - entry["moved_bytes"][0]
    if moved:
        parts.append(f"{'+' if moved > 0 else '-'}{format_bytes(abs(moved))} moved")
    return f"{entry['option']}: {', '.join(parts)}" if parts else ""


def room(s: Row) -> Iterator[str]:
    """What left a memory for want of room: how much, what it costs, and which tiles; nothing where nothing did."""
    spill = s.get("spill", {})
    tiles = spill.get("tiles", ())
    if not tiles:
        return
    parts = []
    if any(t["from"] == "sbuf" for t in tiles):
        out, back = (sum(t[side] for t in tiles if t["from"] == "sbuf") for side in ("save_bytes", "reload_bytes"))
        parts.append(f"{format_bytes(out)} spilled from SBUF to HBM, {format_bytes(back)} back")
    if spill["psum_bytes"]:
        parts.append(f"{format_bytes(spill['psum_bytes'])} from PSUM to SBUF")
    parts.append(f"{format_time(max(spill['cost_ps'], 0))} of the time")
    yield "; ".join(parts)
    lines = by_line(tiles)
    yield from (spilled(group, s["script"]) for group in lines[:LINES])
    if len(lines) > LINES:
        yield f"and tiles of {len(lines) - LINES} more lines"


def by_line(tiles: Iterable[Row]) -> list[list[Row]]:
    """Tiles that left a memory, those of one line together; the lines that cost most bytes first."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for t in tiles:
        groups.setdefault((t["kernel"], t["line"], t["from"], t["to"]), []).append(t)
    return sorted(groups.values(), key=lambda group: -sum(t["save_bytes"] + t["reload_bytes"] for t in group))


def spilled(group: Sequence[Row], script: str) -> str:
    """The tiles of one line that left a memory."""
    first, size = group[0], sum(t["save_bytes"] + t["reload_bytes"] for t in group)
    named = f"{first['tile']!r}" + (f" and {len(group) - 1} more" if len(group) > 1 else "")
    where = f" of {short_place(first['line'], script)}" if first["line"] else f" of {first['kernel']}"
    way = f"{first['from'].upper()} to {first['to'].upper()}"
    return f"{named}{where}: {way}, {sum(t['times'] for t in group):,} times, {format_bytes(size)}"
