# SPDX-License-Identifier: Apache-2.0
"""Matrix products of any size: out[M, N] = sum over K of lhs and rhs, on the PE array, accumulated in PSUM.

The work is a list of *groups*, each the product of some pieces of both operands over one chunk of the contraction;
pieces lie in SBUF tiles used in rotation. A load is recorded as soon as the last group that reads the tile's previous
piece has been, so that DMA runs as far ahead as memory allows. An operand that lies the wrong way round is transposed
on the PE array two groups ahead, in between the matmuls of the groups before, so that copies out of PSUM are hidden.

Letters: M stationary free, N moving free, K contraction; "resident" and "streamed" are defined in `blocking.problem`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, product
from math import ceil
from typing import Any, NamedTuple

from trnlab.chips.spec import Chip
from trnlab.isa.products.nc_matmul import DOUBLE_ROW, FP8
from trnlab.kernels.blocking.choose import choose
from trnlab.kernels.blocking.problem import AHEAD, MatmulProblem, doubles
from trnlab.kernels.blocks import ANNOUNCED, BANK, BlockSource, P, Sink, Workspace, dma_store
from trnlab.kernels.operand_feed import OperandFeed, Piece, PieceKey
from trnlab.kernels.view import HbmView
from trnlab.numerics.dtypes import DType
from trnlab.program.access import AP, hbm_view
from trnlab.program.builder import Builder

__all__ = ["BatchedProduct", "batch_matmul", "matmul"]


class BatchedProduct(NamedTuple):
    """One product of a batch."""

    lhs: BlockSource
    rhs: BlockSource
    sink: Sink
    onezero: bool = False  # lhs is float32 of ones and zeros only, past which the array streams twice as fast
    sums: HbmView | None = None  # where the sums of lhs over the contraction go, fp32 [M]
    sums_of_rhs: bool = False  # those of rhs, [N], instead


def matmul(b: Builder, lhs: BlockSource, rhs: BlockSource, sink: Sink, *, lhs_k_rows: bool, rhs_k_rows: bool) -> None:
    """Record out[M, N] = sum over k of lhs and rhs.

    lhs is [K, M] if `lhs_k_rows`, as the PE array wants it, else [M, K] and transposed on chip; rhs is [K, N] if
    `rhs_k_rows`, else [N, K]. Both have one format on chip, or are FP8, of which some chips contract two rows at
    once. Sums are fp32; `sink` receives each tile of at most [128, 512] once, finished. Uses the SBUF that is free
    in `b` and leaves it free. Raises CapacityError when that is too little.
    """
    batch_matmul(b, [BatchedProduct(lhs, rhs, sink)], lhs_k_rows=lhs_k_rows, rhs_k_rows=rhs_k_rows)


def in_pairs(item: BatchedProduct, lhs_k_rows: bool, rhs_k_rows: bool, chip: Chip) -> BatchedProduct:
    """The product of pairs of FP8 as numbers of 16 bits, where the array contracts two rows at once and both
    operands have to be transposed: a pair moves as one number, and comes out as two rows beside each other. Else the
    product as it is."""
    if lhs_k_rows or rhs_k_rows or item.sums is not None:
        return item
    lhs, rhs = pairs_of(item.lhs, chip), pairs_of(item.rhs, chip)
    return item if lhs is None or rhs is None else item._replace(lhs=lhs, rhs=rhs)


def pairs_of(operand: BlockSource, chip: Chip) -> BlockSource | None:
    """An operand as pairs of FP8, where it is and the array contracts two rows of it at once."""
    return operand.in_pairs() if doubles(operand.dtype.name, chip) else None


def problem_of(b: Builder, item: BatchedProduct, lhs_k_rows: bool, rhs_k_rows: bool) -> MatmulProblem:
    """What decides how a product is cut into blocks. One of pairs costs what one of 16-bit numbers costs."""
    item = in_pairs(item, lhs_k_rows, rhs_k_rows, b.chip)
    (k, m) = item.lhs.shape if lhs_k_rows else item.lhs.shape[::-1]
    (rhs_k, n) = item.rhs.shape if rhs_k_rows else item.rhs.shape[::-1]
    assert k == rhs_k, f"contraction of {k} against {rhs_k}"
    formats = item.lhs.dtype.name, item.rhs.dtype.name
    assert formats[0] == formats[1] or {*formats} <= FP8, f"{item.lhs.dtype} against {item.rhs.dtype}"
    sink, sums = item.sink, item.sums is not None
    how = item.lhs.dtype.name, lhs_k_rows, rhs_k_rows, sink.cost, sink.moved
    return MatmulProblem(m, n, k, *how, sums=sums, banks=b.banks - sink.banks, open_rows=sink.open_rows)


def batch_matmul(b: Builder, items: Sequence[BatchedProduct], *, lhs_k_rows: bool, rhs_k_rows: bool) -> None:
    """Record several products, each as `matmul` would; neighbours of one shape share tiles and overlap."""
    k_rows = lhs_k_rows, rhs_k_rows
    items = [in_pairs(item, *k_rows, b.chip) for item in items]
    for (shape, _), run in groupby(items, key=lambda item: (problem_of(b, item, *k_rows), item.rhs.dtype.name)):
        with b.scope():
            products = list(run)
            _Multiplier(b, replace(shape, batch=len(products)), products).record()


@dataclass(slots=True, eq=False)
class _Group:
    """One chunk of the product of some lhs pieces with some rhs pieces."""

    item: BatchedProduct
    lhs: list[Piece]
    rhs: list[Piece]
    bank: int  # of its first output tile
    # begins, ends: whether it is the first and the last chunk
    begins: bool
    ends: bool

    def tiles(self) -> list[tuple[Piece, int, int, Piece, int, int]]:
        """Output tiles, row by row: lhs piece with (column, columns) in it, rhs piece likewise."""
        across = [(p, n, min(BANK, p.cols - n)) for p in self.rhs for n in range(0, p.cols, BANK)]
        return [(p, m, min(P, p.cols - m), *right) for p in self.lhs for m in range(0, p.cols, P) for right in across]


class _Sums:
    """Sums of an operand's columns over the contraction: products with a column of ones, in a bank of their own."""

    def __init__(self, b: Builder, size: int, dt: DType) -> None:
        """`size`: columns of the operand. `dt`: its format."""
        self.b, self.size = b, size
        blocks = ceil(size / P)
        self._ones = b.tile((P, 1), dt, name="ones")
        b.memset(dst=self._ones, value=1.0)
        self._totals = b.psum((P, blocks), bank=b.banks - 1, name="sums")
        self._out = b.tile((P, blocks), "float32", name="sums")

    def add(self, tiles: list[AP], block: int, *, begins: bool, ends: bool) -> None:
        """Add a chunk of the contraction: k tiles [k, columns] of one block of columns."""
        for i, tile in enumerate(tiles):
            self.b.nc_matmul(
                dst=self._totals[: tile.free, block : block + 1],
                stationary=tile,
                moving=self._ones[: tile.partitions],
                accumulate=not begins or i > 0,
                stop=ends and i == len(tiles) - 1,
            )

    def store(self, view: HbmView) -> None:
        """Write the sums to a view of one dimension."""
        (step,) = view.strides
        full, rest = divmod(self.size, P)
        for rows, first, count in ((P, 0, full), (rest, full, 1)):
            if rows and count:
                out = self._out[:rows, first : first + count]
                self.b.tensor_copy(dst=out, src=self._totals[:rows, first : first + count])
                start = view.offset + first * P * step
                dma_store(self.b, hbm_view(view.base, start, ((step, rows), (P * step, count))), out)


