# SPDX-License-Identifier: Apache-2.0
"""Instructions by their own definition: `Instruction.meaning` on NumPy views of simulated memory. Complete, not fast.

The interpreter falls back to this where it has no kernel, and the tests compare its kernels with it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from trnlab import isa
from trnlab.isa.base import Engine
from trnlab.isa.indirection import SUFFIX, index_name, offsets_of
from trnlab.numerics.dtypes import BY_CODE, DType, tfloat32
from trnlab.numerics.rounding import narrow, widen
from trnlab.program.access import MAX_FREE_DIMS
from trnlab.program.routine import COL, Routine

Array = np.ndarray[Any, Any]
Rounder = Callable[[Array, DType], Array]
Meaning = Callable[[Mapping[str, Array], Mapping[str, Any]], dict[str, Array]]


def array_at(address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """A writable array over memory at an absolute address; strides in bytes may be negative or zero."""
    low = address + sum(min(0, s * (n - 1)) for s, n in zip(strides, shape))
    high = address + sum(max(0, s * (n - 1)) for s, n in zip(strides, shape)) + dtype.itemsize
    memory: Any = (ctypes.c_char * (high - low)).from_address(low)
    return np.ndarray(shape, dtype, memory, address - low, strides)


def operand_array(record: Array, base: Array, pitch: Array) -> tuple[Array, DType]:
    """The elements of an operand record, [P, F...], and their format."""
    field = {name: int(record[i]) for name, i in COL.items()}
    dtype = BY_CODE[field["dtype"]]
    step = field["partition_step"] if field["is_hbm"] else int(pitch[field["buffer"]])
    address = int(base[field["buffer"]]) + field["start_partition"] * step + field["offset"]
    dims = [(field[f"step{d}"], field[f"count{d}"]) for d in range(MAX_FREE_DIMS)]
    shape = (field["partitions"], *(count for _, count in dims))
    strides = (step, *(s * dtype.itemsize for s, _ in dims))
    return array_at(address, shape, strides, dtype.numpy), dtype


def execute_meaning(
    routine: Routine,
    i: int,
    base: Array,
    pitch: Array,
    rounder: Rounder = narrow,
    instead: Mapping[str, Meaning] = MappingProxyType({}),
) -> None:
    """Run instruction i of the routine through its definition; `rounder` makes a format out of float32.

    instead: functions that give the same bits as the definitions of these instructions.
    """
    instr = isa.BY_OPCODE[int(routine.opcode[i])]
    records = routine.operands[int(routine.first_operand[i]) : int(routine.first_operand[i + 1])]
    named = {instr.operands[int(record[COL["role"]])].name: record for record in records}
    views = {name: operand_array(record, base, pitch) for name, record in named.items()}
    attrs = dict(routine.attr_table[int(routine.attr[i])])
    picked: dict[str, Any] = {}
    if instr.indirect:
        picked.update(_picked(routine, i, named, views, base, pitch))
    elif attrs.get("indirect") and "index" in views and attrs.get("per_row", True):
        picked.update(_rows(views, attrs))
    moves = instr.name == "dma_copy" and views["src"][1] is views["dst"][1]  # bits as they are
    arrays = {
        name: _read(picked[name].gathered() if name in picked else array, dtype, moves)
        for name, (array, dtype) in views.items()
    }
    results = instead.get(instr.name, instr.meaning)(arrays, attrs)
    for name, value in results.items():
        target, dtype = views[name]
        exact = value.dtype == dtype.numpy and (moves or dtype.kind in "iu")
        stored = value if exact else rounder(value.astype(np.float32), dtype)
        if name in picked:
            picked[name].scatter(stored)
        else:
            target[...] = stored


def _read(array: Array, dtype: DType, bits: bool) -> Array:
    return array if bits else as_read(array, dtype)


@dataclass(frozen=True)
class Picked:
    """An operand whose columns an index picks: all of the row that it may pick from, and which columns."""

    row: Array  # [P, n]
    columns: Array  # [P, F]
    shape: tuple[int, ...]

    def gathered(self) -> Array:
        """Its elements, in the operand's shape. Raises IndexError for a column that does not exist."""
        if self.columns.min() < 0 or self.columns.max() >= self.row.shape[1]:
            raise IndexError(f"column {self.columns.min()}..{self.columns.max()} of {self.row.shape[1]}")
        return np.take_along_axis(self.row, self.columns, 1).reshape(self.shape)

    def scatter(self, values: Array) -> None:
        """Write them."""
        np.put_along_axis(self.row, self.columns, values.reshape(self.columns.shape), 1)


@dataclass(frozen=True)
class IndexedRows:
    """The rows of a table that an index names, which are all that a transfer looks at."""

    table: Array
    numbers: Array

    def gathered(self) -> Array:
        """These rows, one after the other."""
        return self.table[self.numbers]

    def scatter(self, values: Array) -> None:
        """Write them; of a row that is named twice, the last stays."""
        self.table[self.numbers] = values


@dataclass(frozen=True)
class Renumbered:
    """The index of a transfer into the rows of `IndexedRows`."""

    numbers: Array

    def gathered(self) -> Array:
        """The index."""
        return self.numbers


def _rows(views: Mapping[str, tuple[Array, DType]], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """A large table as the rows that are used of it; nothing where a row does not exist and that is an error."""
    name = "dst" if attrs["indirect"] == "dst" else "src" if "src" in views else "src0"
    table, index = views[name][0], views["index"][0]
    wanted = index.reshape(-1).astype(np.int64)
    inside = (wanted >= 0) & (wanted < len(table))
    if not inside.any() or (attrs["oob_mode"] == "error" and not inside.all()):
        return {}
    numbers = np.where(inside, np.cumsum(inside) - 1, int(inside.sum())).astype(index.dtype).reshape(index.shape)
    return {name: IndexedRows(table, wanted[inside]), "index": Renumbered(numbers)}


def _picked(
    routine: Routine,
    i: int,
    named: Mapping[str, Array],
    views: Mapping[str, tuple[Array, DType]],
    base: Array,
    pitch: Array,
) -> dict[str, Picked]:
    """The operands of an instruction that have an index, by name."""
    found, engine = {}, Engine(int(routine.engine[i]))
    for name, (array, dtype) in views.items():
        index = views.get(index_name(name))
        if index is None or name.endswith(SUFFIX):
            continue
        record, count = named[name], array[0].size
        step, offset = int(pitch[record[COL["buffer"]]]), int(record[COL["offset"]])
        address = int(base[record[COL["buffer"]]]) + int(record[COL["start_partition"]]) * step + offset
        length = (routine.buffers[int(record[COL["buffer"]])].nbytes - offset) // dtype.itemsize
        row = array_at(address, (len(array), length), (step, dtype.itemsize), dtype.numpy)
        found[name] = Picked(row, offsets_of(index[0], count, engine)[: len(array)], array.shape)
    return found


def as_read(array: Array, dtype: DType) -> Array:
    """An operand as instructions read it: floats as float32, integers in their own format; always a copy."""
    if dtype is tfloat32:
        return narrow(array, dtype)  # 32 bits in memory, of which the reader takes the upper 19, rounded
    return array.copy() if dtype.is_integer else widen(array, dtype)
