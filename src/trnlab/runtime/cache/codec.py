# SPDX-License-Identifier: Apache-2.0
"""Programs as plain data: a JSON tree of known classes, and arrays beside it. Loading one imports and calls nothing.

How Python values look in JSON: None, booleans, integers, finite floats and strings are themselves; a tuple is an
array; and everything else is an object with one member that names what it is:

    {"list": [...]}  {"dict": [[key, value], ...]}  {"float": "nan" | "inf" | "-inf"}  {"dtype": "bfloat16"}
    {"array": index of an array}  {"Memory": 1}  {"Work": [fields in order]}

Integer arrays are narrowed for storage to the smallest type that holds them, column by column, and widened on load.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from trnlab.errors import Location
from trnlab.isa.base import Engine, Memory, Work
from trnlab.numerics.dtypes import ALL, DType, dtype
from trnlab.program.access import Buffer, Grid
from trnlab.program.changes import PassChange, RecordingSize, Spill
from trnlab.program.routine import Call, Print, Program, ProgramTensor, Routine
from trnlab.runtime.cache.fields import Test, tests_of

Array = np.ndarray[Any, Any]
Json = Any  # what the json module reads and writes

# The names are those in files, whatever the classes are called.
CLASSES: dict[str, type[Any]] = {
    "Program": Program,
    "Routine": Routine,
    "Tensor": ProgramTensor,
    "Call": Call,
    "Buffer": Buffer,
    "Grid": Grid,
    "Work": Work,
    "Location": Location,
    "Print": Print,
    "Change": PassChange,
    "Size": RecordingSize,
    "Spill": Spill,
}
_ENUMS: dict[str, type[Any]] = {"Memory": Memory, "Engine": Engine}
_NAMES = {kind: name for name, kind in (CLASSES | _ENUMS).items()}
_HOST_DTYPES = [np.dtype(name) for name in ("int64", "uint64", "float64", "bool")]  # beyond the chip's own
_ARRAY_DTYPES = {d.name: d for d in (*(d.numpy for d in ALL), *_HOST_DTYPES)}
ROWS = 1 << 14  # of a table, that are narrowed at once
_SIGNED, _UNSIGNED = ("int8", "int16", "int32", "int64"), ("uint8", "uint16", "uint32", "uint64")


def field_names(cls: type[Any]) -> tuple[str, ...]:
    """The fields that are stored: all but memos."""
    return tuple(f.name for f in fields(cls) if not f.name.startswith("_"))


@functools.cache
def _fields_of(tag: str) -> tuple[tuple[str, Test], ...]:
    """The fields that are stored of a class by its name in files, and a test for the type of each."""
    names = field_names(CLASSES[tag])
    return tuple(zip(names, tests_of(CLASSES[tag], names)))


def schema() -> dict[str, list[str]]:
    """The classes and fields of this version; a file with another schema is of another version."""
    return {name: list(field_names(cls)) for name, cls in CLASSES.items()}


@dataclass
class Encoder:
    """Turns values into JSON, collecting arrays on the way."""

    arrays: list[Array] = field(default_factory=list)

    def encode(self, value: Any) -> Json:
        """`value` as JSON. Raises TypeError for a type that the format does not know."""
        if value is None or type(value) in (bool, int, str):
            return value
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else {"float": str(float(value))}
        if isinstance(value, tuple):
            return [self.encode(v) for v in value]
        if isinstance(value, np.ndarray):
            self.arrays.append(value)
            return {"array": len(self.arrays) - 1}
        if isinstance(value, np.generic):
            return self.encode(value.item())
        return self._tagged(value)

    def _tagged(self, value: Any) -> Json:
        if isinstance(value, DType):
            return {"dtype": value.name}
        if isinstance(value, list):
            return {"list": [self.encode(v) for v in value]}
        if isinstance(value, dict):
            return {"dict": [[self.encode(k), self.encode(v)] for k, v in value.items()]}
        name = _NAMES.get(type(value), "")
        if name in _ENUMS:
            return {name: int(value)}
        if name in CLASSES:
            return {name: [self.encode(getattr(value, f)) for f, _ in _fields_of(name)]}
        raise TypeError(f"{type(value).__name__} has no place in an executable file")


def decode(tree: Json, arrays: Sequence[Array]) -> Any:
    """The value that `Encoder.encode` was given. Raises ValueError for a tree that is not of this format."""
    if isinstance(tree, list):
        return tuple(decode(v, arrays) for v in tree)
    if not isinstance(tree, dict):
        return tree
    if len(tree) != 1:
        raise ValueError("an object with more than one member")
    ((tag, body),) = tree.items()
    if tag in CLASSES:
        return _object(tag, [decode(v, arrays) for v in body])
    if tag in _ENUMS:
        return _ENUMS[tag](body)
    if tag not in _PLAIN:
        raise ValueError(f"unknown object {tag!r}")
    return _PLAIN[tag](body, arrays)


def _object(tag: str, values: list[Any]) -> Any:
    """An object of a class, each field of the type that the class declares."""
    told = {}
    for (name, is_sound), value in zip(_fields_of(tag), values, strict=True):
        if not is_sound(value):
            raise ValueError(f"{name} of a {tag} that is a {type(value).__name__}")
        told[name] = value
    return CLASSES[tag](**told)


_PLAIN: dict[str, Callable[[Json, Sequence[Array]], Any]] = {
    "float": lambda body, arrays: float(body),
    "dtype": lambda body, arrays: dtype(body),
    "list": lambda body, arrays: [decode(v, arrays) for v in body],
    "dict": lambda body, arrays: {decode(k, arrays): decode(v, arrays) for k, v in body},
    "array": lambda body, arrays: arrays[body],
}


# -- arrays ---------------------------------------------------------------------------------------------------------


def pack(array: Array) -> tuple[Json, list[bytes]]:
    """An array as (its entry in the table of arrays, raw bytes per column). Raises TypeError for an unknown dtype."""
    if array.dtype.name not in _ARRAY_DTYPES:
        raise TypeError(f"arrays of {array.dtype} have no place in an executable file")
    stored = _narrowed_columns(array) if _is_table(array) else [array.astype(_narrowest(array), copy=False)]
    entry = {"dtype": array.dtype.name, "shape": list(array.shape), "columns": [c.dtype.name for c in stored]}
    return entry, [np.ascontiguousarray(c).tobytes() for c in stored]


def _narrowed_columns(table: Array) -> list[Array]:
    """The columns of a table of integers, some rows of all at a time, which stay in the processor's caches."""
    ends = np.stack([table.min(axis=0), table.max(axis=0)], axis=1)
    columns = [np.empty(len(table), _narrowest(pair)) for pair in ends]
    for first in range(0, len(table), ROWS):
        rows = table[first : first + ROWS]
        for i, column in enumerate(columns):
            column[first : first + ROWS] = rows[:, i]
    return columns