class _Multiplier:
    """Records a batch of products of one shape."""

    def __init__(self, b: Builder, problem: MatmulProblem, items: list[BatchedProduct]) -> None:
        self.b, self.work = b, Workspace(b)
        for item in items:
            item.sink.open(b, self.work, problem.n)
            item.lhs.open(self.work)
            item.rhs.open(self.work)
        summed = (problem.n, items[0].rhs.dtype) if items[0].sums_of_rhs else (problem.m, items[0].lhs.dtype)
        self._sums = _Sums(b, *summed) if problem.sums else None
        self.blocking = choose(problem, b.sbuf_free, b.chip, b.follows_blockings)
        across = ceil(problem.n / BANK) if problem.open_rows else 1  # banks side by side, for whole rows
        beside = [b.psum((P, across * BANK), bank=i * across) for i in range(problem.accumulators // across)]
        self.accumulators = [tile[:, i * BANK : (i + 1) * BANK] for tile in beside for i in range(across)]
        columns = BANK * 4 // problem.raw_itemsize
        turned = [
            b.psum((P, columns), problem.raw_dtype, bank=i)
            for i in range(problem.accumulators, problem.banks - problem.sums)
        ]
        self._feeds = (
            OperandFeed(b, self.work, self.blocking.lhs, self.blocking.depth, items[0].lhs, turned),
            OperandFeed(b, self.work, self.blocking.rhs, self.blocking.depth, items[0].rhs, turned),
        )
        self._pairs = doubles(problem.dtype, b.chip)
        rows, block = self.blocking.lhs.products if self.blocking.spill else 0, self.blocking.rhs.block
        self.sums = [b.tile((P, block), "float32", name="sums") for _ in range(rows)]
        self.groups: list[_Group] = []
        self._banks_used = 0
        self._slices: dict[tuple[int, int, int], AP] = {}
        for number, item in enumerate(items):
            self._plan(number, item, problem.k)
        self._to_announce = [
            (g.item, left.col + m, right.col + n, rows, cols)
            for g in self.groups
            if g.ends
            for left, m, rows, right, n, cols in g.tiles()
        ]
        self._announced = self._stored = 0

    def record(self) -> None:
        """Emit everything, in the order that lets engines run ahead."""
        for now, group in enumerate(self.groups):
            self._load_ahead(now)
            for _ in self._first_transposes() if now == 0 else self._transposes(now, now):
                pass
            self._multiply(group, now)
            if now + 1 == len(self.groups) or self.groups[now + 1].item is not group.item:
                group.item.sink.close(self.b)
                if self._sums is not None and group.item.sums is not None:
                    self._sums.store(group.item.sums)

    def _load_ahead(self, now: int) -> None:
        """Record loads into all tiles that are free before group `now`, what is needed first before the rest."""
        while True:
            waiting = [feed for feed in self._feeds if feed.can_load(now)]
            if not waiting:
                return
            min(waiting, key=lambda feed: feed.pieces[feed.loaded].first).load()

    def _first_transposes(self) -> Iterator[None]:
        """Those of the first group: before what lies in SBUF already, which the call before may still be computing,
        the other operand's of as many groups as are turned ahead; then as much of it, or all of a single block."""
        home = [feed for feed in self._feeds if feed.at_home]
        for feed in (feed for feed in self._feeds if home and not feed.at_home):
            for job in feed.jobs(min(AHEAD, len(self.groups)) - 1, 0):
                feed.transpose(job)
                yield
        for feed in home:
            count = len(self.groups) if feed.side.size <= P else min(AHEAD, len(self.groups))
            for job in feed.jobs(count - 1, 0):
                feed.transpose(job)
                yield
        yield from self._transposes(0, 0)

    def _transposes(self, group: int, now: int) -> Iterator[None]:
        """Record, one a step, the transposes that groups up to `group` need, if possible before group `now`."""
        for feed in self._feeds:
            for job in feed.jobs(group, now):
                feed.transpose(job)
                yield
        self._load_ahead(now)

    def _multiply(self, group: _Group, now: int) -> None:
        """Record the matmuls of a group, the transposes of the next one spread among them."""
        tiles, chunk_alone = group.tiles(), self.blocking.spill
        self.work.widen_until(max(piece.widened for piece in (*group.lhs, *group.rhs)))
        ahead = self._transposes(now + AHEAD, now)
        step = sum(feed.backlog(now + AHEAD) for feed in self._feeds) / (len(tiles) * ceil(group.rhs[0].k_rows / P))
        due = 0.0
        self._announce(group.item)
        for i, (left, m, rows, right, n, cols) in enumerate(tiles):
            acc, moving = self._accumulator(group.bank + i, rows, cols), right.columns(n, cols, self._pairs)
            begun = not group.begins and not chunk_alone
            final = len(moving) - 1 if group.ends or chunk_alone else -1
            stationary, at = left.columns(m, rows, self._pairs), 0
            for k in range(len(moving)):
                due += step
                if due < 1 and k + 1 < len(moving):
                    continue
                parts = stationary[at : k + 1], moving[at : k + 1], at, begun, final
                self._products(acc, *parts, onezero=group.item.onezero)
                at = k + 1
                while due >= 1:
                    next(ahead, None)
                    due -= 1
            if self._sums is not None:
                self._sum_up(group, left, m, rows, right, n, cols)
            if self.blocking.spill:
                self._add_up(group, acc, left.col + m, right.col + n)
            if group.ends:
                group.item.sink.store(self.b, acc, left.col + m, right.col + n)
                self._stored += 1
                self._announce(group.item)
        if group.ends and self.blocking.chunks > 1:
            group.item.sink.close(self.b)  # tiles that wait for others: the next chunk may begin in their banks
        for _ in ahead:
            pass

    def _products(
        self, acc: AP, stationary: list[AP], moving: list[AP], first: int, begun: bool, final: int, *, onezero: bool
    ) -> None:
        """Record the matmuls of k tiles from number `first` on, `final` being the last of all."""
        if not onezero and len(moving[0].dims) == 1:  # two rows at once come first
            self.b.products(acc, stationary, moving, first, begun, final)
            return
        for k, (weights, data) in enumerate(zip(stationary, moving), first):
            mode: dict[str, Any] = {"is_stationary_onezero": True} if onezero else {}
            more = {"perf_mode": DOUBLE_ROW} if len(data.dims) > 1 else mode
            self.b.nc_matmul(
                dst=acc, stationary=weights, moving=data, accumulate=begun or k > 0, stop=k == final, **more
            )

    def _sum_up(self, group: _Group, left: Piece, m: int, rows: int, right: Piece, n: int, cols: int) -> None:
        """Record the sums of an operand's columns that a tile of the result is the first to meet."""
        assert self._sums is not None
        piece, first, end, met = left, m, m + rows, right.col + n == 0
        if group.item.sums_of_rhs:
            piece, first, end, met = right, n, n + cols, left.col + m == 0
        for col in range(first, end, P) if met else ():
            tiles = piece.columns(col, min(P, end - col), False)
            self._sums.add(tiles, (piece.col + col) // P, begins=group.begins, ends=group.ends)

    def _announce(self, item: BatchedProduct) -> None:
        """Tell the sink of the next tiles of its product."""
        while self._announced < min(self._stored + ANNOUNCED, len(self._to_announce)):
            owner, *place = self._to_announce[self._announced]
            if owner is not item:
                return
            item.sink.announce(self.b, *place)
            self._announced += 1

    def _add_up(self, group: _Group, acc: AP, row: int, col: int) -> None:
        """Add a chunk's product to the sums of the chunks before it; after the last one the result is in `acc`."""
        lhs, rhs = self.blocking.lhs, self.blocking.rhs
        sums = self.sums[row % lhs.block // P][: acc.partitions, col % rhs.block : col % rhs.block + acc.free]
        if group.begins:
            self.work.evacuate(sums, acc)
        else:
            self.work.add(acc if group.ends else sums, acc, sums)

    def _accumulator(self, turn: int, rows: int, cols: int) -> AP:
        key = (turn % len(self.accumulators), rows, cols)
        if key not in self._slices:
            self._slices[key] = self.accumulators[key[0]][:rows, :cols]
        return self._slices[key]

    # -- what is to be done ------------------------------------------------------------------------------------------
    def _plan(self, number: int, item: BatchedProduct, k: int) -> None:
        """Append the groups of one product, and their pieces in the order of need."""
        blocking, chunk = self.blocking, self.blocking.depth * P
        near, far = self._feeds if blocking.lhs_resident else self._feeds[::-1]
        near_source, far_source = (item.lhs, item.rhs) if blocking.lhs_resident else (item.rhs, item.lhs)
        far_once = blocking.loads[1] == 1
        for r, s, c in product(range(near.side.blocks), range(far.side.blocks), range(blocking.chunks)):
            k_rows = min(chunk, k - c * chunk)
            for columns in self._parts(r, s):
                now = len(self.groups)
                far_key = PieceKey(number, 0 if far_once else r, s * far.side.block, c * chunk)
                keys = [PieceKey(number, 0 if blocking.keep else s, col, c * chunk) for col in columns]
                pieces = [near.need(key, near_source, k_rows, now) for key in keys]
                others = [far.need(far_key, far_source, k_rows, now)]
                lhs, rhs = (pieces, others) if blocking.lhs_resident else (others, pieces)
                group = _Group(item, lhs, rhs, self._banks_used, begins=c == 0, ends=c == blocking.chunks - 1)
                self.groups.append(group)
                self._banks_used += len(group.tiles()) if group.ends or blocking.spill else 0

    def _parts(self, r: int, s: int) -> list[list[int]]:
        """Columns of the pieces of resident block `r` that each group has when it meets streamed block `s`.

        A block that comes or goes is used piece by piece, so that tiles are waited for and freed one by one.
        """
        near, far = self.blocking.resident, self.blocking.streamed
        columns = list(range(r * near.block, min((r + 1) * near.block, near.size), near.piece))
        singly = self.blocking.spill or (self.blocking.chunks == 1 and s in (0, far.blocks - 1))
        return [[col] for col in columns] if singly else [columns]
