# SPDX-License-Identifier: Apache-2.0
"""Sums of rows by index: out[v] = sum of update[t] where ids[t] = v.

A small result is one product on the PE array, one-hot(ids)^T @ update. That takes time for every pair of an update
and a row, so a large table is added to in memory instead, 128 updates at a time. A transfer that adds takes each row
once only, so the array first sums the updates of equal index, equal(ids, ids) @ update; the first of them is sent.

In a product 0 times infinity is NaN, which would go from one row to all. So where an update may be infinite or NaN,
the array gets two columns for each of its own: what is finite of it, and a mark. Marks are numbers whose sums count
the infinities of each sign, exactly: plus infinity is MARK, minus infinity BASE * MARK, NaN both. When a tile of sums
is finished the counts are taken apart, and put infinities back into the cells that they belong to, and no others. The
array does not take longer for it: of a matrix of ones and zeros it streams float32 at twice the rate.

Letters: T updates, V rows of the result, C columns; P partitions.
"""

from __future__ import annotations

from math import ceil, prod

from trnlab.compiler.lowerings.context import Lowering
from trnlab.compiler.lowerings.move import fill
from trnlab.compiler.lowerings.sinks import EpilogueSink, sinks_of
from trnlab.compiler.rules import SUMS_IN_MEMORY, SUMS_OF_WHOLE_NUMBERS
from trnlab.graph.ir import Value
from trnlab.isa.base import Engine
from trnlab.kernels.blocks import BANK, BANKS, BlockSource, P, ViewSource, load_rows, next_queue
from trnlab.kernels.matmul import BatchedProduct, batch_matmul
from trnlab.kernels.view import HbmView
from trnlab.numerics.dtypes import DType, bool_, float32, int32
from trnlab.program import AP, Builder
from trnlab.program.pool import TilePool

INF = float("inf")
BASE = 4096.0  # of counts; fewer than half as many updates are summed at once (`rules.conditions.MOST_MARKED`)
MARK = 2.0**80  # so large that a count times LARGEST overflows, so small that sums of marks do not
LARGEST = 2.0**127
WHOLE = 1.5 * 2.0**23 * BASE * MARK
"""x + WHOLE - WHOLE is x rounded to a multiple of BASE * MARK: the sum has no smaller bits."""
COLUMNS = BANK // 2  # of updates whose sums and marks fill a bank
ROWS = 512  # of the result whose one-hot columns are made at once; fewer where there are many updates
ACROSS = 2048  # columns of updates that one transfer adds
NO_ROW = 2.0**30  # beyond every table: what is sent there is left out


def lower_scatter(low: Lowering) -> None:
    """Record a group that is a sum of rows by index."""
    op = low.group.anchor
    _, ids, update = op.operands
    count, rows = ids.type.size, op.result.shape[0]
    low.group.cols = op.result.type.size // rows
    view = low.view(update)
    updates = ViewSource(view, rows=_leading(view.shape, count))
    if low.part.rules[op] is SUMS_IN_MEMORY:
        out = low.view(op.result)
        table = out.like(out.offset, (rows, updates.shape[1]), (updates.shape[1], 1))
        sums = SumsInMemory(low.b, updates, load_ids(low, ids, count), table)
        fill(low.b, table, 0.0)
        sums.add_all()
        return
    (sink,) = sinks_of(low, rows, 1)
    if low.part.rules[op] is SUMS_OF_WHOLE_NUMBERS:
        lhs = OneHotSource(low, ids, count, rows, updates.dtype, wide=4096)
        product = BatchedProduct(lhs, updates, sink, onezero=lhs.dtype is float32)
        batch_matmul(low.b, [product], lhs_k_rows=True, rhs_k_rows=True)
    else:
        _Marked(low.b, OneHotSource(low, ids, count, rows, float32, wide=ROWS), updates, sink).record()


