# SPDX-License-Identifier: Apache-2.0
"""How the operands of a product come on chip: piece by piece, in the order of need, into SBUF tiles used in rotation.

A piece that lies the wrong way round waits in a tile of its own until the PE array has transposed it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from math import ceil
from typing import Any, NamedTuple

from trnlab.isa.base import Engine
from trnlab.kernels.blocking.problem import BlockedOperand, raw_format
from trnlab.kernels.blocks import BANK, BlockSource, P, PairedSource, Workspace, load_rows
from trnlab.numerics.dtypes import DType, dtype, uint16
from trnlab.program.access import AP
from trnlab.program.builder import Builder


@dataclass(slots=True, eq=False)
class OperandTile:
    """An SBUF tile [128, k tiles, columns] of a pool, with the access patterns into it that were made so far."""

    ap: AP
    narrow: DType | None = None  # the format of the two halves of each element, if it is of two
    parts: dict[tuple[int, int, int], list[AP]] = field(default_factory=dict)

    def columns(self, col: int, cols: int, k_rows: int, pairs: bool) -> list[AP]:
        """Columns [col, +cols) as matmul operands, one for each k tile of the first `k_rows` rows of the chunk; with
        `pairs` one for each two full k tiles, [128, 2, cols]."""
        key = (col, cols, k_rows)
        if key not in self.parts:
            full = k_rows // P // 2 * 2 if pairs else 0
            twos = [self.ap[:, k : k + 2, col : col + cols] for k in range(0, full, 2)]
            heights = [(k // P, min(P, k_rows - k)) for k in range(full * P, k_rows, P)]
            ones = [self.ap[:h, k, col : col + cols] for k, h in heights]
            self.parts[key] = twos + [x.split_pairs(self.narrow) for x in ones] if self.narrow else twos + ones
        return self.parts[key]


@dataclass(slots=True, eq=False)
class Piece:
    """Columns [col, +cols) of an operand, rows [k, +k_rows) of the contraction; groups `first` to `last` read it."""

    source: BlockSource
    k: int
    k_rows: int
    col: int
    cols: int
    first: int
    last: int
    tile: OperandTile | None = None
    widened: int = 0  # by so many copies of all (`Workspace.widen_until`)

    def columns(self, col: int, cols: int, pairs: bool) -> list[AP]:
        """Columns of the piece as matmul operands, one for each k tile, or two of them."""
        assert self.tile is not None
        return self.tile.columns(col, cols, self.k_rows, pairs)


class PieceKey(NamedTuple):
    """Which piece of which product; one that is loaded several times has a `visit` for each."""

    item: int
    visit: int
    col: int
    k: int


class TransposeJob(NamedTuple):
    """Transpose `tiles` k tiles from `k` on of columns [col, +cols) of a piece: one PSUM bank, one copy out of it."""

    piece: Piece
    raw: AP
    k: int
    tiles: int
    col: int
    cols: int


class OperandFeed:
    """Brings the pieces of one operand on chip, in the order of need, into the tiles of one pool in rotation."""

    def __init__(
        self, b: Builder, work: Workspace, side: BlockedOperand, depth: int, source: BlockSource, banks: list[AP]
    ) -> None:
        """`depth`: k tiles of a piece. `source`: one such operand. `banks`: PSUM tiles to transpose into, in
        `raw_format`."""
        dt = source.dtype
        self.b, self.work, self.side, self.banks = b, work, side, banks
        self.pieces: list[Piece] = []
        self._made: dict[PieceKey, Piece] = {}
        self.loaded = self.ready = self._turn = 0  # pieces loaded, pieces ready for matmuls, banks used
        shape, raw = (P, depth, side.piece), (P, ceil(side.piece / P), depth * P)
        self._narrow = source.narrow if isinstance(source, PairedSource) else None
        self._tiles = [OperandTile(b.tile(shape, dt, name="tile"), self._narrow) for _ in range(side.tiles)]
        turned = dtype(raw_format(dt.name))
        self._raw = [b.tile(raw, turned, name="raw") for _ in range(side.raw_tiles)]
        self._squares: dict[tuple[Any, ...], AP] = {}
        self._at_home: dict[int, AP] = {}  # pieces that lie in SBUF already, by their number
        self._width = min(BANK * 4 // turned.itemsize, side.piece)  # columns transposed side by side
        self._room = BANK * 4 // turned.itemsize  # columns of a bank

    def need(self, key: PieceKey, source: BlockSource, k_rows: int, group: int) -> Piece:
        """Plan that a group reads a piece; groups are planned in order."""
        piece = self._made.get(key)
        if piece is None:
            cols = min(self.side.piece, self.side.size - key.col)
            piece = self._made[key] = Piece(source, key.k, k_rows, key.col, cols, group, group)
            self.pieces.append(piece)
        piece.last = group
        return piece

    @property
    def at_home(self) -> bool:
        """Whether its pieces lie in SBUF already, to be transposed there."""
        return bool(self.pieces) and not self.side.k_rows and self._where(self.pieces[0]) is not None

    def can_load(self, now: int) -> bool:
        """Whether there is a piece left to load whose place is free before group `now`."""
        if self.loaded == len(self.pieces):
            return False
        return self._is_free(self.loaded, now) if self.side.k_rows else self.loaded - len(self._raw) < self.ready

    def load(self) -> None:
        """Record the load of the next piece."""
        piece, index = self.pieces[self.loaded], self.loaded
        self.loaded += 1
        if self._find(piece, index):
            piece.widened = self.work.begun
            self.ready = self.loaded if self.side.k_rows else self.ready
        elif self.side.k_rows:
            piece.tile = self._tiles[index % len(self._tiles)]
            load_rows(self.b, piece.source, piece.tile.ap[:, :, : piece.cols], piece.k_rows, piece.k, piece.col)
            piece.widened, self.ready = self.work.begun, self.loaded
        else:
            raw = self._raw[index % len(self._raw)]
            load_rows(self.b, piece.source, raw[:, :, : piece.k_rows], piece.cols, piece.col, piece.k)
            self.work.widen_until(self.work.begun)

    def _find(self, piece: Piece, index: int) -> bool:
        """Whether a piece lies in SBUF already, where it is read then."""
        found = self._where(piece)
        if found is None:
            return False
        if self.side.k_rows:
            piece.tile = OperandTile(found)
        else:
            self._at_home[index] = found
        return True

    def _where(self, piece: Piece) -> AP | None:
        """Where a piece lies in SBUF already, if it does."""
        rows, cols = (piece.k, piece.k_rows), (piece.col, piece.cols)
        return piece.source.on_chip(self.b, *(rows + cols if self.side.k_rows else cols + rows))

    def backlog(self, group: int) -> int:
        """Number of transposing jobs that groups up to `group` still wait for."""
        count, index = 0, self.ready
        while not self.side.k_rows and index < len(self.pieces) and self.pieces[index].first <= group:
            piece = self.pieces[index]
            count += len(self._steps(piece)) * ceil(piece.cols / self._width)
            index += 1
        return count

    def jobs(self, group: int, now: int) -> Iterator[TransposeJob]:
        """These jobs, as far as tiles are free before group `now`; each must be recorded before the next is taken."""
        while not self.side.k_rows and self.ready < len(self.pieces) and self.pieces[self.ready].first <= group:
            piece, index = self.pieces[self.ready], self.ready
            if not self._is_free(index, now):
                return
            piece.tile = self._tiles[index % len(self._tiles)]
            if self.loaded == index:
                self.load()
            raw = self._at_home.pop(index, self._raw[index % len(self._raw)])
            for k, tiles in self._steps(piece):
                for col in range(0, piece.cols, self._width):
                    cols = min(self._width, piece.cols - col)
                    yield TransposeJob(piece, raw, k, tiles, col, cols)
            self.ready += 1

    def _steps(self, piece: Piece) -> list[tuple[int, int]]:
        """The k tiles of a piece, from each step's first one on as many as a bank has room for side by side."""
        full, rest = divmod(piece.k_rows, P)
        most = max(1, self._room // piece.cols)
        steps = [(k, min(most, full - k)) for k in range(0, full, most)]
        return [*steps, (full, 1)] if rest else steps

    def transpose(self, job: TransposeJob) -> None:
        """Record one job."""
        bank = self.banks[self._turn % len(self.banks)]
        self._turn += 1
        height = min(P, job.piece.k_rows - job.k * P)
        for i, at in product(range(job.tiles), range(0, job.cols, P)):
            cols, k = min(P, job.cols - at), job.k + i
            data = self._square(job.raw, cols, (job.col + at) // P, k * P, height)
            dst = self._square(bank, height, None, i * job.cols + at, cols)
            self.b.nc_transpose(dst=dst, data=data, engine=Engine.TENSOR)
        assert job.piece.tile is not None
        target = job.piece.tile.ap[:height, job.k : job.k + job.tiles, job.col : job.col + job.cols]
        turned = bank[:height, : job.tiles * job.cols].split(0, job.tiles, job.cols)
        if self._narrow is not None:  # no numbers, which a copy might round
            target, turned = target.cast(uint16), turned.cast(uint16)
        self.work.evacuate(target, turned)

    def _square(self, tile: AP, rows: int, block: int | None, col: int, cols: int) -> AP:
        """Columns [col, +cols) of some rows of a tile, or of one of its blocks: the same ones again and again."""
        key = tile.buffer.id, tile.offset, tile.dims, rows, block, col, cols
        found = self._squares.get(key)
        if found is None:
            span = slice(col, col + cols)
            found = self._squares[key] = tile[:rows, span] if block is None else tile[:rows, block, span]
        return found

    def _is_free(self, index: int, now: int) -> bool:
        before = index - len(self._tiles)
        return before < 0 or self.pieces[before].last < now
