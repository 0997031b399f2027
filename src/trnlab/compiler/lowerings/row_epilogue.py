# SPDX-License-Identifier: Apache-2.0
"""Products whose epilogue needs whole rows: a norm of what they make, or the gradient of one.

Tiles of a row lie beside each other in PSUM, or are put together in SBUF, and when all have come, the loop over rows
goes through them: as `lowerings.rows` would through rows that it loads, but nothing is stored and loaded in between,
and the PE array works on the next rows meanwhile.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from trnlab.compiler.emission.column_sums import SumsInSbuf, SumsOnArray
from trnlab.compiler.emission.domain import Domain, SweepSlice
from trnlab.compiler.emission.emitter import Emitter
from trnlab.compiler.emission.sweep import steps, take_turns
from trnlab.compiler.fusing.groups import FusionGroup, GroupKind, ValueClass
from trnlab.compiler.fusing.tiles import TilePlan, make_plan, tiles_bytes
from trnlab.compiler.lowerings.context import Lowering
from trnlab.compiler.lowerings.sinks import emitter_of, loaded_values
from trnlab.errors import CapacityError
from trnlab.graph.ir import Value
from trnlab.isa.base import Engine, Memory
from trnlab.kernels.blocking.choose import choose
from trnlab.kernels.blocking.costs import block_times
from trnlab.kernels.blocking.problem import MatmulProblem
from trnlab.kernels.blocks import ANNOUNCED, BANK, P, Sink, Workspace
from trnlab.numerics.dtypes import float32
from trnlab.program import AP, Builder


class Depth(NamedTuple):
    """Blocks of P rows whose tiles may come in turn, and of them, that go through the loop side by side: its
    instructions wait for each other."""

    open: int
    together: int


DEPTHS = (Depth(2, 2), Depth(1, 2), Depth(1, 1))  # the best first, where there is room
SLOWER = 1.02  # what a product may take longer for the first of them


def needs_rows(group: FusionGroup) -> bool:
    """Whether the epilogue of a product needs its rows whole."""
    return group.kind is GroupKind.DOT and any(
        c is ValueClass.ROW for op in group.ops[1:] for c in map(group.classes.get, op.results)
    )


@dataclass(eq=False)
class _OpenRows:
    """Up to P rows of which not all tiles have come: those that have, by their first column."""

    frame: SweepSlice
    emitter: Emitter
    tiles: dict[int, AP] = field(default_factory=dict)
    copied: AP | None = None  # where they are put together, if not in PSUM

    @property
    def whole(self) -> bool:
        """Whether all have come."""
        return sum(tile.free for tile in self.tiles.values()) == self.frame.cols


class RowSink(Sink):
    """Finished PSUM tiles are put together to rows, which go through the group's ops and out."""

    def __init__(
        self, emitters: deque[Emitter], low: Lowering, domain: Domain, plan: TilePlan, depth: Depth, slots: int = 0
    ) -> None:
        """`emitters`: taken in turn, one for each block of rows that is announced, open or waits. `slots`: blocks of
        rows for which PSUM has room."""
        self.low, self.domain, self.plan, self.emitters, self.depth = low, domain, plan, emitters, depth
        self.loads = loaded_values(low, plan)
        self.open_rows = depth.open
        self._stays = slots >= depth.open + depth.together - 1 and self._made.dtype is float32
        self._open: dict[int, _OpenRows] = {}
        self._waiting: list[_OpenRows] = []

    def open(self, b: Builder, work: Workspace, width: int) -> None:
        """Its tiles were placed before the kernel began."""
        self._work = work

    def announce(self, b: Builder, row: int, col: int, rows: int, cols: int) -> None:
        """Load what the ops will read of those rows."""
        self._rows(row, rows)

    def store(self, b: Builder, acc: AP, row: int, col: int) -> None:
        """Put a tile into its rows; the loop goes through them where it is the last."""
        given = self._rows(row, acc.partitions)
        given.tiles[col] = acc
        if not (self._stays and given.copied is None and _lies_at(acc, col, self.domain.cols)):
            self._copy(given)
        if given.whole:
            del self._open[row]
            self._waiting.append(given)
            if len(self._waiting) == self.depth.together:
                self.close(b)

    def close(self, b: Builder) -> None:
        """The loop over the rows that wait."""
        given, self._waiting = self._waiting, []
        bases = [{self._made: each.copied or _side_by_side(each.tiles[0], self.domain.cols)} for each in given]
        take_turns([steps(each.emitter, self.plan, each.frame, base) for each, base in zip(given, bases)])
        for each in given:
            if each.copied is not None:
                each.emitter.wide.give(each.copied)
            each.emitter.end_row()

    def finish(self) -> None:
        """Write out what was added up over all rows."""
        self.emitters[0].loader.finish()

    @property
    def _made(self) -> Value:
        return self.low.group.anchor.result

    def _copy(self, given: _OpenRows) -> None:
        """Put the tiles that have come together in SBUF, in the format of the result."""
        if given.copied is None:
            given.copied = given.emitter.wide.take(given.frame.rows, self.domain.cols, self._made.dtype)
        for col, tile in given.tiles.items():
            if tile.memory is Memory.PSUM:
                given.tiles[col] = given.copied[:, col : col + tile.free]
                given.emitter.charge(Engine.SCALAR, tile.free)
                self._work.evacuate(given.tiles[col], tile)

    def _rows(self, row: int, rows: int) -> _OpenRows:
        if row not in self._open:
            self.emitters.rotate(-1)
            emitter, frame = self.emitters[-1], SweepSlice(self.domain, row, rows, 0, self.domain.cols)
            for value in self.loads:
                emitter.loader.load(value, frame)
            self._open[row] = _OpenRows(frame, emitter)
        return self._open[row]


