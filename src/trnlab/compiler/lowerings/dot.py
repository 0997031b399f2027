# SPDX-License-Identifier: Apache-2.0
"""Matrix products: dot_general with its epilogue.

Letters: M rows of the result, N its columns, K contraction.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, TypeVar

from trnlab.compiler.emission.domain import Domain, SweepSlice
from trnlab.compiler.emission.emitter import Emitter
from trnlab.compiler.emission.sweep import steps, take_turns
from trnlab.compiler.emission.tilesource import TileLoader
from trnlab.compiler.fusing.groups import STATISTICS, GroupKind, ValueClass
from trnlab.compiler.fusing.tiles import TilePlan, TileSpace, make_plan, origin
from trnlab.compiler.lowerings.context import Lowering
from trnlab.errors import CapacityError
from trnlab.graph.ir import Value
from trnlab.isa.base import Engine, Memory
from trnlab.kernels import residence
from trnlab.kernels.blocking.choose import least_seconds
from trnlab.kernels.blocking.costs import waits_for_memory
from trnlab.kernels.blocking.problem import MatmulProblem
from trnlab.kernels.blocks import (
    ANNOUNCED,
    BlockSource,
    JoinedSource,
    P,
    Sink,
    ViewSource,
    WidenedSource,
    Workspace,
    casts_freely,
)
from trnlab.kernels.few_rows import MOST_ROWS, SpreadMatrix, SpreadRows, WideSink, result_tiles
from trnlab.kernels.matmul import BatchedProduct, batch_matmul, pairs_of, problem_of
from trnlab.kernels.matmul_mx import MxOperand as MxOperand
from trnlab.kernels.matmul_mx import matmul_mx
from trnlab.kernels.view import HbmView
from trnlab.numerics.dtypes import float32
from trnlab.program import AP, Builder
from trnlab.program.strided import Strided
from trnlab.stacks import TURNED

BANK = 512
View = TypeVar("View", bound=Strided[Any])
STORED = (
    4  # tiles of a result on their way to memory: a transfer takes some times longer than what fills the next tile
)
STORED_SHARE = 0.1  # of the free SBUF, at most, for what such tiles were computed from
SLOWER = 1.05  # by its estimate: what a product with a long epilogue may take longer for one more set of tiles
TURNS = 4  # tiles whose loads come after each other, and whose stores do, where memory is waited for
MANY_OPS = 6  # of a group: its epilogue is a chain of instructions that wait for each other


class EpilogueSink(Sink):
    """Finished PSUM tiles go through the group's elementwise ops and out. `first_row`: of this product in the
    result.

    What the ops read of a tile is loaded when the tile is announced. Where there are many ops, a tile waits for the
    next one: they are a chain of instructions that wait for each other, and two chains fill each other's pauses.
    """

    def __init__(
        self,
        emitters: deque[Emitter],
        low: Lowering,
        domain: Domain,
        first_row: int,
        cost: float = 0.0,
        together: int = 1,
    ) -> None:
        """`emitters`: taken in turn, one for each tile that is announced or waits. `together`: tiles that go through
        side by side."""
        self.cost, self.together = cost, together
        self.emitters, self.low, self.domain, self.first_row = emitters, low, domain, first_row
        self.plan = make_plan(low.group, low.group.ops[1:], low.stores - set(low.group.anchor.results[1:]))
        self.loads = loaded_values(low, self.plan)
        self.moved = self.moved_bytes() if cost else 0
        made = low.group.anchor.result
        self.rounds = any(op.name in STATISTICS and op.operands[0] is made for op in self.plan.ops)
        self._announced: deque[tuple[SweepSlice, Emitter]] = deque()
        self._waiting: list[tuple[SweepSlice, Emitter, AP]] = []

    def moved_bytes(self) -> int:
        """Bytes that pass for each element of the product."""
        return sum(v.dtype.itemsize for v in (*self.loads, *self.low.stores))

    def open(self, b: Builder, work: Workspace, width: int) -> None:
        """Its tiles were placed before the kernel began."""

    def announce(self, b: Builder, row: int, col: int, rows: int, cols: int) -> None:
        """Load what the ops will read."""
        if self.loads:
            frame, emitter = self._frame(row, col, rows, cols), self._next()
            for value in self.loads:
                emitter.loader.load(value, frame)
            self._announced.append((frame, emitter))

    def store(self, b: Builder, acc: AP, row: int, col: int) -> None:
        """One sweep over the tile."""
        frame = self._frame(row, col, acc.partitions, acc.free)
        expected, emitter = self._announced.popleft() if self._announced else (frame, self._next())
        assert expected == frame, f"{frame} was not announced, {expected} was"
        self._waiting.append((frame, emitter, acc))
        if len(self._waiting) == self.together:
            self.close(b)

    def close(self, b: Builder) -> None:
        """Sweeps over the tiles that wait."""
        result = self.low.group.anchor.result
        given = [(frame, e, self._rounded(e, acc) if self.rounds else acc) for frame, e, acc in self._waiting]
        take_turns([steps(e, self.plan, frame, {result: acc}) for frame, e, acc in given])
        for _, emitter, acc in given:
            if self.rounds:
                emitter.wide.give(acc)
            emitter.end_row()
        self._waiting = []

    def finish(self) -> None:
        """Write out what the epilogue found out about whole rows, of all products."""
        self.emitters[0].loader.finish()

    def _rounded(self, e: Emitter, acc: AP) -> AP:
        """The tile in SBUF, in the format of the result: what is stored, and what statistics are of."""
        tile = e.wide.take(acc.partitions, acc.free, self.low.group.anchor.result.dtype)
        e.copy(tile, acc)
        return tile

    def _frame(self, row: int, col: int, rows: int, cols: int) -> SweepSlice:
        return SweepSlice(self.domain, self.first_row + row, rows, col, cols)

    def _next(self) -> Emitter:
        self.emitters.rotate(-1)
        return self.emitters[-1]


def loaded_values(low: Lowering, plan: TilePlan) -> list[Value]:
    """What an epilogue reads of each tile from memory."""
    read = dict.fromkeys(origin(v, low.group) for op in plan.ops for v in op.operands)
    outer = {v: c for v, c in low.group.outer.items() if v not in low.group.classes}
    return [v for v in read if outer.get(v) is ValueClass.FULL and low.part.splat(v) is None]


def _tiles_together(sink: EpilogueSink, problem: MatmulProblem | None) -> int:
    """How many tiles go through an epilogue side by side, at most as many as PSUM holds: several where it is a chain
    of instructions that wait for each other, and where memory is what the product waits for, so that loads come
    several at a time, and stores."""
    ops, chip = sink.low.group.ops, sink.low.b.chip
    most = min(TURNS, problem.accumulators) if problem is not None else TURNS
    if len(ops) > MANY_OPS or any(op.name == "trn.softmax_statistics" for op in ops):
        return min(2, most)
    if problem is None or not sink.loads:
        return 1
    loaded, stored = (sum(v.dtype.itemsize for v in values) for values in (sink.loads, sink.low.stores))
    return most if waits_for_memory(problem, loaded, stored, chip) else 1


def lower_dot(low: Lowering) -> None:
    """Record a group that begins with a dot_general, or with a sum of several."""
    op = low.group.anchor
    if op.name == "trn.dot_sum":
        _lower_sum(low)
        return
    lhs, rhs = _operands(low, *op.operands)
    batch = tuple(op.operands[0].shape[d] for d in op.attrs.get("lhs_batching_dimensions", ()))
    rows = low.group.size // (low.group.cols or 1) // prod(batch)
    of_rhs = op.attrs.get("summed") == "rhs"
    if _casts_to_turn(low, lhs, rhs, len(batch)):
        low.storing = Engine.SYNC  # GpSimdE triggers all loads: none waits for a result
    if rows <= MOST_ROWS and _contracts_spread(low, lhs, rhs):
        lhs, rhs = _SpreadOperand(lhs, SpreadRows), _SpreadOperand(rhs, SpreadMatrix)

    def item(index: tuple[int, ...], sink: Sink) -> BatchedProduct:
        return BatchedProduct(lhs.source(index), rhs.source(index), sink, sums=_sums(low), sums_of_rhs=of_rhs)

    def problem(sink: Sink) -> MatmulProblem:
        return problem_of(low.b, item((0,) * len(batch), sink), lhs.k_rows, rhs.k_rows)

    plain = isinstance(lhs, _SpreadOperand) and len(low.group.ops) == 1 and batch
    sinks = (
        _wide_sinks(low, batch)
        if plain
        else sinks_of(low, rows, prod(batch), None if op.attrs.get("lhs_mx") else problem)
    )
    items, last = [], None
    for index, sink in zip(product(*(range(n) for n in batch)), sinks):
        last = sink
        if op.attrs.get("lhs_mx"):
            left = MxOperand(lhs.given(index), lhs.k_rows, op.attrs["lhs_mx"])
            matmul_mx(low.b, left, MxOperand(rhs.given(index), rhs.k_rows, op.attrs["rhs_mx"]), sink)
            continue
        items.append(item(index, sink))
    batch_matmul(low.b, items, lhs_k_rows=lhs.k_rows, rhs_k_rows=rhs.k_rows)
    if isinstance(last, EpilogueSink):
        last.finish()


def _casts_to_turn(low: Lowering, lhs: _Operand, rhs: _Operand, batch: int) -> bool:
    """Whether transfers widen FP8, which the PE array transposes in 16 bits; pairs of it need not be."""
    chip, first = low.b.chip, (0,) * batch
    if lhs.k_rows or rhs.k_rows or casts_freely(chip) or lhs.view.dtype.itemsize != 1:
        return False
    return any(pairs_of(side.source(first), chip) is None for side in (lhs, rhs))


def _sums(low: Lowering) -> HbmView | None:
    """Where sums of an operand over the contraction go, if they are asked for."""
    sums = low.group.anchor.results[1:]
    return low.view(sums[0]) if sums and sums[0] in low.stores else None


def _lower_sum(low: Lowering) -> None:
    """Record one product of matrices, whose contraction goes from one pair of operands to the next."""
    op = low.group.anchor
    pairs = [_operands(low, *op.operands[i : i + 2]) for i in range(0, len(op.operands), 2)]
    assert len({(lhs.k_rows, rhs.k_rows) for lhs, rhs in pairs}) == 1, "pairs lie in memory alike"
    lhs, rhs = (JoinedSource([side.source(()) for side in sides], sides[0].k_rows) for sides in zip(*pairs))
    k_rows = pairs[0][0].k_rows, pairs[0][1].k_rows
    rows = low.group.size // (low.group.cols or 1)
    (sink,) = sinks_of(low, rows, 1, lambda sink: problem_of(low.b, BatchedProduct(lhs, rhs, sink), *k_rows))
    batch_matmul(low.b, [BatchedProduct(lhs, rhs, sink)], lhs_k_rows=k_rows[0], rhs_k_rows=k_rows[1])
    sink.finish()


class JoinedSink(Sink):
    """Results of several products side by side: each has its columns. parts: their sinks and how many columns."""

    def __init__(self, parts: Sequence[tuple[EpilogueSink, int]]) -> None:
        self.sinks = [sink for sink, _ in parts]
        self.widths = [width for _, width in parts]
        self.cost = max(sink.cost for sink in self.sinks)
        self.moved = max(sink.moved for sink in self.sinks) if self.cost else 0
        self._last: EpilogueSink | None = None

    def open(self, b: Builder, work: Workspace, width: int) -> None:
        """Their tiles were placed before the kernel began."""

    def _shares(self, col: int, cols: int) -> Iterator[tuple[EpilogueSink, int, int, int]]:
        """How columns [col, +cols) are divided: a sink, the first of its columns among them, how many, and where they
        begin in its result."""
        start = 0
        for sink, width in zip(self.sinks, self.widths):
            low, high = max(col, start), min(col + cols, start + width)
            if low < high:
                yield sink, low - col, high - low, low - start
            start += width

    def announce(self, b: Builder, row: int, col: int, rows: int, cols: int) -> None:
        """To each sink its share."""
        for sink, _, count, start in self._shares(col, cols):
            sink.announce(b, row, start, rows, count)

    def store(self, b: Builder, acc: AP, row: int, col: int) -> None:
        """To each sink its share. A tile that waits for the next one waits for none of another sink: its bank may be
        written before that comes."""
        for sink, first, count, start in self._shares(col, acc.free):
            if self._last is not None and self._last is not sink:
                self._last.close(b)
            sink.store(b, acc[:, first : first + count], row, start)
            self._last = sink

    def close(self, b: Builder) -> None:
        """Those of all."""
        for sink in self.sinks:
            sink.close(b)


def lower_siblings(lows: Sequence[Lowering]) -> None:
    """Record products of one left operand by several others as one (see `compiler.siblings`)."""
    first = lows[0]
    lhs = _operand(first, first.group.anchor.operands[0], "lhs")
    sides = [_operand(low, low.group.anchor.operands[1], "rhs") for low in lows]
    k_rows = lhs.k_rows, sides[0].k_rows
    assert all(_operand(low, low.group.anchor.operands[0], "lhs").k_rows == k_rows[0] for low in lows)
    assert all(side.k_rows == k_rows[1] for side in sides)
    rhs = JoinedSource([side.source(()) for side in sides], not k_rows[1])
    left, rows = lhs.source(()), first.group.size // (first.group.cols or 1)

    def problem(sink: Sink) -> MatmulProblem:
        return problem_of(first.b, BatchedProduct(left, rhs, sink), *k_rows)

    sinks = [next(sinks_of(low, rows, 1, problem)) for low in lows]
    sink = JoinedSink([(each, low.group.cols or 1) for each, low in zip(sinks, lows)])
    batch_matmul(first.b, [BatchedProduct(left, rhs, sink)], lhs_k_rows=k_rows[0], rhs_k_rows=k_rows[1])
    for each in sinks:
        each.finish()


class _Operand:
    """One side of a product: a view with batch dimensions first, then the rows of a block, then its columns."""

    def __init__(self, view: HbmView, batch: int, rows: int, k_rows: bool, cast: str) -> None:
        """`k_rows`: whether the rows are the contraction. `cast`: format on chip, if it is another."""
        self.view, self.batch, self.rows, self.k_rows, self.cast = view, batch, rows, k_rows, cast

    def may_be_spread(self, low: Lowering) -> bool:
        """Whether it comes from memory as it is, its one contracted dimension is as many rows for each partition, and
        all else of it is one stride apart: see `kernels.few_rows`."""
        shape, first = self.view.shape, self.batch
        contracted = first if self.k_rows else len(shape) - 1
        one = self.rows == (1 if self.k_rows else contracted - first)
        others = self.view.collapsed(first + 1) if self.k_rows else self.view.collapsed(first, contracted)
        if self.cast or residence.of(low.b, self.view.base) is not None:
            return False
        return one and shape[contracted] % P == 0 and len(others or ()) <= 1

    def source(self, index: tuple[int, ...]) -> BlockSource:
        """The matrix of one batch element."""
        if self.cast and self.view.dtype.itemsize == 1:
            return WidenedSource(self.view[index] if index else self.view, rows=self.rows, dt=self.cast)
        return self.given(index)

    def given(self, index: tuple[int, ...]) -> ViewSource:
        """The same as transfers bring it."""
        return ViewSource(self.view[index] if index else self.view, rows=self.rows, dt=self.cast or None)


class _SpreadOperand(_Operand):
    """A side of a product of few rows, which contracts in the order of `kernels.few_rows`."""

    def __init__(self, given: _Operand, kind: type[SpreadRows | SpreadMatrix]) -> None:
        super().__init__(given.view, given.batch, given.rows, True, "")
        self._kind = kind

    def source(self, index: tuple[int, ...]) -> BlockSource:
        """See `_Operand`."""
        return self._kind(self.view[index] if index else self.view)


def _contracts_spread(low: Lowering, lhs: _Operand, rhs: _Operand) -> bool:
    """Whether a product of few rows may contract in the order of `kernels.few_rows`."""
    attrs = low.group.anchor.attrs
    if (
        low.chosen["few_rows"] == TURNED
        or any(attrs.get(name) for name in ("lhs_mx", "summed"))
        or lhs.k_rows
        or not rhs.k_rows
        or lhs.view.strides[-1] != 1
    ):
        return False
    return lhs.may_be_spread(low) and rhs.may_be_spread(low)


def _wide_sinks(low: Lowering, batch: tuple[int, ...]) -> Iterator[WideSink]:
    """Sinks that store a result as it is."""
    result = low.group.anchor.result
    view, tiles = low.view(result), result_tiles(low.b, low.group.cols or 1, result.dtype)
    rows = len(view.shape) - len(batch) - 1
    return (WideSink(view[index], rows, tiles) for index in product(*(range(n) for n in batch)))


def _operands(low: Lowering, lhs: Value, rhs: Value) -> tuple[_Operand, _Operand]:
    """Both sides of a product of the group's op."""
    return _operand(low, lhs, "lhs"), _operand(low, rhs, "rhs")