class OneHotSource(BlockSource):
    """The matrix [T, V] with a one where ids[t] = v, made on chip as blocks of it are asked for."""

    def __init__(self, low: Lowering, ids: Value, count: int, rows: int, dtype: DType, *, wide: int) -> None:
        """`wide`: columns that are made with one instruction."""
        self.shape, self.dtype = (count, rows), dtype
        b = low.b
        self.ids = load_ids(low, ids, count)
        wide = min(ceil(rows / 64) * 64, wide)
        self.iota = b.tile((P, wide), float32, name="iota")
        with b.scope():
            whole = b.tile((P, wide), int32, name="iota32")
            b.iota(dst=whole, pattern=((1, wide),))
            b.tensor_copy(dst=self.iota, src=whole)

    def load(self, b: Builder, dst: AP, row: int, col: int) -> None:
        """dst[p, f] = 1 where ids[row + p] is col + f."""
        ids = self.ids[: dst.partitions, row // P]
        for start in range(0, dst.free, self.iota.free):
            part = dst[:, start : start + self.iota.free] if dst.free > self.iota.free else dst
            b.tensor_scalar(
                dst=part,
                data=self.iota[: dst.partitions, : part.free],
                operand0=float(col + start),
                op0="add",
                operand1=ids,
                op1="is_equal",
            )


def load_ids(low: Lowering, ids: Value, count: int) -> AP:
    """The indices as float32 [P, tiles, 1], index t on partition t % P."""
    b, view = low.b, low.view(ids)
    full, rest = divmod(count, P)
    raw, found = (b.tile((P, full + 1, 1), dt, name="ids") for dt in (ids.dtype, float32))
    source = ViewSource(view.expand(len(view.shape), 1), rows=len(view.shape))
    load_rows(b, source, raw, count, 0, 0)
    if full:
        b.tensor_copy(dst=found[:, :full], src=raw[:, :full])
    if rest:
        b.tensor_copy(dst=found[:rest, full], src=raw[:rest, full])
    return found


class _Marked:
    """The sum of a few updates [T, C] with marks. All of T lies on chip at once, for some columns at a time."""

    def __init__(self, b: Builder, onehot: OneHotSource, updates: ViewSource, sink: EpilogueSink) -> None:
        self.b, self.onehot, self.updates, self.sink = b, onehot, updates, sink
        (self.count, self.rows), cols = onehot.shape, updates.shape[1]
        self.tiles, width = ceil(self.count / P), min(cols, COLUMNS)
        self.block = ROWS if self.tiles <= 8 else ROWS // 2
        self.raw, self.outside, self.marks = (
            b.tile((P, self.tiles, width), dt, name=name)
            for name, dt in (("raw", updates.dtype), ("outside", bool_), ("marks", float32))
        )
        self.pairs = _pool(b, (P, self.tiles, 2 * width), "pairs", 1 if cols == width else 2)
        once = self.rows <= self.block and cols == width
        self.ones = _pool(b, (P, self.tiles, min(self.rows, self.block)), "ones", 1 if once else 2)
        self.marking = _Marks(b, width, min(self.block, self.rows + P - 1) // P)
        self.banks = TilePool([b.psum((P, BANK), bank=i) for i in range(BANKS)])

    def record(self) -> None:
        """Columns of the updates come once; the one-hot matrix is made again for each COLUMNS of them, one block of
        rows ahead, so that Vector makes it while the array is busy."""
        cols, starts = self.updates.shape[1], range(0, self.rows, self.block)
        ones = self._ones(0)
        for col in range(0, cols, COLUMNS):
            pairs = self._load(col, min(COLUMNS, cols - col))
            for row in starts:
                last = row == starts[-1]
                ahead = ones if last and col + COLUMNS >= cols else self._ones(0 if last else row + self.block)
                self._multiply(ones, pairs, row, col)
                ones = ahead

    def _ones(self, row: int) -> AP:
        """The one-hot matrix of ROWS rows of the result, [P, tiles, rows]."""
        ones = self.ones.next()[:, :, : min(self.block, self.rows - row)]
        for i, height in enumerate(self._heights()):
            self.onehot.load(self.b, ones[:height, i], i * P, row)
        return ones

    def _heights(self) -> list[int]:
        """Rows of each tile of updates."""
        return [min(P, self.count - start) for start in range(0, self.count, P)]

    def _load(self, col: int, cols: int) -> AP:
        """Pairs [P, tiles, 2 cols]: an update where it is finite, else zero, and the mark of what it is if not."""
        raw, pairs = self.raw[:, :, :cols], self.pairs.next()[:, :, : 2 * cols]
        load_rows(self.b, self.updates, raw, self.count, 0, col)
        full, rest = divmod(self.count, P)
        for rows, first, last in ((P, 0, full), (rest, full, full + 1)):
            if rows and first < last:
                self.marking.mark(
                    *(x[:rows, first:last] for x in (raw, pairs, self.outside[:, :, :cols], self.marks[:, :, :cols]))
                )
        return pairs

    def _multiply(self, ones: AP, pairs: AP, row: int, col: int) -> None:
        """A block of rows of the result, in some columns."""
        found = []
        for at in range(0, ones.shape[2], P):
            height = min(P, ones.shape[2] - at)
            acc = self.banks.next()[:height, : pairs.shape[2]]
            for i, k in enumerate(self._heights()):
                self.b.nc_matmul(
                    dst=acc,
                    stationary=ones[:k, i, at : at + height],
                    moving=pairs[:k, i],
                    accumulate=i > 0,
                    stop=i == self.tiles - 1,
                    is_stationary_onezero=True,
                )
            found.append(acc)
        for i, total in enumerate(self.marking.unmarked(found)):
            self.sink.store(self.b, total, row + i * P, col)


class _Marks:
    """Takes what is not finite out of updates, and puts it back into their sums."""

    def __init__(self, b: Builder, width: int, together: int) -> None:
        """width: columns; together: tiles of sums that are taken apart side by side."""
        self.b = b
        self.results = [_pool(b, (P, width), name, together + 1) for name in ("sums", "upper", "lower")]
        self.whole, self.minus_whole = (b.tile((P, 1), float32, name="whole") for _ in range(2))
        b.memset(dst=self.whole, value=WHOLE)
        b.memset(dst=self.minus_whole, value=-WHOLE)

    def mark(self, x: AP, pairs: AP, outside: AP, marks: AP) -> None:
        """Pairs of what is finite of x and its marks; `outside` and `marks` are tiles to work in."""
        b, (finite, mark) = self.b, _halves(pairs)
        b.tensor_scalar(dst=outside, data=x, operand0=0.0, op0="multiply", operand1=0.0, op1="not_equal")
        b.tensor_scalar(dst=marks, data=x, operand0=INF, op0="not_equal", operand1=BASE, op1="multiply")
        b.select_reduce(dst=finite, predicate=outside, on_true=x, on_false=0.0, reverse_pred=True)
        b.scalar_tensor_tensor(dst=marks, data=x, operand0=-INF, op0="not_equal", operand1=marks, op1="add")
        b.scalar_tensor_tensor(dst=mark, data=marks, operand0=MARK, op0="multiply", operand1=outside, op1="multiply")

    def unmarked(self, tiles: list[AP]) -> list[AP]:
        """Sums with their infinities; counts of minus infinities are sums of marks rounded to multiples of theirs.

        Each step is taken for all tiles before the next: no instruction waits for the one before it.
        """
        b, made = self.b, []
        for acc in tiles:
            sums, marks = _halves(acc)
            made.append((sums, marks, *(pool.next()[: acc.partitions, : sums.free] for pool in self.results)))
        for _, marks, _, upper, _ in made:
            b.activation(dst=upper, data=marks, op="copy", bias=self.whole[: upper.partitions])
        for _, marks, _, upper, lower in made:
            b.scalar_tensor_tensor(
                dst=lower, data=upper, operand0=WHOLE, op0="subtract", operand1=marks, op1="subtract", reverse1=True
            )
        for _, _, _, upper, _ in made:
            b.activation(dst=upper, data=upper, op="copy", bias=self.minus_whole[: upper.partitions])
        for sums, _, total, _, lower in made:
            b.scalar_tensor_tensor(dst=total, data=lower, operand0=LARGEST, op0="multiply", operand1=sums, op1="add")
        for _, _, total, upper, _ in made:
            b.scalar_tensor_tensor(
                dst=total, data=upper, operand0=-LARGEST, op0="multiply", operand1=total, op1="add"
            )
        return [total for _, _, total, _, _ in made]


class SumsInMemory:
    """Sums in a table [V, C] in memory: 128 updates at a time are added to the rows that they name."""

    def __init__(self, b: Builder, updates: ViewSource, ids: AP, table: HbmView) -> None:
        """ids: as `load_ids` leaves them."""
        self.b, self.updates, self.ids, self.table = b, updates, ids, table
        self.count, self.cols = updates.shape
        self.width = min(self.cols, ACROSS)
        self.raw, self.sums = (_pool(b, (P, self.width), name, 3) for name in ("raw", "added"))
        self.equal, self.before = (_pool(b, (P, P), name, 2) for name in ("equal", "before"))
        self.later, self.rows = (_pool(b, (P, 1), name, 3) for name in ("later", "row"))
        self.index = TilePool([b.tile((P, 1), int32, name="index") for _ in range(3)])
        part = min(self.width, COLUMNS)
        self.outside = TilePool([b.tile((P, part), bool_, name="outside") for _ in range(2)])
        self.marks, self.pairs = _pool(b, (P, part), "marks", 2), _pool(b, (P, 2 * part), "pairs", 3)
        self.marking = _Marks(b, part, 2)
        self.turned = TilePool([b.psum((P, P), float32, bank=i) for i in range(2)])
        self.banks = TilePool([b.psum((P, BANK), float32, bank=i) for i in range(2, BANKS)])

    def add_all(self) -> None:
        """Every update; what is added to a row waits for what was added before, as both name the same table."""
        for first in range(0, self.count, P):
            equal, index = self._equal(first, min(P, self.count - first))
            for col in range(0, self.cols, self.width):
                self._add(first, equal, index, col, min(self.width, self.cols - col))

    def _equal(self, first: int, n: int) -> tuple[AP, AP]:
        """Which of n updates name the same row [n, n], and the row of the first of them [n, 1]; no row for others."""
        b, ids, bank = self.b, self.ids[:n, first // P], self.turned.next()[:n, :n]
        equal, before, later, row, index = (
            pool.next()[:n] for pool in (self.equal, self.before, self.later, self.rows, self.index)
        )
        b.nc_transpose(dst=bank, data=ids.with_dims((0, n)), engine=Engine.TENSOR)
        b.tensor_scalar(dst=equal[:, :n], data=bank, operand0=ids, op0="is_equal")
        b.affine_select(
            dst=before[:, :n],
            on_true=equal[:, :n],
            pattern=((-1, n),),
            offset=-1,
            channel_multiplier=1,
            cmp_op="greater_equal",
            on_false=0.0,
        )
        b.tensor_reduce(dst=later, data=before[:, :n], op="max")
        b.tensor_scalar(dst=row, data=later, operand0=NO_ROW, op0="multiply", operand1=ids, op1="add")
        b.tensor_copy(dst=index, src=row)
        return equal[:, :n], index

    def _add(self, first: int, equal: AP, index: AP, col: int, cols: int) -> None:
        b, n = self.b, equal.partitions
        raw, sums = self.raw.next()[:n, :cols], self.sums.next()[:n, :cols]
        self.updates.load(b, raw, first, col)
        for at in range(0, cols, COLUMNS):
            width = min(COLUMNS, cols - at)
            pairs = self.pairs.next()[:n, : 2 * width]
            outside, marks = (pool.next()[:n, :width] for pool in (self.outside, self.marks))
            self.marking.mark(raw[:, at : at + width], pairs, outside, marks)
            acc = self.banks.next()[:n, : 2 * width]
            b.nc_matmul(dst=acc, stationary=equal, moving=pairs, is_stationary_onezero=True)
            (total,) = self.marking.unmarked([acc])
            b.activation(dst=sums[:, at : at + width], data=total, op="copy")
        rows = self.table[:, col : col + cols]
        b.dma_compute(
            dst=rows.ap(),
            src0=sums,
            index=index,
            indirect="dst",
            oob_mode="skip",
            engine=Engine.GPSIMD,
            queue=next_queue(b, Engine.GPSIMD),
        )


def _pool(b: Builder, shape: tuple[int, ...], name: str, count: int) -> TilePool:
    return TilePool([b.tile(shape, float32, name=f"{name}{i}") for i in range(count)])


def _halves(pairs: AP) -> tuple[AP, AP]:
    """The first of each pair, and the second."""
    *outer, (step, count) = pairs.dims
    first, second = (pairs.with_dims(*outer, (2 * step, count // 2), skip=i * step) for i in range(2))
    return first, second


def _leading(shape: tuple[int, ...], size: int) -> int:
    """How many dimensions hold the first `size` elements of a shape."""
    dims = 0
    while prod(shape[:dims]) < size:
        dims += 1
    return max(dims, 1)