def _lies_at(acc: AP, col: int, cols: int) -> bool:
    """Whether a tile of PSUM lies where its columns are in banks that hold a whole row."""
    size = acc.dtype.itemsize
    return acc.buffer.nbytes >= cols * size and acc.offset == col * size


def _side_by_side(first: AP, cols: int) -> AP:
    """All columns of rows whose first tile this is."""
    return AP(first.buffer, first.dtype, first.start_partition, first.partitions, 0, first.offset, ((1, cols),))


def row_sink(low: Lowering, rows: int, problem: Callable[[Sink], MatmulProblem]) -> RowSink:
    """The sink of a product of so many rows. Raises CapacityError where there is no room for it."""
    return best_plan(low, rows, problem).sink()


def best_plan(low: Lowering, rows: int, problem: Callable[[Sink], MatmulProblem]) -> EpiloguePlan:
    """The first of DEPTHS with which the product, and engines beside it, take hardly longer than with any. Raises
    CapacityError where none has room. problem: the product that a sink belongs to."""
    trial = _Trial(low, rows)
    plans = [EpiloguePlan(low, problem, depth, trial) for depth in DEPTHS]
    least = min(plan.seconds for plan in plans)
    if least == float("inf"):
        raise CapacityError(
            "a product and the loop over its rows do not fit in SBUF",
            code="TRN501",
            limit=f"{low.b.sbuf_free} bytes per partition left",
            got=f"{rows} x {low.group.cols}, {len(low.group.ops)} ops",
            chip=low.b.chip.name,
            remedy="give the routine more SBUF",
        )
    return next(plan for plan in plans if plan.seconds <= SLOWER * least)


class _Trial:
    """A trial run of one sweep: what it needs of SBUF, and costs."""

    def __init__(self, low: Lowering, rows: int) -> None:
        trial, cols = low.fresh(), low.group.cols or 1
        self.domain = Domain(rows, cols)
        self.plan = make_plan(low.group, low.group.ops[1:], low.stores)
        self.emitter = emitter_of(trial, cols, None, None)
        self.sums: dict[Value, SumsOnArray | SumsInSbuf] = {}
        self.emitter.loader.column_sums.places, self.emitter.loader.column_sums.measuring = self.sums, True
        sink = RowSink(deque([self.emitter]), trial, self.domain, self.plan, DEPTHS[-1])
        sink.open(trial.b, Workspace(trial.b), cols)
        for col in range(0, cols, BANK):
            sink.store(trial.b, trial.b.psum((min(rows, P), min(BANK, cols - col))), 0, col)
        sink.close(trial.b)
        self.held = Counter(v.dtype.itemsize for v in (*sink.loads, low.group.anchor.result))
        taken = trial.b.sbuf_limit - trial.b.sbuf_free - sum(sums.nbytes for sums in self.sums.values())
        peaks = self.emitter.wide.peak, self.emitter.narrow.peak
        self.fixed = taken - tiles_bytes(peaks[0], cols) - tiles_bytes(peaks[1], 1)
        whole = (v for v in (*sink.loads, *low.stores) if v.type.size == low.group.size)
        self.moved = sum(v.dtype.itemsize for v in whole)


