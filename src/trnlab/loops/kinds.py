# SPDX-License-Identifier: Apache-2.0
"""Types of what loops take and return, known without importing Numba.

`void(i64, float32)` is the signature of a loop that compiled code calls. A loop that Python calls takes arrays, too:
what it is called with has a name, such as "int64:1C" for a dense row of int64 that may be written, and arguments are
handed over as words of 64 bits, see `words`; what it returns comes as words, too, an array as Numba has its header.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np


@dataclass(frozen=True)
class LoopType:
    """A type by Numba's name."""

    name: str

    def __call__(self, *arguments: LoopType) -> Signature:
        """The signature of what takes these and returns this."""
        return Signature(self, arguments)

    def numba(self) -> Any:
        """Numba's."""
        return getattr(_numba(), self.name)


@dataclass(frozen=True)
class Signature:
    """What a loop behind a symbol takes and returns."""

    returns: LoopType
    arguments: tuple[LoopType, ...]

    def numba(self) -> Any:
        """Numba's."""
        return self.returns.numba()(*(argument.numba() for argument in self.arguments))


i64, float32, void, i32 = LoopType("int64"), LoopType("float32"), LoopType("void"), LoopType("int32")


def _numba() -> Any:
    return import_module("numba.types")


_PLAIN = {int: "int64", bool: "bool", float: "float64", type(None): "none"}
_OF_NUMPY = {np.dtype(name).type: name for name in ("int64", "float64", "float32", "int32", "uint64", "uint32")}
_OF_NUMPY[np.bool_] = "bool"
_DENSE, _TRANSPOSED, _ALIGNED, _WRITABLE = 0x1, 0x2, 0x100, 0x400  # of NumPy's flags
_FLAGS = _DENSE | _TRANSPOSED | _ALIGNED | _WRITABLE


def shape_of(value: Any) -> Any:
    """What decides the name of a value, quickly: equal for values with one name."""
    if type(value) is np.ndarray:
        return value.dtype, value.ndim, value.flags.num & _FLAGS
    if isinstance(value, tuple):
        return (type(value), *map(shape_of, value))
    return type(value)


def name_of(value: Any) -> str | None:
    """The name of a value's type; None of what only Numba can pass."""
    kind = type(value)
    if kind is np.ndarray:
        return _array_name(value)
    if isinstance(value, tuple):
        names = [name_of(part) for part in value]
        if None in names:
            return None
        own = "" if kind is tuple else f"{kind.__module__}.{kind.__qualname__}"
        return f"{own}({', '.join(map(str, names))})"
    return _PLAIN.get(kind) or _OF_NUMPY.get(kind)


def _array_name(value: Any) -> str | None:
    flags = value.flags
    if value.dtype.type not in _NUMPY_ITEMS or not value.dtype.isnative or not flags.aligned:
        return None
    layout = "C" if flags.c_contiguous else "F" if flags.f_contiguous else "A"
    return f"{value.dtype.name}:{value.ndim}{layout}{'' if flags.writeable else 'r'}"


_INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
_NUMPY_ITEMS = {np.dtype(name).type for name in ("bool", "float32", "float64", *_INTEGERS)}


@dataclass(frozen=True)
class Name:
    """A name taken apart. parts: of a tuple, whose class is `head`, or nothing for plain ones."""

    head: str
    parts: tuple[Name, ...] | None = None

    @property
    def array(self) -> tuple[str, int, str, bool] | None:
        """The type of an array: type of its elements, dimensions, layout, and whether it may be written."""
        item, colon, rest = self.head.partition(":")
        return (item, int(rest[0]), rest[1], not rest.endswith("r")) if colon else None

    def numba(self) -> Any:
        """Numba's type."""
        types = _numba()
        if self.parts is not None:
            parts = [part.numba() for part in self.parts]
            if not self.head:
                return types.Tuple(parts)
            kind, alike = _named(self.head), len(set(parts)) == 1
            return types.NamedUniTuple(parts[0], len(parts), kind) if alike else types.NamedTuple(parts, kind)
        if (array := self.array) is not None:
            item, dimensions, layout, writable = array
            return types.Array(Name(item).numba(), dimensions, layout, readonly=not writable, aligned=True)
        return (
            types.boolean if self.head == "bool" else types.none if self.head == "none" else getattr(types, self.head)
        )