def _operand(low: Lowering, value: Value, side: str) -> _Operand:
    """The operand with what is contiguous in memory as columns."""
    attrs = low.group.anchor.attrs
    return _Operand(*arranged(low.view(value), attrs, side), attrs.get(f"{side}_cast", ""))


def arranged(view: View, attrs: Mapping[str, Any], side: str) -> tuple[View, int, int, bool]:
    """An operand with batch dimensions first, then rows, then columns: how many are batch, and rows, and whether the
    rows are the contraction."""
    batch, contract = attrs.get(f"{side}_batching_dimensions", ()), attrs.get(f"{side}_contracting_dimensions", (0,))
    free = tuple(d for d in range(len(view.shape)) if d not in batch and d not in contract)
    k_rows = _step(view, contract) >= _step(view, free)
    order = (*batch, *contract, *free) if k_rows else (*batch, *free, *contract)
    view = view.permute(*order)
    rows = contract if k_rows else free
    if not rows or not (free if k_rows else contract):  # a vector: give the matrix a dimension of one
        at = len(batch) if not rows else len(view.shape)
        view = view.expand(at, 1)
    return view, len(batch), max(len(rows), 1), k_rows


def _step(view: Strided[Any], dims: tuple[int, ...]) -> int:
    """Smallest distance between elements along some dimensions; large when there is nothing to step over."""
    return min((abs(view.strides[d]) for d in dims if view.shape[d] > 1 and view.strides[d]), default=1 << 40)


