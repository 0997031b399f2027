# SPDX-License-Identifier: Apache-2.0
"""Sums by number within rows, where many rows have the same numbers, as relative positions are in all heads of a
batch: out[c, v] = sum of x[c, j] where ids[j] = v is the product of the rows with the one-hot matrix of the numbers,
which is made on chip.

Zero times infinity is NaN, which would go from one place to all of a row. So what is finite is summed apart from
marks of plus and of minus infinity, which NaN has both of: times a large number a mark is infinite, and the
difference of infinities is NaN.

Letters: C rows with the same numbers, J numbers, V places; P partitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import ceil

from trnlab.isa.base import Engine
from trnlab.kernels.blocks import BANK, BANKS, P, Workspace, dma_load, dma_store
from trnlab.kernels.view import HbmView, merged_rows
from trnlab.numerics.dtypes import DType, bool_, float32, int32
from trnlab.program import AP
from trnlab.program.builder import Builder
from trnlab.program.pool import TilePool

MOST_NUMBERS, MOST_ONE_HOT = 1024, 24576  # of a row, and of a partition of the one-hot matrix
INF = float("inf")
MARK, INFINITY = 2.0, 2.0**127  # one mark times the other is infinite, and every format has it
NUMBERS, ROWS, SUMS = (0,), (1, 2), range(3, BANKS)  # banks of PSUM for what is transposed, and for products


def one_hot_bytes(numbers: int, places: int, dtype: DType) -> int:
    """Bytes of a partition that the one-hot matrix of J numbers takes."""
    return ceil(numbers / P) * places * dtype.itemsize


def sum_along(b: Builder, x: HbmView, ids: HbmView, out: HbmView) -> None:
    """out[..., v] = sum of x[..., j] over all j with ids[..., j] = v, in float32; a number that is no place adds to
    none. x: [..., J] floats; ids: [..., J] int32; out: [..., V] floats. At most MOST_NUMBERS numbers, and a one-hot
    matrix of MOST_ONE_HOT."""
    x, ids, out = merged_rows(x, ids, out)
    if not any(ids.strides[:-1]):
        x, ids, out = (view.expand(0, 1) for view in (x, ids, out))
    own = [d for d, step in enumerate(ids.strides[:-1]) if step] or [0]
    with b.scope():
        sums = _Sums(b, x.dtype, out.dtype, x.shape[-1], out.shape[-1])
        waiting: list[tuple[HbmView, list[AP], AP]] = []  # what is multiplied while engines prepare the next rows
        for numbers, at in _numbers(b, ids, own):
            ones = sums.one_hot(numbers)
            for rows in _sharing(ids.shape[:-1], at):
                waiting.append((out[rows], sums.prepare(x[rows]), ones))
                if len(waiting) > 1:
                    sums.finish(*waiting.pop(0))
        for each in waiting:
            sums.finish(*each)


_Place = tuple[int | slice, ...]


def _numbers(b: Builder, ids: HbmView, own: Sequence[int]) -> Iterator[tuple[AP, dict[int, int]]]:
    """The numbers of rows that differ in them, on partitions as [P, tiles of J, 1], and their index in the dimensions
    `own`, which they vary along. 128 of them are transposed at once."""
    (*outer, last), width = own, ids.shape[-1]
    raw = b.pool((P, width), int32, bufs=2, name="numbers")
    wide = b.pool((P, width), float32, bufs=2, name="wide_numbers")
    turned = b.pool((P, ceil(width / P), P), float32, bufs=2, name="turned_numbers")
    banks = TilePool([b.psum((P, P), float32, bank=i) for i in NUMBERS])
    for index in product(*(range(ids.shape[d]) for d in outer)):
        at = dict(zip(outer, index))
        for start, height in _tiles(ids.shape[last]):
            part = slice(start, start + height)
            seen = ids[tuple(at.get(d, part if d == last else 0) for d in range(len(ids.shape) - 1))]
            columns = turned.next()
            _turn_numbers(b, seen, raw.next()[:height], wide.next()[:height], columns, banks)
            for i in range(height):
                yield columns[:, :, i : i + 1], {**at, last: start + i}


def _turn_numbers(b: Builder, ids: HbmView, raw: AP, wide: AP, columns: AP, banks: TilePool) -> None:
    """columns[j % P, j // P, r] = ids[r, j]."""
    dma_load(b, raw, ids.ap())
    b.tensor_copy(dst=wide, src=raw)
    for tile, (col, count) in enumerate(_tiles(ids.shape[-1])):
        bank = banks.next()[:count, : wide.partitions]
        b.nc_transpose(dst=bank, data=wide[:, col : col + count], engine=Engine.TENSOR)
        b.activation(dst=columns[:count, tile, : wide.partitions], data=bank, op="copy")


def _tiles(count: int) -> list[tuple[int, int]]:
    """The first of each tile of 128, and how many it has."""
    return [(start, min(P, count - start)) for start in range(0, count, P)]


def _sharing(shape: Sequence[int], at: dict[int, int]) -> Iterator[_Place]:
    """Blocks of up to 128 rows that have the numbers of an index, of rows in this shape."""
    shared = [d for d in range(len(shape)) if d not in at]
    rows = max(shared, key=lambda d: shape[d])
    others = [d for d in shared if d != rows]
    for repeat in product(*(range(shape[d]) for d in others)):
        fixed = {**at, **dict(zip(others, repeat))}
        for start, height in _tiles(shape[rows]):
            yield tuple(slice(start, start + height) if d == rows else fixed[d] for d in range(len(shape)))


class _Sums:
    """Tiles for the sums of rows [C, J] by one-hot matrices [J, V]."""

    def __init__(self, b: Builder, dtype: DType, result: DType, numbers: int, places: int) -> None:
        self.b, self.work, self.places, self.tiles = b, Workspace(b), places, _tiles(numbers)
        count = len(self.tiles)
        self.iota = b.tile((P, places), float32, name="places")
        with b.scope():
            whole = b.tile((P, places), int32, name="places32")
            b.iota(dst=whole, pattern=((1, places),))
            b.tensor_copy(dst=self.iota, src=whole)
        self.ones = b.pool((P, count, places), dtype, bufs=2, name="one_hot")
        self.raw, *self.parts = (
            b.pool((P, numbers), dtype, bufs=2, name=name) for name in ("rows", "finite", "plus", "minus")
        )
        self.outside = b.pool((P, numbers), bool_, bufs=2, name="outside")
        self.turned = [b.pool((P, count, P), dtype, bufs=2, name=f"turned{i}") for i in range(3)]
        width = min(places, BANK)
        self.infinities = [b.pool((P, width), float32, bufs=2, name=name) for name in ("up", "down")]
        self.sums = b.pool((P, width), float32, bufs=2, name="sums")
        self.results = b.pool((P, places), result, bufs=2, name="results")
        together = BANK * 4 // dtype.itemsize // P * P
        self.banks = TilePool([b.psum((P, together), dtype, bank=i) for i in ROWS])
        self.totals = TilePool([b.psum((P, BANK), float32, bank=i) for i in SUMS])

    def one_hot(self, numbers: AP) -> AP:
        """[P, tiles, V] of numbers [P, tiles, 1]: one where number p of a tile is v."""
        ones = self.ones.next()
        for tile, (_, count) in enumerate(self.tiles):
            self.b.tensor_scalar(
                dst=ones[:count, tile], data=self.iota[:count], operand0=numbers[:count, tile], op0="is_equal"
            )
        return ones

    def prepare(self, x: HbmView) -> list[AP]:
        """Rows [C, J] transposed, [P, tiles, C]: what is finite of them, and marks of plus and of minus infinity."""
        rows = x.shape[0]
        raw = self.raw.next()[:rows]
        dma_load(self.b, raw, x.ap())
        return [
            self._turn(part, pool.next()[:, :, :rows], scale)
            for part, pool, scale in zip(self._split(raw), self.turned, (None, MARK, MARK))
        ]

    def finish(self, out: HbmView, turned: list[AP], ones: AP) -> None:
        """Sums [C, V] of what was prepared."""
        b, result = self.b, self.results.next()[: out.shape[0]]
        for col in range(0, self.places, BANK):
            cols = slice(col, min(col + BANK, self.places))
            self._combine(result[:, cols], [self._multiply(each, ones[:, :, cols]) for each in turned])
        dma_store(b, out.ap(), result)

    def _split(self, x: AP) -> list[AP]:
        """What is finite of x; and ones for plus infinity or NaN, and for minus infinity or NaN."""
        b, outside = self.b, self.outside.next()[: x.partitions]
        finite, plus, minus = (pool.next()[: x.partitions] for pool in self.parts)
        b.tensor_scalar(dst=outside, data=x, operand0=0.0, op0="multiply", operand1=0.0, op1="not_equal")
        b.select_reduce(dst=finite, predicate=outside, on_true=x, on_false=0.0, reverse_pred=True)
        b.tensor_scalar(dst=plus, data=x, operand0=INF, op0="less", operand1=0.0, op1="is_equal")
        b.tensor_scalar(dst=minus, data=x, operand0=-INF, op0="greater", operand1=0.0, op1="is_equal")
        return [finite, plus, minus]

    def _turn(self, x: AP, turned: AP, scale: float | None) -> AP:
        """turned[j % P, j // P, c] = x[c, j], times a number; as many tiles at once as a bank has room for."""
        rows, full = x.partitions, x.free // P
        together = self.banks.tiles[0].free // rows
        for first in range(0, len(self.tiles), together):
            tiles = self.tiles[first : first + together]
            bank = self.banks.next()[:, : len(tiles) * rows].split(0, len(tiles), rows)
            for i, (col, count) in enumerate(tiles):
                self.b.nc_transpose(dst=bank[:count, i], data=x[:, col : col + count], engine=Engine.TENSOR)
            whole = min(full - first, len(tiles))
            if whole:
                self._copy(turned[:, first : first + whole], bank[:, :whole], scale)
            if whole < len(tiles):
                count = tiles[-1][1]
                self._copy(turned[:count, first + whole], bank[:count, whole], scale)
        return turned

    def _copy(self, dst: AP, src: AP, scale: float | None) -> None:
        if scale is None:
            self.work.evacuate(dst, src)
        else:
            self.b.activation(dst=dst, data=src, op="copy", scale=scale)

    def _multiply(self, turned: AP, ones: AP) -> AP:
        total = self.totals.next()[: turned.shape[2], : ones.shape[2]]
        for i, (_, count) in enumerate(self.tiles):
            self.b.nc_matmul(
                dst=total,
                stationary=turned[:count, i],
                moving=ones[:count, i],
                accumulate=i > 0,
                stop=i == len(self.tiles) - 1,
            )
        return total

    def _combine(self, dst: AP, totals: list[AP]) -> None:
        """Sums of what is finite, and infinities where there are marks."""
        b, (finite, *marks) = self.b, totals
        up, down = (pool.next()[: dst.partitions, : dst.free] for pool in self.infinities)
        sums = self.sums.next()[: dst.partitions, : dst.free]
        for infinity, mark in zip((up, down), marks):
            b.activation(dst=infinity, data=mark, op="copy", scale=INFINITY)
        b.tensor_tensor(dst=sums, data1=finite, data2=up, op="add", engine=Engine.VECTOR)
        b.tensor_tensor(dst=dst, data1=sums, data2=down, op="subtract", engine=Engine.VECTOR)
