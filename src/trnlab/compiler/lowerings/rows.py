# SPDX-License-Identifier: Apache-2.0
"""Loops over rows: elementwise chains, softmax, layer norm, cross entropy, the optimizer.

Rows lie on partitions, 128 at a time. Three forms of the loop, the first that fits in SBUF is taken:

    whole rows   all columns of 128 rows at once: everything is loaded once chunks       no value needs its whole row:
    columns are cut, each piece is loaded once stages       rows too long for SBUF: one sweep over the row's chunks
    for each reduction that the next needs; what a later sweep needs again is computed again from what was loaded
    again

Shape letters: P partition (rows), F free (columns of a sweep), R rows, C columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from math import lcm, prod
from typing import Any

from trnlab.compiler.emission.domain import Domain, RowCache, SweepSlice
from trnlab.compiler.emission.emitter import Emitter
from trnlab.compiler.emission.runs import RunTiles, aligned, lengths, runs
from trnlab.compiler.emission.sweep import steps, take_turns
from trnlab.compiler.emission.tilesource import TileLoader
from trnlab.compiler.emission.totals import PartSums
from trnlab.compiler.fusing.fusion import Partition
from trnlab.compiler.fusing.groups import FusionGroup, ValueClass, sums_over_rows
from trnlab.compiler.fusing.tiles import PsumSpace, TilePlan, TileSpace, make_plan, origin, tiles_bytes
from trnlab.compiler.lowerings.context import Lowering, SbufTurns
from trnlab.errors import CapacityError
from trnlab.graph.ir import Op, Value
from trnlab.graph.ops import ELEMENTWISE, OPS, ROWWISE
from trnlab.graph.passes.rewrite import made_by
from trnlab.isa.base import Memory
from trnlab.isa.rules import MAX_FREE
from trnlab.kernels.blocks import BANK
from trnlab.numerics.dtypes import bfloat16, float32

CHUNKS = (4096, 2048, 1024, 512, 256, 128)  # columns of a sweep, when not the whole row
TURNS = ((4, 8.0), (4, 5.0), (3, 4.0), (3, 3.5), (2, 3.0), (1, 2.0), (1, 1.5), (1, 1.0))
"""Sweeps that take turns, and tiles to have over what one sweep needs. An engine executes in order: instructions that
wait for each other would leave it idle, so several tiles go through the same ops side by side."""
OVERLAP = 3  # sweeps side by side that keep loads, engines and stores busy
PARTITION_STEP = 32  # engines read and write partitions from a multiple of it on
SHORT = 64  # columns that an instruction and a transfer could do while they begin
EXTREMES = ("maximum", "minimum")
LEAST_PIECE = 512  # columns that are worth an instruction and a transfer


_Loads = tuple[list[Value], list[tuple[int, int]]]  # full values, and where sweeps that load them begin


@dataclass(frozen=True)
class Sizes:
    """What a loop was given: sweeps side by side, and tiles per item size, whole and [P, 1]."""

    turns: int
    wide: dict[int, int]
    narrow: dict[int, int]
    ahead: bool  # whether what sweeps load has room while the sweeps before them are computed


class RowLoop:
    """One group of rows and the width of its sweeps."""

    def __init__(self, low: Lowering, domain: Domain, width: int) -> None:
        self.low, self.domain, self.width = low, domain, width
        self.stages = stages_of(low, staged=width < domain.width)
        self.runs = runs(low.group, low.part, low.ports, low.b, domain, width)
        self._coming: Iterator[_Loads] = iter(())  # of the sweeps after those at hand, where they are loaded ahead

    def run(self, sizes: Sizes | None, trial: TileLoader | None, places: int = 0) -> Emitter:
        """Record the loop; with the sizes and the loader of an earlier trial run, all tiles are placed before it.
        `places`: for how many pieces of what is read again there is room."""
        b = self.low.b
        wide = TileSpace(b, self.width, sizes.wide if sizes else None, "tile")
        narrow = TileSpace(b, 1, sizes.narrow if sizes else None, "row")
        loader = TileLoader(b, self.low.group, self.low.part, self.low.ports, wide, narrow)
        loader.runs = RunTiles(b, self.low.ports, self.domain, self.runs)
        outside = _columns_outside(self.low.group, self.domain, self.width)
        alike = outside and self.domain.parts == 1
        loader.passes = -(-self.domain.width // self.width) if alike else 1
        if trial is not None:
            loader.prepare(trial)
        if places:
            loader.kept = RowCache(b, self.read_again(), self.domain, self.width, places)
        parts = PartSums(b, self.domain) if self.domain.parts > 1 else None
        left = self._banks_left(outside) - (parts is not None and parts.turns)
        psum = PsumSpace(b, self.width, left) if sizes is not None else None
        first = Emitter(b, self.low.group, self.low.part, loader, wide, narrow, psum, parts)
        emitters = [first, *(first.sibling() for _ in range(1, sizes.turns if sizes else 1))]
        rows, cols = range(0, self.domain.rows, 128), range(0, self.domain.width, self.width)
        if sizes is None:  # the first and the last of each show all there is
            rows, cols = rows[:: max(len(rows) - 1, 1)], cols[:: max(len(cols) - 1, 1)]
        turns = len(emitters) if loader.kept is None else 1
        batches: list[Any] = self._corners(rows, cols, turns) if outside else list(_batches(list(rows), turns))
        if sizes is not None and sizes.ahead and loader.kept is None:
            self._coming = islice(self._loads(batches, cols, turns, outside), 1, None)
        if outside:
            for batch in batches:
                self._side_by_side(emitters, self.stages[0], batch)
                for emitter in emitters:
                    emitter.end_row()
        else:
            for batch in batches:
                self._rows(emitters, batch, cols)
                if loader.kept is not None:
                    loader.kept.end_row()
        return first

    def _corners(self, rows: Sequence[int], cols: Sequence[int], turns: int) -> list[list[tuple[int, int]]]:
        """First rows and columns of sweeps side by side where the loop over columns is the outer one. Sums over rows
        lie in PSUM until their last row, all of it those of one sweep's columns: before other columns begin, they are
        done."""
        columns = [[(row, col) for row in rows] for col in cols]
        if not sums_over_rows(self.low.group):
            columns = [[corner for column in columns for corner in column]]
        return [batch for column in columns for batch in _batches(column, turns)]

    def _loads(self, batches: list[Any], cols: range, count: int, outside: bool) -> Iterator[_Loads]:
        """What sweeps side by side load, and their first rows and columns, in the order in which they are made."""
        stages = [self.loaded(plan) for plan in self.stages if not plan.per_row]
        for batch in batches:
            pieces = [batch] if outside else self._pieces(batch, cols, count)
            yield from ((values, piece) for values in stages for piece in pieces)

    def read_again(self) -> list[Value]:
        """What more than one sweep over a row loads."""
        sweeps = Counter(value for plan in self.stages for value in self.loaded(plan))
        return [value for value, n in sweeps.items() if n > 1]

    def loaded(self, plan: TilePlan) -> list[Value]:
        """Full values that a sweep loads, in their order, which decides where tiles lie."""
        group = self.low.group
        read = dict.fromkeys(origin(v, group) for op in plan.ops for v in op.operands if op.name != "gather")
        full = {v for v, c in group.outer.items() if c is ValueClass.FULL and v not in group.classes}
        full -= self.runs.keys()
        return [value for value in read if value in full and self.low.part.splat(value) is None]

    def _banks_left(self, outside: bool) -> int:
        """Banks of PSUM that no sum over rows needs. Raises CapacityError where there are too few for the sums."""
        b, sums = self.low.b, sums_over_rows(self.low.group)
        needed = sums * -(-(self.width if outside else self.domain.cols) // BANK)
        if needed > b.banks:
            raise CapacityError(
                f"the sums of {b.name!r} do not fit in PSUM",
                code="TRN502",
                limit=f"{b.banks} banks",
                got=f"{needed} banks",
                chip=b.chip.name,
            )
        return b.banks - sums * -(-self.domain.cols // BANK)

    def _rows(self, emitters: list[Emitter], rows: list[int], cols: range) -> None:
        pieces = self._pieces(rows, cols, len(emitters))
        if len(rows) == 1:
            for emitter in emitters[1:]:
                emitter.share_row(emitters[0])
        for plan in self.stages:
            if plan.per_row:
                frames = [self._whole(row) for row in rows]
                take_turns([steps(e, plan, frame) for e, frame in zip(emitters, frames)])
                continue
            for piece in pieces:
                self._side_by_side(emitters, plan, piece)
            if self.width < self.domain.width:
                for emitter, row in zip(emitters, rows):
                    self._store_sums(emitter, plan, self._whole(row))
        for emitter in emitters[len(rows) :]:
            emitter.leave_row()
        for emitter in emitters:
            emitter.end_row()

    def _pieces(self, rows: list[int], cols: range, count: int) -> list[list[tuple[int, int]]]:
        """First rows and columns of sweeps side by side; those of pieces of one row are."""
        pieces = [[(row, col) for row in rows] for col in cols]
        return pieces if len(rows) > 1 else list(_batches([corner for piece in pieces for corner in piece], count))

    def _side_by_side(self, emitters: list[Emitter], plan: TilePlan, corners: list[tuple[int, int]]) -> None:
        frames = [self._frame(*corner) for corner in corners]
        if emitters[0].wide.measuring:
            emitters[0].wide.expected = Counter(value.dtype.itemsize for value in self.loaded(plan))
        for values, coming in islice(self._coming, 1):
            self._load_ahead(emitters, values, [self._frame(*corner) for corner in coming])
        take_turns([steps(e, plan, frame) for e, frame in zip(emitters, frames)])

    def _load_ahead(self, emitters: list[Emitter], values: list[Value], frames: list[SweepSlice]) -> None:
        """Load what the sweeps after the next ones read, before the next ones are stored: loads do not wait behind
        stores whose results are not there yet."""
        for emitter, frame in zip(emitters, frames):
            for value in values:
                emitter.loader.load_early(value, frame)

    def _frame(self, row: int, col: int) -> SweepSlice:
        """The sweep that begins there."""
        return SweepSlice(self.domain, row, self._height(row), col, min(self.width, self.domain.width - col))

    def _whole(self, row: int) -> SweepSlice:
        return SweepSlice(self.domain, row, self._height(row), 0, self.domain.width)

    def _height(self, row: int) -> int:
        """Partitions of a sweep from a row on."""
        return min(128, (self.domain.rows - row) * self.domain.parts)

    def _store_sums(self, emitter: Emitter, plan: TilePlan, frame: SweepSlice) -> None:
        """Reductions whose columns came in chunks are complete, and can be written, only now."""
        for op in plan.ops:
            if op.result in self.low.stores and op.result in emitter.rows:
                emitter.store_row(op.result, frame)


def _batches(items: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def lower_rows(low: Lowering, turns: SbufTurns | None = None) -> None:
    """Record the loop of a group of rows. Raises CapacityError when no form of it fits in SBUF.

    `turns`: of the loops that share the routine; its tiles then stay taken until the next turn.
    """
    for domain in domains(low):
        if turns is None:
            with SbufTurns(low.b) as own:
                _lower_domain(low, domain, own)
        else:
            _lower_domain(low, domain, turns)


def domains(low: Lowering) -> list[Domain]:
    """The rows and columns to loop over; a group with columns of its own choosing fills all partitions."""
    group = low.group
    if group.cols is not None and not _free_to_flatten(low):
        rows = group.size // group.cols
        return [Domain(rows, group.cols, parts=parts_of_rows(group, low.part, rows))]
    if _free_to_flatten(low):
        main = group.size // 128
        tail = group.size - 128 * main
        found = [Domain(128, main, 0, flat=True)] if main else []
        return found + ([Domain(1, tail, 128 * main, flat=True)] if tail else [])
    group.cols = _columns_in_a_row(low)
    return [Domain(group.size // group.cols, group.cols)]


def _columns_in_a_row(low: Lowering) -> int:
    """Columns of a loop over tensors whose dimensions lie in memory in different orders: the last ones, which do not,
    as far as rows are left for all partitions."""
    group = low.group
    shape = max((v.shape for v in group.classes if v.type.size == group.size), key=len)
    views = [low.part.strided(v).reshape(shape) for v, c in group.outer.items() if c is ValueClass.FULL]
    found = shape[-1] if shape else 1
    for axis in range(len(shape) - 2, -1, -1):
        columns = prod(shape[axis:])
        if group.size // columns < 128 or any(v is None or len(v.collapsed(axis)) > 1 for v in views):
            break
        found = columns
    return found


def parts_of_rows(group: FusionGroup, part: Partition, rows: int) -> int:
    """Into how many parts each row is cut, so that few rows fill the partitions: where sums and extremes along rows
    are all that partitions share."""
    classes = {*group.classes.values(), *group.outer.values()}
    known = {ValueClass.FULL, ValueClass.ROW, ValueClass.COL, ValueClass.SCALAR, ValueClass.FINAL}
    alike = classes <= known and all(
        (op.attrs["kind"] in EXTREMES and op.result.dtype is bfloat16)
        or (op.attrs["kind"] in ("add", *EXTREMES) and op.result.dtype is float32)
        if op.name == "reduce"
        else OPS[op.name].kind == ELEMENTWISE or op.name == "trn.moments"
        for op in group.ops
    )
    if not alike or group.cols is None or sums_over_rows(group):
        return 1
    if any(made_by(part.strided(v).base, "iota") for v, c in group.outer.items() if c is ValueClass.COL):
        return 1  # which GpSimdE counts
    if rows % PARTITION_STEP and any(op.name == "trn.moments" for op in group.ops):
        return 1
    counts = (n for n in range(128 // rows, 1, -1) if group.cols % n == 0 and group.cols // n >= LEAST_PIECE)
    columns = [length for _, _, length in lengths(group, part, rows, group.cols).values()]
    return next((n for n in counts if all(group.cols // n % length == 0 for length in columns)), 1)


def _free_to_flatten(low: Lowering) -> bool:
    group = low.group
    if group.cols is not None:
        return False
    contiguous = (low.part.strided(v).reshape((group.size,)) for v, c in group.outer.items() if c is ValueClass.FULL)
    return all(seen is not None for seen in contiguous)


def _lower_domain(low: Lowering, domain: Domain, turns: SbufTurns) -> None:
    trial = cache(partial(_Trial, low, domain))  # one for all forms of a width
    forms = (_Form(low, domain, width, count, factor, trial(width)) for width, count, factor in _forms(low, domain))
    best = next((form for form in forms if form.fits), None)
    if best is not None and (best.again or best.sizes.turns < OVERLAP):
        others = (
            _Form(low, domain, width, count, factor, trial(width))
            for width, count, factor in _forms(low, domain)
            if _may_keep(width, count)
        )
        best = min([best, *(form for form in others if form.fits and form.places)], key=lambda form: form.cost)
    if best is not None:
        best.record(turns)
        return
    raise CapacityError(
        "a fused loop does not fit in SBUF",
        code="TRN503",
        limit=f"{low.b.sbuf_limit} bytes per partition",
        got=f"{domain.rows} x {domain.cols}, {len(low.group.ops)} ops",
        chip=low.b.chip.name,
        where=low.group.ops[0].loc,
        remedy="split the computation, for example over fewer tensors at once",
    )


class _Form:
    """A width of sweeps with tiles for so many of them, and what room is left to keep what is read again."""

    def __init__(self, low: Lowering, domain: Domain, width: int, count: int, factor: float, trial: _Trial) -> None:
        self.low, self.domain, self.width, self.trial = low, domain, width, trial
        self.sizes, self.total = trial.sizes(count, factor)
        self.again = sum(-(-v.dtype.itemsize * width // 64) * 64 for v in trial.again)  # bytes of a piece
        self.pieces = -(-domain.width // width)
        self.places = min(max(low.b.sbuf_limit - self.total, 0) // self.again, 2 * self.pieces) if self.again else 0

    @property
    def fits(self) -> bool:
        """Whether there is so much of SBUF."""
        return self.total <= self.low.b.sbuf_limit

    @property
    def cost(self) -> float:
        """Bytes that pass for each element, what sweeps take longer for being short, or for not overlapping."""
        group, part = self.low.group, self.low.part
        read = {v for v, c in group.outer.items() if c is ValueClass.FULL and part.splat(v) is None}
        read -= self.trial.runs.keys()
        passing = sum(v.dtype.itemsize for v in {*read, *self.low.stores} if v.type.size == group.size)
        again = sum(v.dtype.itemsize for v in self.trial.again) * (1 - min(self.places / self.pieces, 1.0))
        return (passing + again) * (1 + SHORT / self.width) * max(OVERLAP / self.sizes.turns, 1.0)

    def record(self, turns: SbufTurns) -> None:
        """The loop."""
        turns.make_room(self.total + self.again * self.places)
        RowLoop(self.low, self.domain, self.width).run(self.sizes, self.trial.loader, self.places)


class _Trial:
    """A trial run of one sweep of some width: what it needs of SBUF."""

    def __init__(self, low: Lowering, domain: Domain, width: int) -> None:
        trial, self._width = RowLoop(low.fresh(), domain, width), width
        self.again, self.runs = trial.read_again() if width < domain.width else [], trial.runs
        emitter = trial.run(None, None)
        self.loader, self._wide, self._narrow = emitter.loader, emitter.wide.peak, emitter.narrow.peak
        self._early = emitter.wide.early
        loads = [Counter(value.dtype.itemsize for value in trial.loaded(plan)) for plan in trial.stages]
        self._most = {size: max(each[size] for each in loads) for size in self._wide}
        b = trial.low.b
        self._fixed = b.sbuf_limit - b.sbuf_free - tiles_bytes(self._wide, width) - tiles_bytes(self._narrow, 1)

    def sizes(self, count: int, factor: float) -> tuple[Sizes, int]:
        """Tiles for `count` sweeps side by side, and the bytes of a partition that they and the rest take."""
        wide = {k: round(n * factor) for k, n in self._wide.items()}
        ahead = all(count * (self._early[k] + self._most[k]) <= n for k, n in wide.items())
        ahead = ahead and self._width >= LEAST_PIECE  # of shorter sweeps what varies along rows is waited for
        sizes = Sizes(count, wide, {k: (count + 2) * n for k, n in self._narrow.items()}, ahead)
        return sizes, self._fixed + tiles_bytes(sizes.wide, self._width) + tiles_bytes(sizes.narrow, 1)


def _forms(low: Lowering, domain: Domain) -> Iterator[tuple[int, int, float]]:
    """Widths of a sweep with sweeps side by side and tiles for them, the best first.

    A row that fits whole is taken whole: in pieces it is loaded again for each reduction. Pieces are best as long as
    sweeps can still overlap, and no shorter than what a transfer and an instruction are worth.
    """
    reductions = [op.attrs["kind"] for op in low.group.ops if op.name == "reduce"]
    needs_whole = any(_is_reduction(v) and c is ValueClass.ROW for v, c in low.group.classes.items())
    needs_whole = needs_whole and not domain.flat
    read_once = needs_whole and bool(reductions) and set(reductions) <= set(EXTREMES)
    read_once = read_once and sum(not plan.per_row for plan in stages_of(low, staged=True)) == 1
    needs_whole = needs_whole and not read_once  # what is found out about rows is for others
    whole = domain.width <= (MAX_FREE[Memory.SBUF] if needs_whole else CHUNKS[0])
    sums = sums_over_rows(low.group)
    columns = {length for _, _, length in lengths(low.group, low.part, domain.rows, domain.cols).values()}
    own = lcm(*(op.result.shape[-1] for op in low.group.ops if OPS[op.name].kind == ROWWISE))
    chunks = dict.fromkeys(_multiple(aligned(c, sorted(columns)), own) for c in CHUNKS)
    widths = [domain.width] * whole + [c for c in chunks if 0 < c < domain.width]
    if sums:
        widths = [w for w in widths if sums * -(-w // BANK) <= low.b.banks] or [_multiple(128, own) or own]
    if read_once:  # short sweeps, of which many are on their way
        widths = [w for w in widths if w <= CHUNKS[1]]
    pieces = widths
    if needs_whole and widths[0] == domain.width:
        yield from ((domain.width, *turn) for turn in _turns(domain, domain.width))
        pieces = widths[1:]
    for least in (OVERLAP, min(turn[0] for turn in TURNS)):
        for width in pieces:
            if width >= LEAST_PIECE or least < OVERLAP:
                yield from ((width, *turn) for turn in _turns(domain, width) if turn[0] >= least)


def _multiple(width: int, of: int) -> int:
    """The largest multiple that is at most as wide."""
    return width - width % of


def _may_keep(width: int, count: int) -> bool:
    """Whether sweeps of a form overlap and are long enough: it is worth a trial if it finds what was kept."""
    return count >= TURNS[0][0] and width >= 2 * LEAST_PIECE


def _turns(domain: Domain, width: int) -> Iterator[tuple[int, float]]:
    """The entries of TURNS that a loop has sweeps for; all count as overlapping when there is one sweep."""
    sweeps = -(-domain.rows // 128) * -(-domain.width // width)
    return ((count, factor) for count, factor in TURNS if count <= max(sweeps, 1))


def _columns_outside(group: FusionGroup, domain: Domain, width: int) -> bool:
    """Whether the loop over columns is the outer one: sums over rows in pieces, or nothing depends on whole rows."""
    return width < domain.width and all(c is not ValueClass.ROW for c in group.classes.values())


# -- stages ---------------------------------------------------------------------------------------------------------


def stages_of(low: Lowering, *, staged: bool) -> list[TilePlan]:
    """The sweeps over a row: one, or one for each reduction that another needs complete."""
    group = low.group
    if not staged:
        return [make_plan(group, group.ops, low.stores)]
    level = levels(group)
    plans = []
    for stage in range(max(level.values()) + 1):
        at_stage = [op for op in group.ops if level[op.result] == stage]
        narrow = [op for op in at_stage if _is_row_value(group, op.result) and op.name != "reduce"]
        plans.append(make_plan(group, narrow, {op.result for op in narrow} & low.stores, per_row=True))
        goals = [op for op in at_stage if op not in narrow and (op.name == "reduce" or op.result in low.stores)]
        needed = _closure(group, goals)
        wide_stores = {op.result for op in goals if op.name != "reduce"}
        plans.append(make_plan(group, [op for op in group.ops if op in needed], wide_stores))
    return [p for p in plans if p.ops]


def levels(group: FusionGroup) -> dict[Value, int]:
    """How many complete reductions each value has behind it."""
    found: dict[Value, int] = {}
    for op in group.ops:
        inputs = [origin(v, group) for v in op.operands]
        base = max((found[v] + (_is_reduction(v)) for v in inputs if v in found), default=0)
        found[op.result] = base
    return found


def _is_reduction(value: Value) -> bool:
    return value.op is not None and value.op.name == "reduce"


def _is_row_value(group: FusionGroup, value: Value) -> bool:
    return group.classes[value] is ValueClass.ROW and value.type.size != group.size


def _closure(group: FusionGroup, goals: Iterable[Op]) -> set[Op]:
    """The ops to compute again for the goals: back to values that are kept per row, or that come from outside."""
    needed: set[Op] = set()
    stack = list(goals)
    while stack:
        op = stack.pop()
        if op in needed:
            continue
        needed.add(op)
        for value in op.operands:
            seen = origin(value, group)
            if seen in group.classes and not _is_row_value(group, seen) and seen.op in group.ops:
                stack.append(seen.op)
    return needed
