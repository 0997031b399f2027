# SPDX-License-Identifier: Apache-2.0
"""Transposes of images whose pixels are put in another order as well, as windows and grids of them are.

A slab of pixels that follow each other in one of two views is a run for each channel there, and a row of channels for
each pixel in the other. The PE array turns up to 128 pixels at once, in the order of the rows, wherever they lie in
the run: an access pattern of SBUF steps from one to the next, so that HBM is read and written in runs throughout.

Letters: N pixels of a slab, R channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, product
from math import ceil, prod

from trnlab.isa.base import Engine
from trnlab.kernels.blocks import BANK, BANKS, P, Workspace, dma_load, dma_store
from trnlab.kernels.view import HbmView
from trnlab.program import AP, Builder, TilePool, hbm_view
from trnlab.program.access import MAX_FREE_DIMS
from trnlab.program.strided import Dims, collapsed

SLAB_BYTES = 24 << 10  # of a partition, for a slab of all blocks of channels
BUFS = 3
TRANSFER = 620.0  # nanoseconds; what follows only chooses between ways to turn


@dataclass(frozen=True)
class _Block:
    """Up to 128 pixels: where the first lies in the slab's run and in rows, and the steps to the others in each."""

    first: tuple[int, int]
    in_run: Dims
    in_rows: Dims

    @property
    def count(self) -> int:
        """How many pixels."""
        return prod(n for _, n in self.in_run)


