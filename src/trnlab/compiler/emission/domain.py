# SPDX-License-Identifier: Apache-2.0
"""The loop of a group and the part of it that one sweep computes, and what of its rows stays on chip for others."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trnlab.graph.ir import Value
from trnlab.kernels.view import HbmView, TilePart, rectangle, together
from trnlab.program import AP, Builder
from trnlab.program.access import whole


@dataclass(frozen=True)
class Domain:
    """The loop of a group: R rows of C columns."""

    rows: int
    cols: int
    offset: int = 0
    flat: bool = False  # nothing fixed the columns, all values are seen as runs of elements from `offset` on
    # few rows are cut into so many parts of equal length, which lie on partitions of their own; partition i * R +
    # r holds part i of row r
    parts: int = 1

    @property
    def width(self) -> int:
        """Columns of a part."""
        return self.cols // self.parts


@dataclass(frozen=True)
class SweepSlice:
    """The part of a domain that one sweep computes. Where rows are cut into parts, `rows` counts these, and columns
    are those of each part."""

    domain: Domain
    row: int
    rows: int  # P
    col: int
    cols: int  # F

    @property
    def whole_row(self) -> bool:
        """All columns at once."""
        return self.cols == self.domain.width

    @property
    def first_cols(self) -> bool:
        """Nothing to the left of it."""
        return self.col == 0

    @property
    def last_cols(self) -> bool:
        """Nothing to the right of it."""
        return self.col + self.cols == self.domain.width

    @property
    def first_rows(self) -> bool:
        """Nothing above it."""
        return self.row == 0

    @property
    def last_rows(self) -> bool:
        """Nothing below it."""
        return self.row + self.rows == self.domain.rows * self.domain.parts


def parts_of_sweep(view: HbmView, dims: int, frame: SweepSlice) -> Iterator[TilePart]:
    """The frame's part of a view, whose first `dims` dimensions are the rows of the domain, as access patterns."""
    domain = frame.domain
    count, starts = frame.rows // domain.parts, range(frame.col, domain.width * domain.parts, domain.width)
    return together([rectangle(view, dims, frame.row, count, col, frame.cols) for col in starts], count)


class RowCache:
    """Pieces of rows that several sweeps read, kept on chip from the first sweep to the last as far as there is room.

    They are spread evenly over a row, so that no sweep has much to load in one place and nothing in another.
    """

    def __init__(self, b: Builder, values: Sequence[Value], domain: Domain, width: int, places: int) -> None:
        """`values`: read again by later sweeps. `places`: for how many pieces of `width` columns there is room."""
        self.values, self.width, self._held = values, width, dict[tuple[Value, int, int], AP]()
        self._pieces, self._places = -(-domain.width // width), places
        self._free = {
            v: deque(b.tile((128, width), v.dtype, name="kept") for _ in range(min(places, 2 * self._pieces)))
            for v in values
        }

    def find(self, value: Value, frame: SweepSlice) -> AP | None:
        """Where a piece lies that was loaded before."""
        return self._held.get((value, frame.row, frame.col))

    def take(self, value: Value, frame: SweepSlice) -> AP | None:
        """A tile for a piece that is about to be loaded, if it is to be kept."""
        piece, most = frame.col // self.width, min(self._places, self._pieces)
        chosen = (piece + 1) * most // self._pieces > piece * most // self._pieces
        if value not in self._free or not chosen or not self._free[value]:
            return None
        tile = self._free[value].popleft()[: frame.rows, : frame.cols]
        self._held[value, frame.row, frame.col] = tile
        return tile

    def end_row(self) -> None:
        """No sweep over the rows at hand is left."""
        for (value, _, _), tile in self._held.items():
            self._free[value].append(whole(tile.buffer))
        self._held = {}