def unpack(entry: Json, data: memoryview, filled: bool = True) -> tuple[Array, int]:
    """The array that starts at the head of `data`, and how many bytes it took. Raises ValueError or KeyError.

    filled: whether its values are wanted, too; without them it takes no time.
    """
    shape, full = tuple(entry["shape"]), _ARRAY_DTYPES[entry["dtype"]]
    stored = [_ARRAY_DTYPES[name] for name in entry["columns"]]
    if not all(type(n) is int and n >= 0 for n in shape) or math.prod(shape) > len(data):
        raise ValueError("an array larger than the file")  # an element takes a byte at least
    array = np.empty(shape, full)
    columns, used = _columns(array), 0
    if len(columns) != len(stored):
        raise ValueError("an array with missing columns")
    for column, narrow in zip(columns, stored):
        values = np.frombuffer(data, narrow, column.size, used).reshape(column.shape)
        if filled:
            column[...] = values
        used += column.size * narrow.itemsize
    return array, used


def _columns(array: Array) -> list[Array]:
    """The pieces that are narrowed on their own: tables of integers by column, everything else whole."""
    return [array[:, i] for i in range(array.shape[1])] if _is_table(array) else [array]


def _is_table(array: Array) -> bool:
    return array.ndim == 2 and array.dtype.kind in "iu" and array.shape[1] <= 64 < array.shape[0]


def _narrowest(array: Array) -> str:
    """Name of the smallest integer dtype that holds the values; of the array's own for anything else."""
    if array.dtype.kind not in "iu" or not array.size:
        return str(array.dtype.name)
    low, high = int(array.min()), int(array.max())
    names = _SIGNED if array.dtype.kind == "i" else _UNSIGNED
    return next(n for n in names if np.iinfo(n).min <= low and high <= np.iinfo(n).max)
