# SPDX-License-Identifier: Apache-2.0
"""What a loop finds out about whole rows while their columns pass: means with variances, largest
and smallest elements, sums of exponentials.

Each sweep leaves the numbers of its columns in a place of its own, so that none waits for another; when the places
are full, and at the end, they are combined. Rows lie on partitions, 128 to a block.
"""

from __future__ import annotations

from dataclasses import dataclass

from trnlab.compiler.emission.domain import Domain
from trnlab.isa.base import Engine
from trnlab.kernels.blocks import dma_store
from trnlab.numerics.dtypes import DType, bfloat16, bool_, float32
from trnlab.program import AP, Builder, hbm_view

PLACES = 32  # for the numbers of sweeps
LONGEST = 512  # elements that one bn_stats takes
PART = 3  # numbers of a part: count, mean, variance times count
STEP = 2 * PART  # of one instruction, which tells even from odd elements
QUADRANT = 32  # engines read and write partitions from a multiple of it on


@dataclass
class _Block:
    """The numbers of up to 128 rows: [128, places], of which so many are taken, for so many elements of a row."""

    tile: AP
    taken: int = 0
    count: int = 0


class Moments:
    """Means and variances of rows: float32 [2, R] in the end."""

    def __init__(self, b: Builder, rows: int, cols: int, parts: int = 1) -> None:
        """`rows`, `cols`: of all there is. `parts`: as in `Domain`."""
        self.b, self.rows, self.cols, self.parts = b, rows, cols, parts
        places = min(PLACES, -(-cols // LONGEST) + 1)
        self._width = places * STEP
        blocks = -(-rows // 128) if parts == 1 else 1
        self._blocks = [_Block(self._tile(self._width * parts)) for _ in range(blocks)]
        self._both = [self._tile(2) for _ in range(2)]
        self._turn = 0

    def _tile(self, cols: int) -> AP:
        return self.b.tile((128, cols), float32, name="moments")

    def add(self, row: int, data: AP) -> None:
        """Some columns of the rows from `row` on, [P, F]; of each part of them."""
        block = self._blocks[row // 128]
        for first in range(0, data.free, LONGEST):
            if block.taken + STEP > self._width:
                self._shorten(block, data.partitions)
            piece = data[:, first : min(first + LONGEST, data.free)]
            self.b.bn_stats(dst=block.tile[: data.partitions, block.taken : block.taken + STEP], data=piece)
            block.taken += STEP
            block.count += piece.free

    def _shorten(self, block: _Block, rows: int) -> None:
        """One part for all."""
        mean = self._combined(block.tile[:rows, : block.taken])
        self.b.memset(dst=block.tile[:rows, :1], value=float(block.count), engine=Engine.VECTOR)
        self.b.tensor_copy(dst=block.tile[:rows, 1:2], src=mean[:, :1])
        self.b.tensor_scalar(
            dst=block.tile[:rows, 2:3], data=mean[:, 1:], operand0=float(block.count), op0="multiply"
        )
        block.taken = PART

    def _combined(self, numbers: AP) -> AP:
        self._turn ^= 1
        both = self._both[self._turn][: numbers.partitions]
        self.b.bn_aggr(dst=both, data=numbers)
        return both

    def again(self, b: Builder) -> Moments:
        """The same for another routine."""
        return Moments(b, self.rows, self.cols, self.parts)

    def store(self, row: int, target: AP) -> None:
        """Write out the rows of the block from `row` on, of which all columns have been seen, to HBM [2, R]."""
        block, count = self._blocks[row // 128], min(128, self.rows - row)
        taken = block.taken
        for i in range(1, self.parts):
            moved = block.tile[:count, i * taken : (i + 1) * taken]
            self.b.tensor_copy(dst=moved, src=block.tile[i * count : (i + 1) * count, :taken])
        both = self._combined(block.tile[:count, : self.parts * taken])
        dma_store(self.b, hbm_view(target.buffer, row, ((1, count), (self.rows, 2))), both)
        block.taken = block.count = 0


class _OneOfRows:
    """A number of each row, put together from parts by an operator: [R] in the end."""

    b: Builder
    rows: int
    op: str
    _blocks: list[_Block]

    def _shorten(self, block: _Block) -> None:
        """One place for all."""
        if block.taken > 1:
            taken = block.tile[: block.count, : block.taken]
            self.b.tensor_reduce(dst=block.tile[: block.count, :1], data=taken, op=self.op, axes=1)
            block.taken = 1

    def store(self, row: int, target: AP) -> None:
        """Write out the rows of the block from `row` on, of which all columns have been seen, to HBM [R]."""
        block, count = self._blocks[row // 128], min(128, self.rows - row)
        if not block.taken:
            return
        self._shorten(block)
        dma_store(self.b, hbm_view(target.buffer, row, ((1, count), (1, 1))), block.tile[:count, :1])
        block.taken = 0


class Extremes(_OneOfRows):
    """The largest, or the smallest, elements of rows: [R] in the end, in their format. op: "max" or "min"."""

    def __init__(self, b: Builder, rows: int, op: str, dt: DType = float32) -> None:
        self.b, self.rows, self.op, self.dtype = b, rows, op, dt
        blocks = -(-rows // 128)
        self._blocks = [_Block(b.tile((128, PLACES), dt, name="extremes")) for _ in range(blocks)]

    def add(self, row: int, data: AP) -> None:
        """Some columns of the rows from `row` on, [P, F]."""
        block = self._blocks[row // 128]
        if block.taken == PLACES:
            self._shorten(block)
        self.b.tensor_reduce(
            dst=block.tile[: data.partitions, block.taken : block.taken + 1], data=data, op=self.op, axes=1
        )
        block.taken += 1
        block.count = data.partitions

    def again(self, b: Builder) -> Extremes:
        """The same for another routine."""
        return Extremes(b, self.rows, self.op, self.dtype)


class SoftmaxStatistics:
    """The largest elements of rows, and the sums of the exponentials of the distances from them: float32 [2, R] in
    the end.

    The exponentials of a sweep are of distances from its own largest element, which is kept with its sign changed, as
    ScalarE takes it. A sweep of nothing but minus infinity has no such distances: its sum, which is NaN, counts for
    nothing if the row has a larger element elsewhere.
    """

    def __init__(self, b: Builder, rows: int, width: int) -> None:
        """`width`: most columns of a sweep."""
        self.b, self.rows, self.width = b, rows, width
        blocks = -(-rows // 128)
        self._blocks = [_Block(self._tile(2 * PLACES)) for _ in range(blocks)]
        self._unread = b.tile((128, width), bfloat16, name="exponentials")
        self._factors, self._scaled = self._tile(PLACES), self._tile(PLACES)
        self._counts = b.tile((128, PLACES), bool_, name="counts")
        self._both, self._minus = (b.pool((128, n), float32, bufs=2, name="softmax") for n in (2, 1))

    def _tile(self, cols: int) -> AP:
        return self.b.tile((128, cols), float32, name="softmax")

    def add(self, row: int, data: AP) -> None:
        """Some columns of the rows from `row` on, [P, F]."""
        block, count = self._blocks[row // 128], data.partitions
        if block.taken == PLACES:
            self._shorten(block)
        minus, total = self._places(block, count, block.taken, block.taken + 1)
        self.b.tensor_reduce(dst=minus, data=data, op="max", axes=1, negate=True)
        self.b.activation(dst=self._unread[:count, : data.free], data=data, op="exp", bias=minus, reduce_res=total)
        block.taken += 1
        block.count = count

    def _places(self, block: _Block, count: int, first: int, last: int) -> tuple[AP, AP]:
        """Minus the largest elements, and the sums, of some sweeps: [count, last - first] each."""
        rows = block.tile[:count]
        return rows[:, first:last], rows[:, PLACES + first : PLACES + last]

    def _combined(self, block: _Block) -> AP:
        """Both numbers [P, 2] of all that has been seen."""
        b, count, taken = self.b, block.count, block.taken
        both, least = self._both.next()[:count], self._minus.next()[:count]
        factors, scaled, counts = (x[:count, :taken] for x in (self._factors, self._scaled, self._counts))
        minus, totals = self._places(block, count, 0, taken)
        b.tensor_reduce(dst=least, data=minus, op="min", axes=1)
        # exp(m_i - m), of numbers with their signs changed; where it is 0, the sum may be NaN and counts for nothing.
        b.tensor_scalar(dst=factors, data=minus, operand0=least, op0="subtract")
        b.activation(dst=factors, data=factors, op="exp", scale=-1.0)
        b.tensor_scalar(dst=counts, data=factors, operand0=0.0, op0="not_equal")
        b.select_reduce(dst=scaled, predicate=counts, on_true=totals, on_false=0.0)
        b.tensor_tensor(dst=scaled, data1=scaled, data2=factors, op="multiply", engine=Engine.VECTOR)
        b.tensor_reduce(dst=both[:, 1:], data=scaled, op="add", axes=1)
        b.tensor_scalar(dst=both[:, :1], data=least, operand0=-1.0, op0="multiply")
        return both

    def _shorten(self, block: _Block) -> None:
        """One place for all."""
        if block.taken > 1:
            both = self._combined(block)
            minus, total = self._places(block, block.count, 0, 1)
            self.b.tensor_scalar(dst=minus, data=both[:, :1], operand0=-1.0, op0="multiply")
            self.b.tensor_copy(dst=total, src=both[:, 1:])
            block.taken = 1

    def again(self, b: Builder) -> SoftmaxStatistics:
        """The same for another routine."""
        return SoftmaxStatistics(b, self.rows, self.width)

    def store(self, row: int, target: AP) -> None:
        """Write out the rows of the block from `row` on, of which all columns have been seen, to HBM [2, R]."""
        block, count = self._blocks[row // 128], min(128, self.rows - row)
        if not block.taken:
            return
        dma_store(self.b, hbm_view(target.buffer, row, ((1, count), (self.rows, 2))), self._combined(block))
        block.taken = 0


class SumsOfSquares(_OneOfRows):
    """Sums of the squares of rows: float32 [R] in the end."""

    def __init__(self, b: Builder, rows: int, cols: int, width: int) -> None:
        """`cols`: of all there is. `width`: most columns of a sweep."""
        self.b, self.rows, self.op, self.cols, self.width = b, rows, "add", cols, width
        blocks, self._places = -(-rows // 128), min(PLACES, -(-cols // width) + 1)
        tile = b.tile((128, blocks, self._places), float32, name="squares")
        self._blocks = [_Block(tile[:, i]) for i in range(blocks)]
        self._unread = b.pool((128, width), bfloat16, bufs=2, name="unread")

    def add(self, row: int, data: AP) -> None:
        """Some columns of the rows from `row` on, [P, F]."""
        block, count = self._blocks[row // 128], data.partitions
        if block.taken == self._places:
            self._shorten(block)
        place = block.tile[:count, block.taken : block.taken + 1]
        self.b.activation(dst=self._unread.next()[:count, : data.free], data=data, op="square", reduce_res=place)
        block.taken += 1
        block.count = count

    def again(self, b: Builder) -> SumsOfSquares:
        """The same for another routine."""
        return SumsOfSquares(b, self.rows, self.cols, self.width)


class PartSums:
    """Adds up (or takes the extreme of) the parts of rows that are cut into several: partitions apart by a multiple
    of 32, which engines reach from each other's, or else beside each other in one partition, where the PE array puts
    them (`turns`). No row meets another's numbers, which may be infinite."""

    def __init__(self, b: Builder, domain: Domain) -> None:
        self.b, self.rows, self.parts = b, domain.rows, domain.parts
        self.turns = bool(domain.rows % QUADRANT)
        self._moved = b.tile((128, 1), float32, name="part")
        if self.turns:
            self._line = b.tile((1, 128), float32, name="line")
            self._bank = b.psum((128, 128), float32, name="turned", bank=b.banks - 1)

    def add(self, data: AP, dst: AP, op: str) -> None:
        """dst = for each partition the sum (or what `op` is) over the parts of its row; [P, 1] float32, maybe the
        same tile."""
        if self.turns:
            self._add_in_a_line(data, dst, op)
            return
        b, rows, first = self.b, self.rows, dst[: self.rows]
        pieces = [slice(i * rows, (i + 1) * rows) for i in range(self.parts)]
        for i, piece in enumerate(pieces[1:]):
            moved = self._moved[:rows]
            b.tensor_copy(dst=moved, src=data[piece])
            b.tensor_tensor(dst=first, data1=first if i else data[:rows], data2=moved, op=op, engine=Engine.VECTOR)
        for piece in pieces[1:]:
            b.tensor_copy(dst=dst[piece], src=first)

    def _add_in_a_line(self, data: AP, dst: AP, op: str) -> None:
        """The same through one partition: turned, added up, repeated for each part, and turned back."""
        b, count = self.b, self.rows * self.parts
        b.nc_transpose(dst=self._bank[:1, :count], data=data[:count], engine=Engine.TENSOR)
        apart = self._bank[:1, :count].split(0, self.parts, self.rows).permute(1, 0)
        total = self._line[:1, : self.rows]
        b.tensor_reduce(dst=total, data=apart, op=op, axes=1)
        line = self._line[:1, :count]
        if self.parts > 1:
            rest = line.split(0, self.parts, self.rows)[:, 1:]
            b.tensor_copy(dst=rest, src=total.split(0, 1, self.rows).repeat(0, self.parts - 1), engine=Engine.VECTOR)
        b.nc_transpose(dst=self._bank[:count, :1], data=line, engine=Engine.TENSOR)
        b.tensor_copy(dst=dst[:count], src=self._bank[:count, :1], engine=Engine.VECTOR)
