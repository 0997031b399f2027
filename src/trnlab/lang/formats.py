# SPDX-License-Identifier: Apache-2.0
"""Number formats as kernels name them: strings that NumPy also understands.

Source: nki/api/nki.api.shared.rst and nki.language of aws-neuron/aws-neuron-sdk.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from numpy._core import _dtype as numpy_names  # type: ignore[attr-defined]

from trnlab.errors import ConstraintError
from trnlab.numerics import dtypes
from trnlab.numerics.dtypes import DType

_PACKED = {"float8_e5m2_x4": 4, "float8_e4m3fn_x4": 4, "float4_e2m1fn_x4": 2}  # bytes of one element


class Format(str):
    """The name of a number format. Equal to its name, to the NumPy dtype and to the NumPy scalar type."""

    __slots__ = ()

    @property
    def dtype(self) -> np.dtype[Any]:
        """What NumPy calls it."""
        return numpy_dtype(str(self))

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _PACKED.get(str(self)) or self.dtype.itemsize

    @property
    def name(self) -> str:
        """The bare name."""
        return str(self)

    @property
    def type(self) -> type[np.generic]:
        """The NumPy scalar type."""
        return self.dtype.type

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return str.__eq__(self, other)
        try:
            return str.__eq__(self, format_of(other))
        except (TypeError, KeyError):
            return NotImplemented

    def __ne__(self, other: object) -> bool:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    __hash__ = str.__hash__

    def __call__(self, value: Any) -> Any:
        """A number or an array in this format, as with a NumPy scalar type."""
        return self.dtype.type(value)

    def __repr__(self) -> str:
        return str(self)


_NUMPY: dict[str, np.dtype[Any]] = {"bool": np.dtype(np.uint8), "tfloat32": np.dtype(np.float32)}
NAMES = (
    "bool",
    "int8",
    "int16",
    "int32",
    "uint8",
    "uint16",
    "uint32",
    "float16",
    "float32",
    "bfloat16",
    "tfloat32",
    "float8_e4m3",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e8m0fnu",
    *_PACKED,
)
FORMATS = {name: Format(name) for name in NAMES}
_NARROWED = {"int64": "int32", "uint64": "uint32", "float64": "float32", "bool_": "bool"}


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a format by name."""
    if name in _NUMPY:
        return _NUMPY[name]
    if name in _PACKED:
        return np.dtype(f"u{_PACKED[name]}")
    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name, name))
    return found


@functools.cache
def host_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a format in arrays of the caller: packed ones are records that nothing casts by accident.

    A record's scalar type bears the format's name, which views, slices and copies keep.
    """
    if name not in _PACKED:
        return numpy_dtype(name)
    lanes = [(f"{name}.{byte}", np.uint8) for byte in range(_PACKED[name])]
    return np.dtype((type(name, (np.void,), {"__module__": __name__}), lanes))


for _name in _PACKED:  # so that numpy.zeros(n, dtype=nl.float8_e4m3fn_x4) works, as ml_dtypes does for its formats
    np.sctypeDict.setdefault(_name, host_dtype(_name))  # type: ignore[arg-type]


def _named(describe: Callable[..., str]) -> Callable[..., str]:
    """NumPy's text for a record's dtype, but for packed formats their name.

    Kernels' hosts look formats up by `str(array.dtype)`, and the vendor's packed formats, which are NumPy dtypes made
    in C, are called by their name there.
    """

    @functools.wraps(describe)
    def text(dtype: np.dtype[Any], *rest: Any, **options: Any) -> str:
        name = dtype.type.__name__
        ours = name in _PACKED and dtype.type.__module__ == __name__
        return name if ours else describe(dtype, *rest, **options)

    return text


numpy_names._struct_str = _named(numpy_names._struct_str)  # the only way in: str(dtype) asks nobody else


def format_of(kind: Any) -> Format:
    """The format that a name, a NumPy dtype or type, or a torch dtype stands for; 64 bits narrow to 32.

    Raises TypeError or KeyError for what is not a format.
    """
    return kind if isinstance(kind, Format) else _looked_up(kind)


@functools.lru_cache(maxsize=1024)
def _looked_up(kind: Any) -> Format:
    """`format_of` for what is none: the text of a NumPy dtype takes microseconds."""
    text = kind if isinstance(kind, str) else str(kind)
    if text.startswith("torch."):
        name = text.removeprefix("torch.").replace("float8_e4m3fnuz", "float8_e4m3")
    elif text in FORMATS:
        name = text
    else:
        dtype = np.dtype(kind)
        name = dtype.type.__name__ if dtype.type.__name__ in _PACKED else dtype.name
    return FORMATS[_NARROWED.get(name, name)]


def chip_format(kind: Any) -> DType:
    """The chip's format of that name. Raises ConstraintError for one that the simulated chip does not have."""
    found = _ON_CHIP.get(kind) if kind.__class__ is Format else None
    if found is not None:
        return found
    try:
        return dtypes.dtype(str(format_of(kind)))
    except (KeyError, TypeError):
        known = ", ".join(d.name for d in dtypes.ALL)
        raise ConstraintError(
            f"number format {kind!s} is not simulated",
            code="TRN408",
            limit=known,
            got=str(kind),
            remedy="use one of these formats",
        ) from None


_ON_CHIP = {fmt: chip_format(str(fmt)) for fmt in FORMATS.values() if str(fmt) in {d.name for d in dtypes.ALL}}
