# SPDX-License-Identifier: Apache-2.0
"""Values from outside that are the same over runs of neighbouring columns, as a channel's scale is for all its
pixels: one element of each run is loaded, and all columns of the run read it.

Shape letters: P partition (rows of the tile), F free (columns of the tile).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trnlab.compiler.analysis.strided import ValueView, split_rows
from trnlab.compiler.emission.domain import Domain, SweepSlice, parts_of_sweep
from trnlab.compiler.fusing.classes import Classes
from trnlab.compiler.fusing.groups import FusionGroup, ValueClass
from trnlab.compiler.fusing.tiles import origin
from trnlab.graph.ir import Op, Value
from trnlab.graph.ops import ELEMENTWISE, OPS
from trnlab.kernels import residence
from trnlab.kernels.blocks import dma_load
from trnlab.kernels.view import view_of
from trnlab.numerics.dtypes import float32
from trnlab.program import AP, Builder

MOST_BYTES = 16 * 1024  # of a partition, for all that a loop keeps in this way
FOLDED = frozenset({"add", "subtract", "multiply", "maximum", "minimum"})
"""Ops that take one number of each row along, beside a whole tile."""


@dataclass(frozen=True)
class ColumnRun:
    """A value whose first `dims` dimensions are the rows of a loop, the others the runs of a row, each of `length`
    columns. `alone`: whether a sweep lies within a run, and its readers take the element as a number of each row."""

    view: ValueView
    dims: int
    length: int
    alone: bool

    def per_row(self, domain: Domain) -> int:
        """Runs of a row, or of a part of one."""
        return domain.width // self.length


def run_of(seen: ValueView, rows: int, cols: int) -> tuple[ValueView, int, int] | None:
    """A view as rows and runs: without the last dimensions, over which it is the same; dimensions that make the rows;
    columns of a run. None where neighbouring columns differ."""
    split = split_rows(seen, rows, cols)
    if split is None:
        return None
    view, dims = split
    length, last = 1, len(view.shape)
    while last > dims and (view.strides[last - 1] == 0 or view.shape[last - 1] == 1):
        last -= 1
        length *= view.shape[last]
    return (view.like(view.offset, view.shape[:last], view.strides[:last]), dims, length) if length > 1 else None


def lengths(group: FusionGroup, part: Classes, rows: int, cols: int) -> dict[Value, tuple[ValueView, int, int]]:
    """What a loop over rows finds the same over runs of columns, as `run_of` says, where ops read it element by
    element."""
    found = {}
    readers = _readers(group)
    for value, cls in group.outer.items():
        if cls is not ValueClass.FULL or value in group.classes or part.splat(value) is not None:
            continue
        run = run_of(part.strided(value), rows, cols)
        if run is not None and all(OPS[op.name].kind == ELEMENTWISE for op in readers.get(value, ())):
            found[value] = run
    return found


def runs(
    group: FusionGroup, part: Classes, ports: Mapping[Value, AP], b: Builder, domain: Domain, width: int
) -> dict[Value, ColumnRun]:
    """The same for sweeps of `width` columns that hold whole runs or lie within one, as far as SBUF should hold an
    element of each run of all rows."""
    found: dict[Value, ColumnRun] = {}
    if domain.flat:
        return found
    readers, left = _readers(group), MOST_BYTES
    known = lengths(group, part, domain.rows, domain.cols)
    for value, (view, dims, length) in known.items():
        fits = domain.width % length == 0 and (width % length == 0 or length % width == 0)
        if not fits or residence.of(b, ports[view.base].buffer) is not None:
            continue
        alone = (
            value.dtype.is_float
            and length % width == 0
            and all(_folds(op, value, group, part, known) for op in readers.get(value, ()))
        )
        run = ColumnRun(view, dims, length, alone)
        left -= run.per_row(domain) * blocks(domain) * (value.dtype.itemsize + 4)
        if left < 0:
            break
        found[value] = run
    return found


def aligned(width: int, columns: Iterable[int]) -> int:
    """The width of sweeps at most as long that hold whole runs of so many columns, or lie within one."""
    for length in columns:
        if length <= width:
            width -= width % length
        elif length % width:
            width = max((d for d in range(width // 2, width) if length % d == 0), default=width)
    return width


def blocks(domain: Domain) -> int:
    """Blocks of 128 rows."""
    return -(-domain.rows * domain.parts // 128)


def _readers(group: FusionGroup) -> dict[Value, list[Op]]:
    found: dict[Value, list[Op]] = {}
    for op in group.ops:
        for value in op.operands if op.result not in group.exact else ():
            found.setdefault(origin(value, group), []).append(op)
    return found


def _folds(op: Op, value: Value, group: FusionGroup, part: Classes, known: Iterable[Value]) -> bool:
    """Whether an op takes a value as a number of each row: beside an operand that has an element for each column."""
    others = [seen for v in op.operands if (seen := origin(v, group)) is not value]
    few = {ValueClass.ROW, ValueClass.SCALAR}
    classes = [group.classes.get(v) or group.outer.get(v) for v in others if v not in known]
    return op.name in FOLDED and len(others) == 1 and any(c not in few for c in classes)


class RunTiles:
    """An element of each run of all rows, from the first sweep that needs it on: [128, blocks, runs of a row]."""

    def __init__(self, b: Builder, ports: Mapping[Value, AP], domain: Domain, of: Mapping[Value, ColumnRun]) -> None:
        self.b, self.ports, self.domain, self.of = b, ports, domain, of
        self._tiles: dict[Value, AP] = {}
        self._wide: dict[Value, AP] = {}  # the same in float32
        self._loaded: set[tuple[Value, int]] = set()

    def prepare(self, other: RunTiles) -> None:
        """Have the tiles that another one had."""
        for value in other._tiles:
            self._make(value)

    def is_alone(self, value: Value) -> bool:
        """Whether a sweep sees one element of each row."""
        return value in self.of and self.of[value].alone

    def tile(self, value: Value, frame: SweepSlice) -> AP:
        """The frame's part: [P, 1] where it is read as a number of each row, else [P, F]."""
        run = self.of[value]
        piece = self._piece(self._tiles, value, frame)
        if run.alone:
            return piece
        count = piece.free
        return piece.with_dims((0, frame.cols)) if count == 1 else piece.repeat(1, run.length)

    def number(self, value: Value, frame: SweepSlice) -> AP | None:
        """The same in float32, [P, 1]; None for what is no number of each row here."""
        if not self.is_alone(value):
            return None
        return self._piece(self._tiles if value.dtype is float32 else self._wide, value, frame)

    def _piece(self, tiles: dict[Value, AP], value: Value, frame: SweepSlice) -> AP:
        run, block = self.of[value], frame.row // 128
        self._make(value)
        if (value, block) not in self._loaded:
            self._load(value, frame)
            self._loaded.add((value, block))
        first = frame.col // run.length
        return tiles[value][: frame.rows, block, first : first + max(frame.cols // run.length, 1)]

    def _make(self, value: Value) -> None:
        if value not in self._tiles:
            shape = 128, blocks(self.domain), self.of[value].per_row(self.domain)
            self._tiles[value] = self.b.tile(shape, value.dtype, name="runs")
            if value.dtype is not float32 and self.of[value].alone:
                self._wide[value] = self.b.tile(shape, float32, name="runs")

    def _load(self, value: Value, frame: SweepSlice) -> None:
        """Load the rows at hand."""
        run, domain, block = self.of[value], self.domain, frame.row // 128
        per_row = run.per_row(domain)
        few = Domain(domain.rows, domain.cols // run.length, parts=domain.parts)
        tile = self._tiles[value][:, block]
        view = view_of(self.ports[run.view.base], run.view)
        for piece in parts_of_sweep(view, run.dims, SweepSlice(few, frame.row, frame.rows, 0, per_row)):
            rows = slice(piece.partition, piece.partition + piece.partitions)
            dma_load(self.b, tile[rows, piece.col : piece.col + piece.cols], piece.ap)
        if value in self._wide:
            self.b.tensor_copy(dst=self._wide[value][: frame.rows, block], src=tile[: frame.rows])
