# SPDX-License-Identifier: Apache-2.0
"""How kernels meet memory: sources that bring blocks of a matrix on chip, sinks that take finished blocks away.

A matmul kernel knows how to block and when to load; what a block is (a strided view of HBM, something that must be
cast) and what becomes of a result (bias, activation, another layout) is the business of its sources and sinks.

DMA is triggered by engines that would otherwise be idle, because a trigger waits in the order of its engine: loads by
SyncE, which may run far ahead, stores by GpSimdE, whose waiting for a result holds up no load.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Protocol

from trnlab.chips.spec import Chip
from trnlab.isa.base import Engine, Memory
from trnlab.kernels import residence
from trnlab.kernels.view import HbmView, TilePart, rectangle
from trnlab.numerics.dtypes import DType, bfloat16, dtype
from trnlab.program.access import AP, MAX_FREE_DIMS
from trnlab.program.builder import Builder
from trnlab.program.pool import TilePool

P = 128  # partitions, and rows of a block
BANKS = 8  # of PSUM
BANK = 512  # fp32 columns of a PSUM bank
ANNOUNCED = 2  # tiles of a result that are announced and not stored yet
STAGED, STAGES = 4096, 8  # bytes of a partition that are loaded to be widened, and of how many tiles
MIN_ROW_BYTES = 2048  # rows of a DMA at least this long use its bandwidth well

_QUEUES = {Engine.SYNC: (0, 1, 2, 3), Engine.SCALAR: (4, 5, 6, 7), Engine.GPSIMD: (8, 9, 10, 11)}

Epilogue = Callable[[Builder, AP, AP, int, int], None]
"""epilogue(b, dst, acc, row, col): write the SBUF tile `dst` from the PSUM tile `acc`, whose corner is (row, col)."""


def next_queue(b: Builder, engine: Engine = Engine.SYNC) -> int:
    """The DMA queue whose turn it is among those of the triggering engine; a queue keeps its order."""
    b.queue_turn += 1
    queues = _QUEUES[engine]
    return queues[b.queue_turn % len(queues)]


def dma_load(b: Builder, dst: AP, src: AP) -> None:
    """From HBM, to SBUF or another tensor, triggered by SyncE; by GpSimdE when it casts and hardware would make the
    descriptors, which then cannot, and for a tensor that is awaited: a few bytes that the call before stores, behind
    whose store SyncE would wait with all that it could load meanwhile."""
    casts = dst.dtype is not src.dtype and not casts_freely(b.chip)
    engine = Engine.GPSIMD if casts or src.buffer.id in b.awaited else Engine.SYNC
    b.dma_copy(dst=dst, src=src, engine=engine, queue=next_queue(b, engine))


def dma_store(b: Builder, dst: AP, src: AP, engine: Engine = Engine.GPSIMD) -> None:
    """SBUF to HBM; by another engine than GpSimdE where that computes as well, and would wait for the result."""
    b.dma_copy(dst=dst, src=src, engine=engine, queue=next_queue(b, engine))


def casts_freely(chip: Chip) -> bool:
    """Whether transfers that cast are triggered by any engine: descriptors lie ready, made by the host beforehand.

    Of the ways to make descriptors only hardware's excludes casts (nki/migration/index.rst, dge_mode).
    """
    return not chip.has("hwdge")


class Workspace:
    """What the parts of one kernel call share: pools of SBUF tiles by name, and who evacuates PSUM next."""

    def __init__(self, b: Builder) -> None:
        self._b = b
        self._pools: dict[tuple[str, tuple[int, ...], DType], TilePool] = {}
        self._vector = self._scalar = 0.0  # seconds of copies given to each
        self._to_widen: deque[tuple[AP, AP]] = deque()
        self.begun = 0  # copies that were announced to widen what came

    @property
    def builder(self) -> Builder:
        """What the kernel is recorded with."""
        return self._b

    def pool(self, name: str, shape: tuple[int, ...], dt: DType, bufs: int) -> TilePool:
        """The pool of that name, shape and format; made on first use."""
        key = (name, shape, dt)
        if key not in self._pools:
            self._pools[key] = self._b.pool(shape, dt, bufs=bufs, name=name)
        return self._pools[key]

    def evacuate(self, dst: AP, src: AP) -> None:
        """Copy, and cast, from PSUM (or SBUF) to SBUF, on the less busy of VectorE and ScalarE: only these two reach
        PSUM. Where they take turns there, on ScalarE, which is done sooner."""
        vector, scalar = self._b.chip.vector, self._b.chip.scalar
        on_vector = self._vector + (src.free + vector.issue.value) / vector.clock.value
        on_scalar = self._scalar + (src.free + scalar.issue.value) / scalar.clock.value
        apart = src.memory is not Memory.PSUM or self._b.chip.has("parallel_ports")
        if on_vector <= on_scalar and apart:
            self._vector = on_vector
            self._b.tensor_copy(dst=dst, src=src, engine=Engine.VECTOR)
        else:
            self._scalar = on_scalar
            self._b.activation(dst=dst, data=src, op="copy", engine=Engine.SCALAR)

    def widen_later(self, dst: AP, src: AP) -> None:
        """Copy, and cast, what a transfer brings once it is needed: a copy that waited for it would hold up others of
        its engine."""
        self._to_widen.append((dst, src))
        self.begun += 1

    def widen_until(self, number: int) -> None:
        """Record the first so many of all copies that were announced."""
        while self._to_widen and self.begun - len(self._to_widen) < number:
            self.evacuate(*self._to_widen.popleft())

    def add(self, dst: AP, left: AP, right: AP) -> None:
        """dst = left + right on VectorE, one of them in PSUM."""
        vector = self._b.chip.vector
        self._vector += (left.free + vector.issue.value) / vector.clock.value
        self._b.tensor_tensor(dst=dst, data1=left, data2=right, op="add", engine=Engine.VECTOR)


class BlockSource(Protocol):
    """A matrix [R, C] that can be brought into SBUF block by block. `dtype` is its format once there."""

    shape: tuple[int, int]
    dtype: DType

    def open(self, work: Workspace) -> None:
        """Reserve what SBUF it needs beside the tiles that it fills."""
        return None

    def load(self, b: Builder, dst: AP, row: int, col: int) -> None:
        """Bring rows [row, +dst.partitions) and columns [col, +dst.free) into the SBUF tile `dst`."""
        ...

    def on_chip(self, b: Builder, row: int, rows: int, col: int, cols: int) -> AP | None:
        """Rows [row, +rows), from a multiple of 128 on, and columns [col, +cols) where they lie in SBUF already, as
        [128, blocks, columns]; None for what has to be loaded."""
        return None

    def in_pairs(self) -> BlockSource | None:
        """The same bytes as a matrix [R, C / 2] of 16 bits, each two neighbours of FP8; None where they are none."""
        return None

    def load_blocks(self, b: Builder, dst: AP, row: int, col: int) -> None:
        """Bring blocks of 128 rows: dst[p, i, :] = rows row + 128 i + p. One transfer where the matrix allows it."""
        for i in range(dst.shape[1]):
            self.load(b, dst[:, i], row + i * P, col)


class Sink(Protocol):
    """Where the finished tiles of a matrix go. Tiles come in runs: same rows, each to the right of the last.

    `cost`: seconds that an engine needs for a tile of BANK columns, 0 where it is copied and no more. `moved`: bytes
    that are loaded and stored for each element then. `open_rows`: blocks of P rows whose tiles it takes in turn, 0
    for any number; with it, rows are finished in their order. `banks`: of PSUM, the last ones, that are its own.
    """

    cost: float = 0.0
    moved: int = 0
    open_rows: int = 0
    banks: int = 0

    def open(self, b: Builder, work: Workspace, width: int) -> None:
        """Reserve what SBUF it needs. `width`: columns of the longest run of adjacent tiles."""

    def announce(self, b: Builder, row: int, col: int, rows: int, cols: int) -> None:
        """The tile [rows, cols] at (row, col) will be stored soon: at most ANNOUNCED others before it. Tiles are
        announced in the order in which they are stored, and all of them or none."""

    def store(self, b: Builder, acc: AP, row: int, col: int) -> None:
        """Consume the finished fp32 PSUM tile `acc` [rows, cols] whose corner is (row, col)."""
        ...

    def close(self, b: Builder) -> None:
        """There is no more to come: write out what is still held back."""


class ViewSource(BlockSource):
    """A view of HBM as a matrix: its first `rows` dimensions, flattened, are R, the others C."""

    def __init__(self, view: HbmView, *, rows: int = 1, dt: DType | str | None = None) -> None:
        """`dt`: format on chip; the DMA casts when it is not that of the view."""
        self.view, self.rows = view, rows
        self.shape = _matrix_shape(view, rows)
        self.dtype = view.dtype if dt is None else dtype(dt)

    def on_chip(self, b: Builder, row: int, rows: int, col: int, cols: int) -> AP | None:
        """The rows and columns in SBUF, where the view is of a tensor that stays there; None where it is not."""
        resident = residence.of(b, self.view.base)
        blocks = resident.blocks(self.view, self.rows) if resident is not None else None
        if blocks is None or row % P or self.dtype is not self.view.dtype:
            return None
        return blocks[:, row // P : -(-(row + rows) // P), col : col + cols]

    def in_pairs(self) -> BlockSource | None:
        """Where rows lie in memory as they are, and have an even number of elements."""
        inner = self.view.collapsed(self.rows)
        if self.dtype is not self.view.dtype or self.dtype.itemsize != 1 or not inner or inner[-1][0] != 1:
            return None
        steps = (s for s, _ in (*self.view.collapsed(0, self.rows), *inner[:-1]))
        even = not any(n % 2 for n in (self.view.offset, inner[-1][1], *steps))
        return PairedSource(self.view, rows=self.rows) if even else None

    def _parts(self, row: int, rows: int, col: int, cols: int) -> list[TilePart]:
        """What is to be transferred for a block."""
        return rectangle(self.view, self.rows, row, rows, col, cols)

    def load(self, b: Builder, dst: AP, row: int, col: int) -> None:
        """One DMA, or one for each affine part of the view that the block touches."""
        for piece in self._parts(row, dst.partitions, col, dst.free):
            dma_load(b, _part(dst, piece), piece.ap)

    def load_blocks(self, b: Builder, dst: AP, row: int, col: int) -> None:
        """One DMA when the rows are one stride apart throughout, else one for each block or part of it."""
        _, blocks, cols = dst.shape
        pieces = self._parts(row, blocks * P, col, cols)
        ap = pieces[0].ap
        if len(pieces) == 1 and ap.partitions == blocks * P and len(ap.dims) < MAX_FREE_DIMS:
            step = P * ap.partition_step // ap.dtype.itemsize
            src = AP(ap.buffer, ap.dtype, 0, P, ap.partition_step, ap.offset, ((step, blocks), *ap.dims))
            dma_load(b, dst, src)
        else:
            super().load_blocks(b, dst, row, col)


class PairedSource(ViewSource):
    """A view of FP8 as numbers of 16 bits, each of two neighbours: what only moves them does so at half the price.
    bfloat16 stands for 16 bits that mean nothing."""

    def __init__(self, view: HbmView, *, rows: int) -> None:
        """As `ViewSource`."""
        super().__init__(view, rows=rows)
        self.narrow, self.dtype = view.dtype, bfloat16
        self.shape = self.shape[0], self.shape[1] // 2

    def on_chip(self, b: Builder, row: int, rows: int, col: int, cols: int) -> AP | None:
        """None: in SBUF they lie one by one."""
        return None

    def in_pairs(self) -> BlockSource | None:
        """None: they are already."""
        return None

    def _parts(self, row: int, rows: int, col: int, cols: int) -> list[TilePart]:
        parts = super()._parts(row, rows, 2 * col, 2 * cols)
        return [replace(p, col=p.col // 2, cols=p.cols // 2, ap=p.ap.joined_pairs(self.dtype)) for p in parts]


class WidenedSource(BlockSource):
    """A view whose elements have a byte (weights in int8 or fp8), widened in SBUF: the DMA moves a byte an element,
    and VectorE and ScalarE share the casts. A transfer that casts would write two for each, and take as long."""

    _work: Workspace

    def __init__(self, view: HbmView, *, rows: int, dt: DType | str) -> None:
        """As `ViewSource`."""
        self._given, self.dtype = ViewSource(view, rows=rows), dtype(dt)
        self.shape = self._given.shape

    def open(self, work: Workspace) -> None:
        """Tiles for what came and is not widened yet, shared by all such operands of a kernel."""
        self._work = work
        self._staged()

    def _staged(self) -> TilePool:
        return self._work.pool("bytes", (P, STAGED), self._given.dtype, STAGES)

    def load(self, b: Builder, dst: AP, row: int, col: int) -> None:
        """By columns that a tile has room for."""
        for at in range(0, dst.free, STAGED):
            cols = min(STAGED, dst.free - at)
            tile = self._next()[: dst.partitions, :cols]
            self._given.load(b, tile, row, col + at)
            self._work.widen_later(dst[:, at : at + cols], tile)

    def _next(self) -> AP:
        self._work.widen_until(self._work.begun - STAGES + 1)
        return self._staged().next()

    def load_blocks(self, b: Builder, dst: AP, row: int, col: int) -> None:
        """As many blocks at once as a tile has room for."""
        _, blocks, cols = dst.shape
        if cols > STAGED:
            for i in range(blocks):
                self.load(b, dst[:, i], row + i * P, col)
            return
        most = STAGED // cols
        for i in range(0, blocks, most):
            count = min(most, blocks - i)
            tile = self._next()[:, : count * cols].split(0, count, cols)
            self._given.load_blocks(b, tile, row + i * P, col)
            self._work.widen_later(dst[:, i : i + count], tile)


class JoinedSource(BlockSource):
    """Matrices one below the other (`along_rows`) or side by side, each a multiple of 128 long there."""

    def __init__(self, parts: Sequence[BlockSource], along_rows: bool) -> None:
        axis = 0 if along_rows else 1
        lengths = [part.shape[axis] for part in parts]
        assert all(n % P == 0 for n in lengths), lengths
        self._starts = [sum(lengths[:i]) for i in range(len(parts) + 1)]
        self._parts, self._along_rows, self.dtype = parts, along_rows, parts[0].dtype
        across = parts[0].shape[1 - axis]
        self.shape = (self._starts[-1], across) if along_rows else (across, self._starts[-1])

    def open(self, work: Workspace) -> None:
        """What each part needs."""
        for part in self._parts:
            part.open(work)

    def load(self, b: Builder, dst: AP, row: int, col: int) -> None:
        """From each matrix its share."""
        for part, first, count, start in self._shares(
            *((row, dst.partitions) if self._along_rows else (col, dst.free))
        ):
            if self._along_rows:
                part.load(b, dst[first : first + count], start, col)
            else:
                part.load(b, dst[:, first : first + count], row, start)

    def load_blocks(self, b: Builder, dst: AP, row: int, col: int) -> None:
        """Likewise; blocks of rows begin where matrices do."""
        _, blocks, cols = dst.shape
        for part, first, count, start in self._shares(*((row, blocks * P) if self._along_rows else (col, cols))):
            if self._along_rows:
                part.load_blocks(b, dst[:, first // P : (first + count) // P], start, col)
            else:
                part.load_blocks(b, dst[:, :, first : first + count], row, start)

    def _shares(self, start: int, count: int) -> Iterator[tuple[BlockSource, int, int, int]]:
        """The share of each matrix in [start, +count): itself, where it begins in that range, how long it is, and
        where it begins in the matrix."""
        for part, begin, end in zip(self._parts, self._starts, self._starts[1:]):
            first, last = max(start, begin), min(start + count, end)
            if first < last:
                yield part, first - start, last - first, first - begin


def load_rows(b: Builder, source: BlockSource, dst: AP, rows: int, row: int, col: int) -> None:
    """Rows [row, +rows) of a source, in blocks of 128, into a tile [128, blocks, columns] from column `col` on."""
    blocks, rest = divmod(rows, P)
    if blocks:
        source.load_blocks(b, dst[:, :blocks], row, col)
    if rest:
        source.load(b, dst[:rest, blocks], row + blocks * P, col)


def store_rows(
    b: Builder, view: HbmView, tile: AP, row: int, col: int, *, rows: int = 1, engine: Engine = Engine.GPSIMD
) -> None:
    """Write an SBUF tile to a view of HBM as a matrix, its corner to (row, col). `rows` as in `ViewSource`."""
    for piece in rectangle(view, rows, row, tile.partitions, col, tile.free):
        dma_store(b, piece.ap, _part(tile, piece), engine)


def _matrix_shape(view: HbmView, rows: int) -> tuple[int, int]:
    return prod(view.shape[:rows]), prod(view.shape[rows:])


def _part(tile: AP, piece: TilePart) -> AP:
    """The part of a tile that a piece of a view corresponds to."""
    return tile[piece.partition : piece.partition + piece.partitions, piece.col : piece.col + piece.cols]