@dataclass(frozen=True)
class TurnedSlabs:
    """Two views of one shape: `outer` dimensions of slabs, those of pixels in the order of rows, and channels.

    The pixels of a slab follow each other in `run`, the channels of a pixel in `rows`. gathers: whether `run` is the
    source.
    """

    run: HbmView
    rows: HbmView
    outer: int
    gathers: bool

    @property
    def pixels(self) -> int:
        """N."""
        return prod(self.run.shape[self.outer : -1])

    @property
    def transfers(self) -> int:
        """How many there are."""
        channels, tall = self.run.shape[-1], self._tall
        each = ceil(channels / P) + ceil(channels / tall) * sum(1 for _ in self._blocks())
        return prod(self.run.shape[: self.outer]) * each

    @property
    def nanoseconds(self) -> float:
        """Estimated."""
        return self.transfers * TRANSFER

    @property
    def _tall(self) -> int:
        """Channels that are turned into one bank of PSUM."""
        return min(self.run.shape[-1], BANK * 4 // self.run.dtype.itemsize)

    def _blocks(self) -> Iterator[_Block]:
        """The pixels of a slab, as many at a time as partitions, and as access patterns, take."""
        steps = [view.strides[self.outer : -1] for view in (self.run, self.rows)]
        shape = self.run.shape[self.outer : -1]
        at = len(shape) - 1
        while at > 0 and prod(shape[at:]) * 2 <= P and len(shape) - at < MAX_FREE_DIMS:
            at -= 1
        inner = prod(shape[at + 1 :])
        if inner > P:
            at, inner = at + 1, prod(shape[at + 2 :])
        most = max(P // inner, 1)
        for index in product(*map(range, shape[:at])):
            for start in range(0, shape[at], most):
                counts = (min(most, shape[at] - start), *shape[at + 1 :])
                run, rows = (sum(i * s for i, s in zip((*index, start), each)) for each in steps)
                dims = [tuple(zip(each[at:], counts)) for each in steps]
                yield _Block((run, rows), *dims)

    def record(self, b: Builder) -> None:
        """Slab by slab."""
        channels, tall = self.run.shape[-1], self._tall
        with b.scope():
            work, dtype = Workspace(b), self.run.dtype
            slabs = work.pool("slab", (P, ceil(tall / P), self.pixels), dtype, BUFS)
            pieces = work.pool("rows", (P, tall), dtype, BUFS + 1)
            banks = cycle([b.psum((P, max(tall, P)), dtype, bank=i) for i in range(BANKS)])
            for index in product(*map(range, self.run.shape[: self.outer])):
                run, rows = (v.offset + sum(i * s for i, s in zip(index, v.strides)) for v in (self.run, self.rows))
                for first in range(0, channels, tall):
                    counts = [min(P, n) for n in range(min(tall, channels - first), 0, -P)]
                    runs = [self._run(run, first + i * P, n) for i, n in enumerate(counts)]
                    slab, start = slabs.next(), rows + first
                    parts = [(slab[:n, i], part) for i, (n, part) in enumerate(zip(counts, runs))]
                    self._turn(work, parts, pieces, banks, start)

    def _turn(
        self, work: Workspace, parts: list[tuple[AP, AP]], pieces: TilePool, banks: Iterator[AP], start: int
    ) -> None:
        """One slab: its channels, 128 at a time, in SBUF and in HBM. start: where its rows begin."""
        b, slabs = work.builder, [tile for tile, _ in parts]
        channels = sum(tile.partitions for tile in slabs)
        for tile, part in parts if self.gathers else ():
            dma_load(b, tile, part)
        for block in self._blocks():
            piece, lines = pieces.next()[: block.count, :channels], self._lines(block, start, channels)
            if self.gathers:
                _gather(work, next(banks), slabs, piece, block)
                dma_store(b, lines, piece)
            else:
                dma_load(b, piece, lines)
                _scatter(work, next(banks), slabs, piece, block)
        for tile, part in () if self.gathers else parts:
            dma_store(b, part, tile)

    def _run(self, start: int, row: int, count: int) -> AP:
        """All pixels of a slab, of so many channels."""
        step = self.run.strides[-1]
        return hbm_view(self.run.base, start + row * step, ((step, count), (1, self.pixels)))

    def _lines(self, block: _Block, start: int, channels: int) -> AP:
        """So many channels of each pixel of a block."""
        dims = collapsed(block.in_rows) or ((0, 1),)
        return hbm_view(self.rows.base, start + block.first[1], (*dims, (1, channels)))


def _gather(work: Workspace, bank: AP, slabs: list[AP], piece: AP, block: _Block) -> None:
    """piece[pixel, channel] of slabs [channel, pixel]."""
    made = bank[: block.count, : piece.free]
    for i, slab in enumerate(slabs):
        data = slab.with_dims(*block.in_run, skip=block.first[0])
        work.builder.nc_transpose(dst=made[:, i * P : i * P + slab.partitions], data=data, engine=Engine.TENSOR)
    work.evacuate(piece, made)


def _scatter(work: Workspace, bank: AP, slabs: list[AP], piece: AP, block: _Block) -> None:
    """slabs[channel, pixel] of a piece [pixel, channel]."""
    for i, slab in enumerate(slabs):
        made, data = bank[: slab.partitions, : block.count], piece[:, i * P : i * P + slab.partitions]
        work.builder.nc_transpose(dst=made, data=data, engine=Engine.TENSOR)
        place = slab.with_dims(*block.in_run, skip=block.first[0])
        work.evacuate(place, made.split(0, *(n for _, n in block.in_run)))


def turned_slabs(b: Builder, source: HbmView, target: HbmView, inner: int) -> TurnedSlabs | None:
    """How to copy a view to one of the same shape, whose last dimension follows each other there as `inner` does in
    the source, with slabs of pixels that follow each other in one of them; None where there are no such."""
    last = len(source.shape) - 1
    if not source.strides[last] or target.strides[last] != 1:
        return None
    plans = (_planned(b, source, target, inner, last, True), _planned(b, target, source, last, inner, False))
    return min((p for p in plans if p is not None), key=lambda p: p.nanoseconds, default=None)


def _planned(b: Builder, run: HbmView, rows: HbmView, along: int, channels: int, gathers: bool) -> TurnedSlabs | None:
    """With pixels that follow each other in `run` from the dimension `along` on, and channels in `rows`."""
    blocks = min(ceil(run.shape[channels] / P), ceil(BANK * 4 / run.dtype.itemsize / P))
    longest = min(SLAB_BYTES, b.sbuf_free // (2 * BUFS)) // (blocks * run.dtype.itemsize)
    together, length = [along], run.shape[along]
    while length <= longest:
        found = next((d for d, s in enumerate(run.strides) if s == length and d not in (*together, channels)), None)
        if found is None or run.shape[found] == 1:
            break
        part = max((n for n in range(1, longest // length + 1) if run.shape[found] % n == 0), default=1)
        if part == 1:
            break
        if part < run.shape[found]:
            run, rows = (view.split(found, view.shape[found] // part, part) for view in (run, rows))
            together, channels = [d + (d > found) for d in together], channels + (channels > found)
            found += 1
        together.append(found)
        length *= part
    if len(together) == 1 or length > longest:
        return None
    outer = [d for d in range(len(run.shape)) if d not in (*together, channels)]
    order = (*outer, *sorted(together, key=lambda d: -rows.strides[d]), channels)
    return TurnedSlabs(run.permute(*order), rows.permute(*order), len(outer), gathers)
