# SPDX-License-Identifier: Apache-2.0
"""Sums over rows, [C] in the end. The PE array multiplies rows with ones and adds up in PSUM; where PSUM has no room,
GpSimdE adds up blocks of 128 rows in SBUF first.

Shape letters: P partition (rows), F free, C columns of the sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trnlab.compiler.emission.domain import SweepSlice
from trnlab.compiler.fusing.tiles import TileSpace, tiles_bytes
from trnlab.graph.ir import Value
from trnlab.isa.base import Engine, Memory
from trnlab.kernels.blocks import BANK, dma_store
from trnlab.numerics.dtypes import DType, bfloat16, float32
from trnlab.program import AP, Builder, hbm_view

HALF = 64  # columns of the PE array, whose results are in partitions from there on


class SumsOnArray:
    """One of them in PSUM, in a tile [1, F] for each BANK columns."""

    nbytes = 0  # of SBUF

    def __init__(self, b: Builder, totals: Sequence[AP], upper: bool = False) -> None:
        """`upper`: in the upper half of the partitions, so that two sums share their banks."""
        self.b, self.totals = b, totals
        self._half: dict[str, Any] = {"tile_position": (0, HALF), "tile_size": (128, HALF)} if upper else {}

    @classmethod
    def at(cls, b: Builder, bank: int, cols: int, *, upper: bool) -> SumsOnArray:
        """One of so many columns, in banks from that one on, which it may share with another."""
        first = HALF * upper
        whole = [
            b.psum((HALF + 1, min(BANK, cols - c)), bank=bank + c // BANK, name="sums") for c in range(0, cols, BANK)
        ]
        return cls(b, [tile[first : first + 1] for tile in whole], upper)

    def add(self, data: AP, ones: AP, first: bool, last: bool) -> None:
        """Rows [P, C]; `ones`: [P, 1] in their format."""
        exact = {"is_stationary_onezero": True} if data.dtype is float32 else {}
        for i, total in enumerate(self.totals):
            moving = data[:, i * BANK : i * BANK + total.free]
            how = {"accumulate": not first, "stop": last, **exact, **self._half}
            self.b.nc_matmul(dst=total, stationary=ones, moving=moving, **how)

    def store(self, value: Value, target: AP, col: int, space: TileSpace) -> None:
        """Write them to columns from `col` on of HBM, through tiles of a space: all rows have been seen."""
        for total in self.totals:
            out = space.take(1, total.free, value.dtype)
            self.b.tensor_copy(dst=out, src=total)
            dma_store(self.b, hbm_view(target.buffer, col, ((1, 1), (1, total.free))), out)
            space.give(out)
            col += total.free


class SumsInSbuf:
    """One of them, [P, C], whose partitions are not added up yet. `nbytes`: of a partition."""

    def __init__(self, b: Builder, rows: int, cols: int) -> None:
        """`rows`: of all there is."""
        self.b, self.nbytes = b, tiles_bytes({float32.itemsize: 1}, cols)
        self.total = b.tile((min(rows, 128), cols), float32, name="sums")

    def add(self, data: AP, first: bool) -> None:
        """Rows [P, C]."""
        total = self.total[: data.partitions]
        if first:
            self.b.tensor_copy(dst=total, src=data, engine=Engine.GPSIMD)
        else:
            self.b.tensor_tensor(dst=total, data1=total, data2=data, op="add", engine=Engine.GPSIMD)


class ColumnSums:
    """All of a loop. In a loop of its own they lie in PSUM, those of one sweep's columns; in a product's epilogue
    where `places` says, for the loop's whole rows."""

    def __init__(self, b: Builder) -> None:
        self.b = b
        self.places: dict[Value, SumsOnArray | SumsInSbuf] | None = None
        self.measuring = False  # whether places are found out
        self.ones: dict[DType, AP] = {}
        self._begun: dict[tuple[Value, int], SumsOnArray] = {}

    def ones_of(self, dtype: DType) -> AP:
        """A one in each partition, [128, 1]."""
        if dtype not in self.ones:
            self.ones[dtype] = self.b.tile((128, 1), dtype, name="ones")
            self.b.memset(dst=self.ones[dtype], value=1.0)
        return self.ones[dtype]

    def add(self, value: Value, data: AP, frame: SweepSlice, target: AP, space: TileSpace) -> None:
        """Add the rows of `data` to the sums over all rows; write them out after the last rows."""
        if data.memory is Memory.PSUM or data.dtype not in (float32, bfloat16):
            raise AssertionError("column sums read floats in SBUF")
        ones = self.ones_of(data.dtype)[: frame.rows]
        place = self._place(value, frame)
        if isinstance(place, SumsInSbuf):
            place.add(data, frame.first_rows)
            return
        place.add(data, ones, frame.first_rows, frame.last_rows)
        if frame.last_rows:
            place.store(value, target, frame.col, space)

    def _place(self, value: Value, frame: SweepSlice) -> SumsOnArray | SumsInSbuf:
        if self.measuring and self.places is not None and value not in self.places:
            self.places[value] = SumsInSbuf(self.b, frame.domain.rows, frame.domain.cols)
        if self.places is not None:
            return self.places[value]
        if frame.first_rows:
            self._begun[value, frame.col] = SumsOnArray(self.b, self._banks(frame.cols))
        return self._begun[value, frame.col]

    def _banks(self, cols: int) -> list[AP]:
        return [self.b.psum((1, min(BANK, cols - c)), float32, name="sums") for c in range(0, cols, BANK)]

    def finish(self, ports: dict[Value, AP], space: TileSpace) -> None:
        """Write out what lies in SBUF."""
        for value, place in (self.places or {}).items():
            if isinstance(place, SumsInSbuf):
                total = SumsOnArray(self.b, self._banks(place.total.free))
                total.add(place.total, self.ones_of(float32)[: place.total.partitions], True, True)
                total.store(value, ports[value], 0, space)
