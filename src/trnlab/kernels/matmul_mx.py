# SPDX-License-Identifier: Apache-2.0
"""Matrix products in the MX formats: out[M, N] = sum over K of lhs and rhs, quantized on the way into the PE array.

Both operands come as bfloat16. Row k of the contraction goes to partition k // 4 and place k % 4 of a word, so that
the 8 partitions by 4 places that share a scale are 32 neighbours in K, the blocks of the OCP standard. So each
product quantizes along its own contraction: a weight has other scales going forward than on the way back.

A block of the result waits in PSUM while the contraction passes in chunks of 512. One operand is kept in SBUF,
quantized, block by block the other passes by; where there is no room for all of it, the piece that was used longest
ago makes room. The pieces of the next step are made before the matmuls of this one are recorded.

Letters: M stationary free, N moving free, K contraction. Source: nki.isa.quantize_mx, nki.isa.nc_matmul_mx;
nki/deep-dives/mxfp-matmul.rst:99-129 (layout of words and scales).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import ceil

from trnlab.isa.base import Engine
from trnlab.kernels.blocks import BANK, P, Sink, ViewSource, Workspace, dma_load
from trnlab.kernels.view import HbmView, rectangle
from trnlab.numerics.dtypes import bfloat16, uint8
from trnlab.numerics.mx import GROUP_PARTITIONS, LANES
from trnlab.program.access import AP
from trnlab.program.builder import Builder

CHUNK = P * LANES  # rows of the contraction in one matmul
QUADRANT = 32
WIDTH = 512  # columns of a piece; a block of the result is one piece of each side, four banks
ACC_BANKS, TURN_BANKS = (0, 1, 2, 3, 4, 5), (6, 7)
STAGED = 3  # pieces on their way, and blocks of 128 columns that wait to be turned
ALIGN, SPARE = 64, 256  # bytes


@dataclass(frozen=True)
class MxOperand:
    """One side: its matrix, whether its rows are the contraction, and the format of its words."""

    source: ViewSource
    k_rows: bool
    format: str

    @property
    def size(self) -> tuple[int, int]:
        """K, and M or N."""
        rows, cols = self.source.shape
        return (rows, cols) if self.k_rows else (cols, rows)

    @property
    def width(self) -> int:
        """Columns of a piece; an even number, as the array wants it."""
        columns = min(WIDTH, self.size[1])
        return columns + columns % 2

    @property
    def piece_bytes(self) -> int:
        """Bytes per partition of a quantized piece: words and scales, each with room to be aligned."""
        return 5 * self.width + 2 * ALIGN

    @property
    def staging(self) -> int:
        """Bytes per partition of what waits to be quantized."""
        return STAGED * (2 * LANES * self.width + ALIGN + (0 if self.k_rows else 2 * CHUNK + ALIGN))


@dataclass(frozen=True)
class _Piece:
    """A quantized piece: words [128, columns], scales of their groups, and partitions in use."""

    words: AP
    scales: AP
    partitions: int

    def columns(self, first: int, count: int) -> tuple[AP, AP]:
        """Words and scales of some columns."""
        return tuple(ap[: self.partitions, first : first + count] for ap in (self.words, self.scales))  # type: ignore[return-value]


def matmul_mx(b: Builder, lhs: MxOperand, rhs: MxOperand, sink: Sink) -> None:
    """Record the product; `sink` receives each tile of at most [128, 512] once. Raises CapacityError (TRN501)."""
    (k, m), (rhs_k, n) = lhs.size, rhs.size
    assert k == rhs_k, f"contraction of {k} against {rhs_k}"
    work = Workspace(b)
    sink.open(b, work, n)
    lhs_kept = lhs.k_rows < rhs.k_rows or (lhs.k_rows == rhs.k_rows and m <= n)
    left, right = _feeds(b, work, lhs, rhs, lhs_kept)
    blocks = product(range(0, (n if lhs_kept else m), WIDTH), range(0, (m if lhs_kept else n), WIDTH))
    corners = [(near, far) if lhs_kept else (far, near) for far, near in blocks]
    steps = [(row, col, start) for row, col in corners for start in range(0, k, CHUNK)]
    coming, turn = _pieces(steps, 0, left, right), 0
    for now, (row, col, start) in enumerate(steps):
        weights, data = coming
        ahead = left.runs_ahead and right.runs_ahead
        if ahead:
            coming = _pieces(steps, now + 1, left, right)
        tiles, ends = list(_tiles(row, m, col, n)), start + CHUNK >= k
        for i, (r, rows, c, cols) in enumerate(tiles):
            acc = b.psum((P, BANK), bank=ACC_BANKS[(turn + i) % len(ACC_BANKS)])
            stationary, scale = weights.columns(r - row, rows + rows % 2)
            moving, moving_scale = data.columns(c - col, cols)
            b.nc_matmul_mx(
                dst=acc[: rows + rows % 2, :cols],
                stationary=stationary,
                moving=moving,
                stationary_scale=scale,
                moving_scale=moving_scale,
                accumulate=start > 0,
                stop=ends,
            )
            if ends:
                sink.store(b, acc[:rows, :cols], r, c)
        turn += len(tiles) if ends else 0
        if not ahead:
            coming = _pieces(steps, now + 1, left, right)
    sink.close(b)


def _feeds(b: Builder, work: Workspace, lhs: MxOperand, rhs: MxOperand, lhs_kept: bool) -> tuple[_Feed, _Feed]:
    """Both operands' feeds; the one that passes by gets room for a block and what comes next, the other the rest."""
    kept, passing = (lhs, rhs) if lhs_kept else (rhs, lhs)
    chunks = ceil(lhs.size[0] / CHUNK)
    room = b.sbuf_free - kept.staging - passing.staging - SPARE
    least = 2 * kept.piece_bytes
    second = _Feed(b, work, passing, max(1, min(chunks + 2, (room - least) // passing.piece_bytes)))
    first = _Feed(b, work, kept, max(1, (b.sbuf_free - kept.staging - SPARE) // kept.piece_bytes))
    return (first, second) if lhs_kept else (second, first)


def _pieces(steps: list[tuple[int, int, int]], now: int, left: _Feed, right: _Feed) -> tuple[_Piece, _Piece]:
    """The pieces of a step; after the last one those of the last."""
    row, col, start = steps[min(now, len(steps) - 1)]
    return left.piece(row, start), right.piece(col, start)


def _tiles(row: int, m: int, col: int, n: int) -> Iterator[tuple[int, int, int, int]]:
    """Row, rows, column, columns of the tiles of a block."""
    for r in range(row, min(row + WIDTH, m), P):
        yield r, min(P, m - r), col, min(WIDTH, n - col)


class _Feed:
    """Quantized pieces of one operand, made when they are needed and kept while there is room."""

    def __init__(self, b: Builder, work: Workspace, operand: MxOperand, room: int) -> None:
        """room: pieces that there is room for. Raises CapacityError when there is none."""
        self.b, self.work, self.operand = b, work, operand
        (self.k, self.size), even = operand.size, operand.width
        self._staged = b.pool((P, LANES, even), bfloat16, bufs=STAGED, name="staged")
        self._raw = None if operand.k_rows else b.pool((P, CHUNK), bfloat16, bufs=STAGED, name="raw")
        count = min(ceil(self.k / CHUNK) * ceil(self.size / WIDTH), room)
        self._free = [
            (b.tile((P, even), f"{operand.format}_x4", name="words"), b.tile((P, even), uint8, name="scales"))
            for _ in range(count)
        ]
        self._kept: dict[tuple[int, int], _Piece] = {}
        self._banks = [b.psum((P, 2 * BANK), bfloat16, bank=i) for i in TURN_BANKS]
        self._turn = 0
        self.runs_ahead = count > 1  # the next piece may be made while one is in use

    def piece(self, col: int, start: int) -> _Piece:
        """Columns [col, +512) and rows [start, +512) of the contraction."""
        key = (col, start)
        if key in self._kept:
            self._kept[key] = self._kept.pop(key)
            return self._kept[key]
        if self._free:
            words, scales = self._free.pop()
        else:
            oldest = self._kept.pop(next(iter(self._kept)))
            words, scales = oldest.words, oldest.scales
        self._kept[key] = self._quantized(words, scales, col, start)
        return self._kept[key]

    def _quantized(self, words: AP, scales: AP, col: int, start: int) -> _Piece:
        rows, cols = min(CHUNK, self.k - start), min(WIDTH, self.size - col)
        partitions, even = ceil(rows / (LANES * QUADRANT)) * QUADRANT, cols + cols % 2
        staged = self._staged.next()
        if rows < LANES * partitions or even > cols:
            self.b.memset(dst=staged[:partitions, :, :even], value=0.0)
        if self.operand.k_rows:
            self._load_rows(staged, start, rows, col, cols)
        else:
            self._load_turned(staged, start, rows, col, cols)
        self.b.quantize_mx(
            dst=words[:partitions, :even],
            src=staged[:partitions, :, :even].permute(1, 0),
            dst_scale=scales[:partitions, :even],
        )
        return _Piece(words, scales, partitions)

    def _load_rows(self, staged: AP, start: int, rows: int, col: int, cols: int) -> None:
        """Row 4 p + j of the chunk to partition p, place j: one transfer for each place where the view allows it."""
        view, leading = self.operand.source.view, self.operand.source.rows
        words = _words(view, leading)
        if words is not None and rows % LANES == 0:
            source = words[start // LANES : (start + rows) // LANES, :, col : col + cols].ap()
            dma_load(self.b, staged[: rows // LANES, :, :cols], source)
            return
        for j in range(min(LANES, rows)):
            lane = _lane(view, leading, j)
            if lane is not None:
                height = ceil((rows - j) / LANES)
                for part in rectangle(lane, leading, start // LANES, height, col, cols):
                    dst = staged[
                        part.partition : part.partition + part.partitions, j, part.col : part.col + part.cols
                    ]
                    dma_load(self.b, dst, part.ap)
                continue
            for k in range(j, rows, LANES):
                for part in rectangle(view, leading, start + k, 1, col, cols):
                    p = k // LANES
                    dma_load(self.b, staged[p : p + 1, j, part.col : part.col + part.cols], part.ap)

    def _load_turned(self, staged: AP, start: int, rows: int, col: int, cols: int) -> None:
        """Blocks of 128 columns of the operand, turned on the PE array, a place of the words at a time."""
        assert self._raw is not None
        for at in range(0, cols, P):
            count, raw = min(P, cols - at), self._raw.next()
            self.operand.source.load(self.b, raw[:count, :rows], col + at, start)
            bank = self._banks[self._turn % len(self._banks)]
            self._turn += 1
            places = range(min(LANES, rows))
            heights = [ceil((rows - j) / LANES) for j in places]
            for j, height in zip(places, heights):
                data = raw[:count].with_dims((LANES, height), skip=j)
                self.b.nc_transpose(dst=bank[:height, j * P : j * P + count], data=data, engine=Engine.TENSOR)
            if len({*heights}) == 1:  # all places of the words in one copy
                turned = bank[: heights[0], : len(heights) * P].split(0, len(heights), P)[:, :, :count]
                self.work.evacuate(staged[: heights[0], : len(heights), at : at + count], turned)
                continue
            for j, height in zip(places, heights):
                turned = bank[:height, j * P : j * P + count]
                self.work.evacuate(staged[:height, j, at : at + count], turned)


def _words(view: HbmView, leading: int) -> HbmView | None:
    """A matrix as [K / 4, 4, columns], where its rows are evenly apart and its columns are one dimension."""
    rows, columns = view.collapsed(0, leading), view.collapsed(leading)
    if len(rows) != 1 or len(columns) != 1 or rows[0][1] < LANES:
        return None
    (step, count), (stride, size) = rows[0], columns[0]
    return view.like(view.offset, (count // LANES, LANES, size), (step * LANES, step, stride))


def _lane(view: HbmView, leading: int, j: int) -> HbmView | None:
    """Every fourth row of a matrix from row j on, its rows as `leading` dimensions; None where they are not evenly
    apart and their innermost dimension is no multiple of four."""
    merged = view.collapsed(0, leading) or ((0, 1),)
    if len(merged) == 1:
        stride, count = merged[0]
        outer: tuple[tuple[int, int], ...] = ((0, 1),) * (leading - 1)
        inner = (stride * LANES, ceil((count - j) / LANES))
    else:
        stride, count = view.strides[leading - 1], view.shape[leading - 1]
        if count % LANES:
            return None
        outer, inner = tuple(zip(view.strides, view.shape))[: leading - 1], (stride * LANES, count // LANES)
    strides, shape = zip(*outer, inner)
    return view.like(view.offset + j * stride, (*shape, *view.shape[leading:]), (*strides, *view.strides[leading:]))


assert GROUP_PARTITIONS * LANES == 32, "a group is a block of the OCP standard"