def parse(text: str) -> tuple[Name, ...]:
    """The names of "(int64:1C, int64, module.Class(int64, int64))"."""
    assert text.startswith("(")
    names, rest = _parts(text[1:])
    assert not rest, text
    return names


def _parts(text: str) -> tuple[tuple[Name, ...], str]:
    found: list[Name] = []
    while True:
        text = text.lstrip(", ")
        if text.startswith(")"):
            return tuple(found), text[1:]
        stop = next(i for i, letter in enumerate(text) if letter in ",()")
        head, text = text[:stop], text[stop:]
        if text.startswith("("):
            parts, text = _parts(text[1:])
            found.append(Name(head, parts))
        else:
            found.append(Name(head))


def _named(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


HEAD = object.__basicsize__  # bytes of an object before what it holds


def numpy_is_known() -> bool:
    """Whether an array is what NumPy's ABI says (ndarraytypes.h, PyArrayObject_fields): behind the head of the object
    the addresses of its elements, 8 bytes with the number of dimensions, the addresses of lengths and of strides."""
    probe = np.empty((3, 5), np.int64)[:, ::2]
    data, _, lengths, strides = (ctypes.c_int64.from_address(id(probe) + HEAD + 8 * i).value for i in range(4))
    found = (tuple((ctypes.c_int64 * 2).from_address(at)) for at in (lengths, strides))
    return data == probe.ctypes.data and (*found,) == (probe.shape, probe.strides)


def words(values: Sequence[Any], out: list[int]) -> None:
    """Append what compiled code takes of each value: of an array the address of what NumPy knows of it."""
    for value in values:
        kind = type(value)
        if kind is np.ndarray:
            out.append(id(value) + HEAD)
        elif kind is int or kind is bool:
            out.append(value)
        elif isinstance(value, tuple):
            words(value, out)
        elif kind is float or kind is np.float64:
            out.append(_bits("<q", "<d", value))
        elif kind is np.float32:
            out.append(_bits("<i", "<f", value))
        elif value is not None:
            number = int(value)
            out.append(number - (1 << 64) if number >= 1 << 63 else number)


def _bits(whole: str, number: str, value: float) -> int:
    return int(struct.unpack(whole, struct.pack(number, value))[0])


def count_of(name: Name) -> int:
    """Words of a value."""
    if name.parts is not None:
        return sum(map(count_of, name.parts))
    array = name.array
    return 5 + 2 * array[1] if array is not None else name.head != "none"


def value_of(name: Name, given: Iterator[int], release: Callable[[int], None]) -> Any:
    """The value of some words that a loop returned; arrays are copied, and their owners released."""
    if name.parts is not None:
        parts = [value_of(part, given, release) for part in name.parts]
        return tuple(parts) if not name.head else _named(name.head)(*parts)
    if (array := name.array) is not None:
        return _array(np.dtype(array[0]), array[1], given, release)
    if name.head == "none":
        return None
    word = next(given)
    if name.head == "bool":
        return bool(word & 1)
    if name.head == "float64":
        return struct.unpack("<d", struct.pack("<q", word))[0]
    if name.head == "float32":
        return struct.unpack("<f", struct.pack("<i", word))[0]
    return word if name.head.startswith("int") else word % (1 << 64)


def _array(item: Any, dimensions: int, given: Iterator[int], release: Callable[[int], None]) -> Any:
    owner, _, _, _, data = (next(given) for _ in range(5))
    shape = tuple(next(given) for _ in range(dimensions))
    strides = tuple(next(given) for _ in range(dimensions))
    if 0 in shape:
        found = np.empty(shape, item)
    else:
        reach = sum((count - 1) * step for count, step in zip(shape, strides)) + item.itemsize
        memory = (ctypes.c_char * reach).from_address(data)
        found = np.ndarray(shape, item, memory, strides=strides).copy()
    if owner:
        release(owner)
    return found
