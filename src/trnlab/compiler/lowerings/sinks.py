# SPDX-License-Identifier: Apache-2.0
"""Where finished tiles of a product go: through the ops that follow it, and out."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator

from trnlab.compiler.emission.domain import Domain, SweepSlice
from trnlab.compiler.emission.emitter import Emitter
from trnlab.compiler.emission.sweep import steps, take_turns
from trnlab.compiler.emission.tilesource import TileLoader
from trnlab.compiler.fusing.groups import STATISTICS, GroupKind, ValueClass
from trnlab.compiler.fusing.tiles import TilePlan, TileSpace, make_plan, origin, tiles_bytes
from trnlab.compiler.lowerings.context import Lowering
from trnlab.errors import CapacityError
from trnlab.graph.ir import Value
from trnlab.isa.base import Memory
from trnlab.kernels.blocking.choose import least_seconds
from trnlab.kernels.blocking.costs import waits_for_memory
from trnlab.kernels.blocking.problem import MatmulProblem
from trnlab.kernels.blocks import ANNOUNCED, BANK, Sink, Workspace
from trnlab.numerics.dtypes import float32
from trnlab.program import AP, Builder

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
    measured = emitter_of(trial, width, None, None)
    acc = trial.b.tile((min(rows, 128), width), float32, memory=Memory.PSUM)
    sink = EpilogueSink(deque([measured]), trial, domain, 0)
    measured.wide.expected = Counter(value.dtype.itemsize for value in sink.loads)
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
    wide, narrow = ({k: held * n for k, n in s.peak.items()} for s in spaces)
    loaded = Counter(value.dtype.itemsize for value in sink.loads)
    # A sweep that waits has all that it loads, which one that runs gives back as it goes.
    ahead = {k: ANNOUNCED * loaded[k] + together * n for k, n in measured.wide.early.items()}
    wide = {k: max(n, ahead.get(k, 0)) for k, n in wide.items()}
    emitter = emitter_of(low, width, [wide, narrow], measured.loader)
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
    one = sum(tiles_bytes(space.peak, space.width) for space in spaces)
    try:
        now, then = (least_seconds(problem, free - n * one, b.chip, b.follows_blockings) for n in (count, count + 1))
    except CapacityError:
        return False
    return then <= now * (SLOWER if problem.sink_moved else 1.0)


def emitter_of(low: Lowering, width: int, counts: list[dict[int, int]] | None, trial: TileLoader | None) -> Emitter:
    """What computes on tiles of so many columns; with the loader of a trial, all that it kept is there before.
    counts: of tiles by item size, wide and [P, 1]; None in a trial."""
    wide = TileSpace(low.b, width, counts[0] if counts else None, "tile")
    narrow = TileSpace(low.b, 1, counts[1] if counts else None, "row")
    loader = TileLoader(low.b, low.group, low.part, low.ports, wide, narrow)
    loader.storing = low.storing
    if trial is not None:
        loader.prepare(trial)
    return Emitter(low.b, low.group, low.part, loader, wide, narrow)
