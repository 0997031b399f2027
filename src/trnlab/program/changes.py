# SPDX-License-Identifier: Apache-2.0
"""What the passes did to a recording: for reports, not for simulators."""

from __future__ import annotations

from dataclasses import dataclass

from trnlab.errors import Location


@dataclass(frozen=True, slots=True)
class Size:
    """Of a recording: its instructions, the tiles that they use, and the bytes that its transfers move."""

    instructions: int
    tiles: int
    moved: int


@dataclass(frozen=True, slots=True)
class Change:
    """What one pass made of a recording. option: its name in `trnlab.policy`."""

    option: str
    before: Size
    after: Size


@dataclass(frozen=True, slots=True)
class Spill:
    """A tile that left a memory for want of room. source, target: "psum", "sbuf" or "hbm".

    where: the line that made the tile. times: how often it left. saved, reloaded: bytes there, and back.
    """

    tile: str
    where: Location | None
    source: str
    target: str
    times: int
    saved: int
    reloaded: int