def sinks_of(
    low: Lowering, rows: int, batch: int, problem: Callable[[Sink], MatmulProblem] | None = None
) -> Iterator[EpilogueSink]:
    """A sink for each product of the batch; they share tiles, sized by a trial run of one sweep.

    `problem`: of the product, for which there must be room beside the tiles.
    """
    cols = low.group.cols or 1
    domain = Domain(rows * batch, cols)
    width = min(cols, BANK)
    trial = low.fresh()
    measured = _emitter(trial, width, None, None)
    acc = trial.b.tile((min(rows, 128), width), float32, memory=Memory.PSUM)
    sink = EpilogueSink(deque([measured]), trial, domain, 0)
    sink.store(trial.b, acc, 0, 0)
    sink.close(trial.b)
    sink.cost = max(measured.busy.values()) if len(low.group.ops) > MANY_OPS else 0.0
    sink.moved = sink.moved_bytes() if sink.cost else 0
    spaces = measured.wide, measured.narrow
    shape = problem(sink) if problem is not None else None
    together = _tiles_together(sink, shape)
    count = ANNOUNCED + together
    if shape is not None and not sink.rounds and _has_room(low, shape, spaces, count):
        count += 1  # for a tile whose results are on their way to memory
    more = sink.rounds or low.group.kind is GroupKind.CONVOLUTION
    held = count + (_stored(low, measured.wide) if more else 0)
    emitter = _emitter(low, width, [{k: held * n for k, n in s.peak.items()} for s in spaces], measured.loader)
    emitters = deque([emitter, *(emitter.sibling() for _ in range(1, count))])
    cost = sink.cost
    return (EpilogueSink(emitters, low, domain, i * rows, cost, together) for i in range(batch))