class EpiloguePlan:
    """What an epilogue of some depth has of SBUF and PSUM, and what its product takes then.

    `product_seconds`: of the product beside it, without end where it has no room. `seconds`: with those of VectorE
    and GpSimdE, to compare. `busy`: seconds of the busiest engine for P rows. `moved`, `made_bytes`: bytes that pass
    for an element, and of what the product makes.
    """

    def __init__(self, low: Lowering, problem: Callable[[Sink], MatmulProblem], depth: Depth, trial: _Trial) -> None:
        self.low, self.depth, self._trial = low, depth, trial
        self.busy, self.moved = max(trial.emitter.busy.values()), trial.moved
        self.made_bytes = low.group.anchor.result.dtype.itemsize
        self._banks, self._across = 0, -(-trial.domain.cols // BANK)  # of sums, and of a row
        self._announced = -(-ANNOUNCED // self._across)  # blocks of rows beside the open ones
        self._on_array, port = self._sums_on_array(problem(self._sink(deque(), 0)))
        self._banks = -(-self._on_array // 2) * self._across
        shape = problem(self._sink(deque(), 0))
        self._slots = shape.accumulators // self._across
        self.product_seconds, moving = self._block_times(shape)
        self.seconds = self.product_seconds + moving + port * trial.domain.rows / P

    def _sums_on_array(self, shape: MatmulProblem) -> tuple[int, float]:
        """How many sums over rows the PE array makes, each of which takes half of the partitions of a row's banks: as
        many as there are banks, and time while VectorE, with whom GpSimdE takes turns, is busy; and how long these
        two are, for P rows."""
        chip, cols = self.low.b.chip, self._trial.domain.cols
        rows_held = max(self.depth.open + self.depth.together - 1, 1)
        most = 2 * max(shape.accumulators // self._across - rows_held, 0)
        column = chip.tensor.passes.of(shape.dtype).value / chip.tensor.clock.value
        turned = 0 if shape.lhs_k_rows else P * shape.k_tiles / chip.tensor.clock.value
        array = shape.k_tiles * cols * column + turned
        adding = cols * chip.gpsimd.elementwise.value / chip.gpsimd.clock.value
        port = self._trial.emitter.busy[Engine.VECTOR] + len(self._trial.sums) * adding
        summing = 2 * cols / chip.tensor.clock.value  # of float32 with ones
        count = 0
        while count < min(most, len(self._trial.sums)) and array + summing < port:
            array, port, count = array + summing, port - adding, count + 1
        return count, port

    def _counts(self) -> list[dict[int, int]]:
        """Tiles by item size, whole and [P, 1]: of sweeps side by side, and what open rows hold."""
        wide, narrow = self._trial.emitter.wide.peak, self._trial.emitter.narrow.peak
        open_ = self.depth.open + self._announced
        counts = {size: self.depth.together * n + open_ * self._trial.held[size] for size, n in wide.items()}
        if self._on_array:
            counts[float32.itemsize] += 1  # on the way to memory
        return [counts, {size: (self.depth.together + open_) * n for size, n in narrow.items()}]

    def _block_times(self, shape: MatmulProblem) -> tuple[float, float]:
        """What the product takes beside the tiles, and how long it holds the DMA engines."""
        b, (wide, narrow) = self.low.b, self._counts()
        sums = list(self._trial.sums.values())[self._on_array :]
        taken = self._trial.fixed + sum(each.nbytes for each in sums)
        room = b.sbuf_free - taken - tiles_bytes(wide, self._trial.domain.cols) - tiles_bytes(narrow, 1)
        try:
            return block_times(shape, choose(shape, room, b.chip, followed=False), b.chip)
        except CapacityError:
            return float("inf"), 0.0

    def _sink(self, emitters: deque[Emitter], slots: int) -> RowSink:
        trial = self._trial
        found = RowSink(emitters, self.low, trial.domain, trial.plan, self.depth, slots)
        found.cost, found.moved = self.busy / self._across, self.moved
        found.banks = self._banks
        return found

    def sink(self) -> RowSink:
        """The sink, with its tiles."""
        trial, b = self._trial, self.low.b
        first = emitter_of(self.low, trial.domain.cols, self._counts(), trial.emitter.loader)
        sums = first.loader.column_sums
        sums.places = {}
        for i, value in enumerate(trial.sums):
            if i < self._on_array:
                bank = b.banks - self._banks + i // 2 * self._across
                sums.places[value] = SumsOnArray.at(b, bank, trial.domain.cols, upper=i % 2 == 1)
            else:
                sums.places[value] = SumsInSbuf(b, trial.domain.rows, trial.domain.cols)
        count = self.depth.together + self.depth.open + self._announced
        return self._sink(deque([first, *(first.sibling() for _ in range(1, count))]), self._slots)
