# SPDX-License-Identifier: Apache-2.0
"""Between HBM and the tiles of a group: loads of what comes from outside, stores of what is read outside.

Shape letters: P partition (rows of the tile), F free (columns of the tile), R all rows, C all columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from trnlab.compiler.analysis.strided import ValueView, split_rows
from trnlab.compiler.emission.column_sums import ColumnSums
from trnlab.compiler.emission.domain import Domain, RowCache, SweepSlice, parts_of_sweep
from trnlab.compiler.emission.runs import RunTiles
from trnlab.compiler.emission.totals import Extremes, Moments, SoftmaxStatistics, SumsOfSquares
from trnlab.compiler.fusing.fusion import Partition
from trnlab.compiler.fusing.groups import FusionGroup, GroupKind, ValueClass, resident
from trnlab.compiler.fusing.tiles import TileSpace
from trnlab.graph.ir import Value
from trnlab.isa.base import Engine
from trnlab.kernels import residence
from trnlab.kernels.blocks import dma_load, dma_store
from trnlab.kernels.view import HbmView, TilePart, rectangle, together, view_of
from trnlab.numerics.dtypes import DType, float32, int32
from trnlab.program import AP, Builder, hbm_view
from trnlab.program.strided import collapsed

MOST_KEPT = 1024  # blocks of rows of which what varies along them is kept
WINDOW = 64  # of them, that are loaded at once, or stored
MANY = 128  # from which on that is worth it: a transfer of one block takes as long as one of several


class TileLoader:
    """Loads and stores of one group; `ports` are the routine's HBM parameters by the value in memory behind them."""

    def __init__(
        self,
        b: Builder,
        group: FusionGroup,
        part: Partition,
        ports: dict[Value, AP],
        wide: TileSpace,
        narrow: TileSpace,
    ):
        self.b, self.group, self.part, self.ports = b, group, part, ports
        self.wide, self.narrow = wide, narrow
        self._numbers: dict[tuple[str, DType], AP] = {}
        self._kept: dict[Value, AP] = {}  # scalars and columns, loaded once
        self._kept_rows: dict[tuple[Value, int], AP] = {}  # along rows, of all of them: [128, blocks of rows]
        self._windows: dict[tuple[Value, int], int] = {}  # of those, windows that are loaded
        self._row_results: dict[Value, AP] = {}  # of many rows, that are stored together
        self._of_rows: dict[Value, tuple[tuple[int, int], AP]] = {}
        self._of_cols: dict[Value, tuple[tuple[int, int], AP]] = {}
        self._of_sweep: dict[Value, AP] = {}
        self._early: dict[tuple[Value, int, int], AP] = {}  # of a later sweep, by its first row and column
        self.column_sums = ColumnSums(b)
        self.totals: dict[Value, Moments | Extremes | SoftmaxStatistics | SumsOfSquares] = {}
        self.in_order = group.kind is GroupKind.ROWS  # the last columns of a row come last
        # whether it is an epilogue whose tiles begin at each 128th row: of one product, or one group of channels
        anchor = group.ops[0].attrs if group.ops else {}
        alone = not anchor.get("lhs_batching_dimensions") and anchor.get("feature_group_count", 1) == 1
        self._in_blocks = alone and group.kind in (GroupKind.DOT, GroupKind.CONVOLUTION)
        self.kept: RowCache | None = None
        self.runs: RunTiles | None = None
        self._split: dict[tuple[Value, int, int], tuple[ValueView, int] | None] = {}  # what every tile asks again
        self._homes: dict[tuple[Value, int, int], AP | None] = {}
        self.storing = Engine.GPSIMD
        self.passes = 1  # over all rows: several where the loop over columns is the outer one

    def sibling(self) -> TileLoader:
        """Another one for the next tile of the same loop, with the same numbers, columns and sums."""
        twin = TileLoader(self.b, self.group, self.part, self.ports, self.wide, self.narrow)
        twin._numbers, twin._kept, twin.column_sums = self._numbers, self._kept, self.column_sums
        twin.totals, twin.kept, twin.runs, twin._kept_rows = self.totals, self.kept, self.runs, self._kept_rows
        twin._windows, twin._row_results = self._windows, self._row_results
        twin._split, twin._homes = self._split, self._homes
        twin.storing, twin.passes = self.storing, self.passes
        return twin

    def outer_class(self, value: Value) -> ValueClass:
        """Along what a value from outside varies in a sweep."""
        alone = self.runs is not None and self.runs.is_alone(value)
        return ValueClass.ROW if alone else self.group.outer[value]

    def prepare(self, other: TileLoader) -> None:
        """Load before the loop whatever `other`, a trial run of the same group, kept throughout."""
        for number, kind in other._numbers:
            self.constant(float(number), 128, kind)
        for dtype in other.column_sums.ones:
            self.column_sums.ones_of(dtype)
        for value in other._kept:
            self._keep(value)
        for value, rows in other._kept_rows:
            self._keep_rows(value, rows)
        for value, tile in other._row_results.items():
            self._results_of_rows(value, tile.free * 128)
        self.totals.update({value: totals.again(self.b) for value, totals in other.totals.items()})
        if self.runs is not None and other.runs is not None:
            self.runs.prepare(other.runs)

    # -- loads --------------------------------------------------------------------------------------------------
    def constant(self, number: float, rows: int, dtype: DType = float32) -> AP:
        """A number in every partition, [P, 1]."""
        key = repr(number), dtype  # -0.0 is another number than 0.0, and NaN equals NaN
        if key not in self._numbers:
            tile = self.b.tile((128, 1), dtype, name="number")
            self.b.memset(dst=tile, value=number)
            self._numbers[key] = tile
        return self._numbers[key][:rows]

    def load(self, value: Value, frame: SweepSlice) -> float | AP:
        """A value from outside, for the rows and columns of the frame."""
        number = self.part.splat(value)
        if number is not None:
            return number
        if self.runs is not None and value in self.runs.of:
            return self.runs.tile(value, frame)
        cls = self.outer_class(value)
        if cls is ValueClass.SCALAR:
            return self._keep(value)[: frame.rows]
        if cls is ValueClass.ROW:
            return self.load_rows(value, frame, None)
        if cls is ValueClass.COL and frame.domain.parts == 1 and resident(value, self.group):
            return self._keep(value)[: frame.rows, frame.col : frame.col + frame.cols]
        if cls is ValueClass.COL and (self.passes > 1 or self.group.kind is not GroupKind.ROWS):
            return self._columns(value, frame)[: frame.rows]
        at_home = self.at_home(value, frame)
        if at_home is not None:
            return at_home
        if self.kept is not None and (kept := self.kept.find(value, frame)) is not None:
            return kept
        if value not in self._of_sweep:
            early = self._early.pop((value, frame.row, frame.col), None)
            if early is not None:
                self._of_sweep[value] = early
                return early
            kept = self.kept.take(value, frame) if self.kept is not None else None
            self.wide.expected[value.dtype.itemsize] -= cls is ValueClass.FULL
            tile = self.wide.take(frame.rows, frame.cols, value.dtype) if kept is None else kept
            self._fill(tile, value, cls, frame)
            if kept is not None:
                return kept
            self._of_sweep[value] = tile
        return self._of_sweep[value]

    def load_early(self, value: Value, frame: SweepSlice) -> None:
        """Load a full value for a sweep that comes later."""
        if self.at_home(value, frame) is None:
            tile = self.wide.take(frame.rows, frame.cols, value.dtype)
            self._fill(tile, value, ValueClass.FULL, frame)
            self._early[value, frame.row, frame.col] = tile

    def at_home(self, value: Value, frame: SweepSlice) -> AP | None:
        """The frame's part of a full value that stays in SBUF, where it lies; None for one that does not."""
        if not self.b.residents:
            return None
        key = value, frame.domain.rows, frame.domain.cols
        if key not in self._homes:
            self._homes[key] = self._home(*key)
        blocks = self._homes[key]
        if blocks is None or frame.row % 128 or frame.domain.parts > 1 or frame.domain.flat:
            return None
        return blocks[: frame.rows, frame.row // 128, frame.col : frame.col + frame.cols]

    def _home(self, value: Value, rows: int, cols: int) -> AP | None:
        """All of such a value as [128, blocks, columns]."""
        base = self.part.strided(value).base
        resident = residence.of(self.b, self.ports[base].buffer) if base in self.ports else None
        split = self._split_rows(value, rows, cols) if resident is not None else None
        return resident.blocks(*split) if resident is not None and split is not None else None

    def _split_rows(self, value: Value, rows: int, cols: int) -> tuple[ValueView, int] | None:
        """How a value lies in memory, as rows and columns (`strided.split_rows`)."""
        key = value, rows, cols
        if key not in self._split:
            self._split[key] = split_rows(self.part.strided(value), rows, cols)
        return self._split[key]

    def release(self, value: Value) -> None:
        """The last reader in this sweep is done with a value from outside."""
        tile = self._of_sweep.pop(value, None)
        if tile is not None:
            self.wide.give(tile)

    def load_rows(self, value: Value, frame: SweepSlice, dtype: DType | None) -> AP:
        """A value that varies along rows only, [P, 1]."""
        in_blocks = self._in_blocks or (dtype is None and self._has_many(frame.domain))
        if in_blocks:
            assert frame.row % 128 == 0, frame
            kept = self._keep_rows(value, frame.domain.rows, frame.row // 128 // WINDOW)
            if kept is not None:
                return kept[: frame.rows, frame.row // 128 : frame.row // 128 + 1]
        key = (frame.row, frame.rows)
        if value in self._of_rows:
            if self._of_rows[value][0] == key:
                return self._of_rows[value][1]
            self.narrow.give(self._of_rows.pop(value)[1])
        seen = self.part.strided(value)
        dims = _row_dims(seen, frame.domain.rows)
        view = HbmView(self.ports[seen.base].buffer, seen.offset, (*seen.shape[:dims], 1), (*seen.strides[:dims], 1))
        tile = self.narrow.take(frame.rows, 1, value.dtype)
        count = frame.rows // frame.domain.parts
        pieces = [rectangle(view, dims, frame.row, count, 0, 1)] * frame.domain.parts
        for piece in together(pieces, count):
            self._dma_in(tile[piece.partition : piece.partition + piece.partitions], piece.ap)
        self._of_rows[value] = (key, tile)
        return tile

    def number(self, value: Value, frame: SweepSlice) -> AP | None:
        """A value of which a sweep sees one element of each row, in float32 [P, 1]; None for all others."""
        return self.runs.number(value, frame) if self.runs is not None else None

    def _has_many(self, domain: Domain) -> bool:
        """Whether a loop meets so many blocks of rows that what varies along them is transferred for several."""
        blocks = -(-domain.rows // 128)
        return self.in_order and domain.parts == 1 and blocks * self.passes >= MANY and blocks <= MOST_KEPT

    def words(self, value: Value) -> AP:
        """All elements of a small value in every partition, [128, F]; loaded once."""
        return self._keep(value)

    def share_row(self, other: TileLoader) -> None:
        """Use what another one has loaded for the rows at hand."""
        self._of_rows = other._of_rows

    def leave_row(self) -> None:
        """Leave that to the other one."""
        self._of_rows = {}

    def end_row(self) -> None:
        """The rows at hand are done."""
        for _, tile in self._of_rows.values():
            self.narrow.give(tile)
        self._of_rows = {}

    def table(self, value: Value, frame: SweepSlice) -> AP:
        """The columns of the frame of all rows of a table [V, C]."""
        seen = self.part.strided(value)
        rows, cols = seen.strides
        dims = ((rows, seen.shape[0]), (cols, frame.cols))
        return hbm_view(self.ports[seen.base].buffer, seen.offset + frame.col * cols, dims)

    def _columns(self, value: Value, frame: SweepSlice) -> AP:
        """The frame's columns of a value that varies along them only; kept until others are asked for."""
        place, tile = self._of_cols.get(value, (None, None))
        if tile is None or place != (frame.col, frame.cols):
            if tile is not None:
                self.wide.give(tile)
            tile = self.wide.take(128, frame.cols, value.dtype)
            self._fill(tile, value, ValueClass.COL, SweepSlice(frame.domain, 0, 128, frame.col, frame.cols))
            self._of_cols[value] = (frame.col, frame.cols), tile
        return tile

    def _keep(self, value: Value) -> AP:
        if value not in self._kept:
            seen = self.part.strided(value)
            buffer = self.ports[seen.base].buffer
            if self.outer_class(value) is ValueClass.SCALAR:
                count = 1 if self.part.is_scalar(value) else value.type.size
                tile = self.b.tile((128, count), value.dtype, name="scalar")
                self._dma_in(tile, hbm_view(buffer, seen.offset, ((0, 128), (1, count))))
            else:
                cols = self.group.cols
                assert cols is not None
                tile = self.b.tile((128, cols), value.dtype, name="columns")
                view = _columns_view(seen, self.ports[seen.base], 128, cols)
                for piece in rectangle(view, 1, 0, 128, 0, cols):
                    self._dma_in(tile[:, piece.col : piece.col + piece.cols], piece.ap)
            self._kept[value] = tile
        return self._kept[value]

    def _keep_rows(self, value: Value, rows: int, window: int = 0) -> AP | None:
        """A value of all rows, those up to the end of a window loaded once; None where they are too many, or not one
        stride apart."""
        seen, blocks = self.part.strided(value), -(-rows // 128)
        apart = collapsed(tuple(zip(seen.strides, seen.shape))[: _row_dims(seen, rows)])
        if blocks > MOST_KEPT or len(apart) != 1:
            return None
        if (value, rows) not in self._kept_rows:
            tile = self.b.tile((128, blocks), value.dtype, name="rows")
            self._kept_rows[value, rows] = tile
            self._windows[value, rows] = 0
        tile = self._kept_rows[value, rows]
        while self._windows[value, rows] <= window:
            start = self._windows[value, rows] * WINDOW
            self._load_window(tile, value, apart[0][0], rows, start, min(start + WINDOW, blocks))
            self._windows[value, rows] += 1
        return tile

    def _load_window(self, tile: AP, value: Value, step: int, rows: int, start: int, end: int) -> None:
        """Load blocks [start, end) of a value of all rows, which are `step` apart."""
        seen, full = self.part.strided(value), min(rows // 128, end)
        for height, first, count in ((128, start, full - start), (rows % 128, full, end - full)):
            if height and count > 0:
                at = seen.offset + first * 128 * step
                src = hbm_view(self.ports[seen.base].buffer, at, ((step, height), (128 * step, count)))
                self._dma_in(tile[:height, first : first + count], src)

    def _fill(self, tile: AP, value: Value, cls: ValueClass, frame: SweepSlice) -> None:
        if cls is ValueClass.COL and frame.domain.parts == 1 and self._count(tile, value, frame):
            return
        for piece in self._pieces(value, cls, frame):
            part = tile[piece.partition : piece.partition + piece.partitions, piece.col : piece.col + piece.cols]
            self._dma_in(part, piece.ap)

    def _count(self, tile: AP, value: Value, frame: SweepSlice) -> bool:
        """Make the columns of a value that counts them, on GpSimd; False for a value that has to be loaded."""
        seen, domain = self.part.strided(value), frame.domain
        if seen.base.op is None or seen.base.op.name != "iota" or value.dtype is not int32:
            return False
        dims = _columns_view(seen, self.ports[seen.base], 1, domain.cols).collapsed()
        step = dims[0][0] if len(dims) == 1 else 0
        if step > 0:
            self.b.iota(dst=tile, pattern=((step, frame.cols),), offset=seen.offset + frame.col * step)
        return step > 0

    def _pieces(self, value: Value, cls: ValueClass, frame: SweepSlice) -> Iterator[TilePart]:
        """The frame's part of a value, as access patterns."""
        seen, domain = self.part.strided(value), frame.domain
        port = self.ports[seen.base]
        if cls is ValueClass.COL:
            view, rows = _columns_view(seen, port, domain.rows, domain.cols), 1
        elif domain.flat:
            flat = seen.reshape((prod(seen.shape),))
            assert flat is not None, "groups without columns read what is a run of elements"
            step = flat.strides[0]
            start = flat.offset + domain.offset * step
            view, rows = HbmView(port.buffer, start, (domain.rows, domain.cols), (domain.cols * step, step)), 1
        else:
            split = self._split_rows(value, domain.rows, domain.cols)
            if split is None:
                yield from self._row_by_row(seen, frame)
                return
            seen, rows = split
            view = view_of(port, seen)
        yield from parts_of_sweep(view, rows, frame)

    def _row_by_row(self, seen: ValueView, frame: SweepSlice) -> Iterator[TilePart]:
        """For a look whose dimensions do not end where the rows do."""
        view = view_of(self.ports[seen.base], seen.expand(0, 1))
        for i in range(frame.rows):
            start = (frame.row + i) * frame.domain.cols + frame.col
            for piece in rectangle(view, 1, 0, 1, start, frame.cols):
                yield replace(piece, partition=i)

    def _dma_in(self, dst: AP, src: AP) -> None:
        dma_load(self.b, dst, src)

    # -- stores -------------------------------------------------------------------------------------------------
    def store(self, value: Value, tile: AP, frame: SweepSlice) -> None:
        """Write a computed value out; the tile lies in SBUF."""
        domain, port = frame.domain, self.ports[value]
        count = frame.rows // domain.parts
        if value.type.size != self.group.size:
            if frame.first_cols and self._has_many(domain):
                self._store_rows(value, tile, frame)
            elif frame.first_cols:
                rows = hbm_view(port.buffer, frame.row, ((1, count), (1, 1)))
                dma_store(self.b, rows, tile[:count], self.storing)
            return
        start = domain.offset + frame.row * domain.cols + frame.col
        parts = ((domain.width, domain.parts),) if domain.parts > 1 else ()
        dma_store(
            self.b, hbm_view(port.buffer, start, (*parts, (domain.cols, count), (1, frame.cols))), tile, self.storing
        )

    def _store_rows(self, value: Value, tile: AP, frame: SweepSlice) -> None:
        """Keep a value of the rows at hand until it can be written out with those of the rows before."""
        block, hold = frame.row // 128, self._results_of_rows(value, frame.domain.rows)
        self.b.tensor_copy(dst=hold[: frame.rows, block : block + 1], src=tile[: frame.rows])
        if (block + 1) % WINDOW and not frame.last_rows:
            return
        start, full = block // WINDOW * WINDOW, (frame.row + frame.rows) // 128
        for height, first, count in ((128, start, full - start), (frame.rows, full, block + 1 - full)):
            if count > 0:
                target = hbm_view(self.ports[value].buffer, first * 128, ((1, height), (128, count)))
                dma_store(self.b, target, hold[:height, first : first + count], self.storing)

    def _results_of_rows(self, value: Value, rows: int) -> AP:
        """Where values of all rows wait, [128, blocks of rows]."""
        if value not in self._row_results:
            blocks = -(-rows // 128)
            tile = self.b.tile((128, blocks), value.dtype, name="results")
            self._row_results[value] = tile
        return self._row_results[value]

    def moments(self, value: Value, data: AP, frame: SweepSlice) -> None:
        """Take the frame's part of the mean and variance of each row; where it ends, write them out."""
        domain = frame.domain
        if value not in self.totals:
            self.totals[value] = Moments(self.b, domain.rows, domain.width, domain.parts)
        self.totals[value].add(frame.row, data)
        if frame.last_cols and self.in_order:
            self.totals[value].store(frame.row, self.ports[value])

    def softmax_statistics(self, value: Value, data: AP, frame: SweepSlice) -> None:
        """Take the frame's part of the largest element of each row and of the sum of exponentials, as `moments`."""
        if value not in self.totals:
            self.totals[value] = SoftmaxStatistics(self.b, frame.domain.rows, self.wide.width)
        totals = self.totals[value]
        assert isinstance(totals, SoftmaxStatistics)
        totals.add(frame.row, data)
        if frame.last_cols and self.in_order:
            totals.store(frame.row, self.ports[value])

    def sum_of_squares(self, value: Value, data: AP, frame: SweepSlice) -> None:
        """Take the frame's part of the sum of squares of each row, as `moments`."""
        if value not in self.totals:
            self.totals[value] = SumsOfSquares(self.b, frame.domain.rows, frame.domain.width, self.wide.width)
        self.totals[value].add(frame.row, data)
        if frame.last_cols and self.in_order:
            self.totals[value].store(frame.row, self.ports[value])

    def extremes(self, value: Value, data: AP, frame: SweepSlice, op: str) -> None:
        """Take the frame's part of the largest ("max") or smallest element of each row; `finish` writes them out."""
        if value not in self.totals:
            self.totals[value] = Extremes(self.b, frame.domain.rows, op, value.dtype)
        self.totals[value].add(frame.row, data)

    def finish(self) -> None:
        """Write out what was found out about rows, where their columns came in no order."""
        for value, totals in self.totals.items():
            for row in range(0, totals.rows, 128):
                totals.store(row, self.ports[value])
        self.column_sums.finish(self.ports, self.wide)

    def column_sum(self, value: Value, data: AP, frame: SweepSlice) -> None:
        """Add the rows of `data` to the sums over all rows; write them out after the last rows."""
        self.column_sums.add(value, data, frame, self.ports[value], self.wide)


def _row_dims(seen: ValueView, rows: int) -> int:
    """How many leading dimensions of a row value are its rows."""
    total, dims = 1, 0
    for count in seen.shape:
        if total == rows:
            break
        total *= count
        dims += 1
    assert total == rows, (seen.shape, rows)
    return dims


def _columns_view(seen: ValueView, port: AP, rows: int, cols: int) -> HbmView:
    """[rows, C]: the same columns in every row."""
    dims = len(seen.shape)
    total = 1
    while total < cols:
        dims -= 1
        total *= seen.shape[dims]
    assert total == cols, (seen.shape, cols)
    return HbmView(port.buffer, seen.offset, (rows, *seen.shape[dims:]), (0, *seen.strides[dims:]))