def _stored(low: Lowering, space: TileSpace) -> int:
    """The number of sweeps whose results may be on their way to memory where the rounded result is kept in tiles,
    too, or the product is a convolution, which takes what is left."""
    sweep = sum(size * space.width * n for size, n in space.peak.items())
    return min(STORED, int(low.b.sbuf_free * STORED_SHARE) // max(sweep, 1))


def _has_room(low: Lowering, problem: MatmulProblem, spaces: tuple[TileSpace, TileSpace], count: int) -> bool:
    """Whether a product with tiles for `count` sweeps has the room for one more.

    It is estimated to be no slower for it, or hardly slower where the epilogue is long, as an optimizer's update
    is: the estimate does not know that its sweeps wait for tiles.
    """
    b, free = low.b, low.b.sbuf_free
    one = sum(n * (-(-size * space.width // 64) * 64) for space in spaces for size, n in space.peak.items())
    try:
        now, then = (least_seconds(problem, free - n * one, b.chip, b.follows_blockings) for n in (count, count + 1))
    except CapacityError:
        return False
    return then <= now * (SLOWER if problem.sink_moved else 1.0)


def _emitter(low: Lowering, width: int, counts: list[dict[int, int]] | None, trial: TileLoader | None) -> Emitter:
    wide = TileSpace(low.b, width, counts[0] if counts else None, "tile")
    narrow = TileSpace(low.b, 1, counts[1] if counts else None, "row")
    loader = TileLoader(low.b, low.group, low.part, low.ports, wide, narrow)
    loader.storing = low.storing
    if trial is not None:
        loader.prepare(trial)
    return Emitter(low.b, low.group, low.part, loader, wide, narrow)
