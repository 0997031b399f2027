# SPDX-License-Identifier: Apache-2.0
"""Tiles that take turns."""

from __future__ import annotations

from trnlab.program.access import AP


class TilePool:
    """`bufs` tiles of one shape used in rotation: the next user of a tile waits for the last one to be done."""

    def __init__(self, tiles: list[AP]) -> None:
        self.tiles, self._turn = tiles, 0

    def next(self) -> AP:
        """The tile whose turn it is."""
        tile = self.tiles[self._turn % len(self.tiles)]
        self._turn += 1
        return tile
