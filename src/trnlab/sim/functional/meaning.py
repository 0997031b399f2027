# SPDX-License-Identifier: Apache-2.0
"""Instructions by their own definition: `Instruction.meaning` on NumPy views of simulated memory. Complete, not fast.

The interpreter falls back to this where it has no kernel, and the tests compare its kernels with it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from trnlab import isa
from trnlab.numerics.dtypes import BY_CODE, DType, tfloat32
from trnlab.numerics.rounding import narrow, widen
from trnlab.program.access import MAX_FREE_DIMS
from trnlab.program.routine import COL, Routine

Array = np.ndarray[Any, Any]
Rounder = Callable[[Array, DType], Array]


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


def execute_meaning(routine: Routine, i: int, base: Array, pitch: Array, rounder: Rounder = narrow) -> None:
    """Run instruction i of the routine through its definition; `rounder` makes a format out of float32."""
    instr = isa.BY_OPCODE[int(routine.opcode[i])]
    views: dict[str, tuple[Array, DType]] = {}
    for row in range(int(routine.first_operand[i]), int(routine.first_operand[i + 1])):
        record = routine.operands[row]
        views[instr.operands[int(record[COL["role"]])].name] = operand_array(record, base, pitch)
    arrays = {name: as_read(array, dtype) for name, (array, dtype) in views.items()}
    results = instr.meaning(arrays, dict(routine.attr_table[int(routine.attr[i])]))
    for name, value in results.items():
        target, dtype = views[name]
        exact = value.dtype == dtype.numpy and dtype.kind in "iu"
        target[...] = value if exact else rounder(value.astype(np.float32), dtype)


def as_read(array: Array, dtype: DType) -> Array:
    """An operand as instructions read it: floats as float32, integers in their own format; always a copy."""
    if dtype is tfloat32:
        return narrow(array, dtype)  # 32 bits in memory, of which the reader takes the upper 19, rounded
    return array.copy() if dtype.is_integer else widen(array, dtype)
