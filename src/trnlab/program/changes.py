# SPDX-License-Identifier: Apache-2.0
"""What the passes did to a recording: for reports, not for simulators."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from trnlab.errors import Location


@dataclass(frozen=True, slots=True)
class RecordingSize:
    """Size of a recording: its instructions, the tiles that they use, and the bytes that its transfers move."""

    instructions: int
    tiles: int
    moved: int


@dataclass(frozen=True, slots=True)
class PassChange:
    """What one pass made of a recording. option: its name in `trnlab.policy`."""

    option: str
    before: RecordingSize
    after: RecordingSize


@dataclass(frozen=True, slots=True)
class Spill:
    """A tile that left a memory for want of room."""

    tile: str
    where: Location | None  # the line that made the tile
    # source, target: "psum", "sbuf" or "hbm"
    source: str
    target: str
    times: int  # how often it left
    # saved, reloaded: bytes there, and back
    saved: int
    reloaded: int


def together(spills: Iterable[Spill]) -> tuple[Spill, ...]:
    """One entry for each tile of a line that left a memory, those that cost most bytes first."""
    found: dict[tuple[object, ...], Spill] = {}
    for s in spills:
        key = s.tile, s.where, s.source
        known = found.get(key)
        found[key] = (
            s
            if known is None
            else replace(
                s, times=known.times + s.times, saved=known.saved + s.saved, reloaded=known.reloaded + s.reloaded
            )
        )
    return tuple(sorted(found.values(), key=lambda s: -(s.saved + s.reloaded)))
