# SPDX-License-Identifier: Apache-2.0
"""neuron_dtypes: NumPy types of the narrow and packed formats, and casts between them.

A packed format (`..._x4`) holds four values in an element; casting to it takes four neighbours of the last dimension
together, casting from it spreads them again.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from ml_dtypes import bfloat16, float8_e4m3, float8_e4m3fn, float8_e5m2, float8_e8m0fnu

from trnlab.lang.formats import Format, chip_format, format_of, host_dtype
from trnlab.numerics import mx

__all__ = [
    "bfloat16",
    "finfo",
    "float4_e2m1fn_x4",
    "float8_e4m3",
    "float8_e4m3fn",
    "float8_e4m3fn_x4",
    "float8_e5m2",
    "float8_e5m2_x4",
    "float8_e8m0fnu",
    "is_float_type",
    "sizeinbytes",
    "static_cast",
]

Array = np.ndarray[Any, Any]

float8_e4m3fn_x4, float8_e5m2_x4 = host_dtype("float8_e4m3fn_x4"), host_dtype("float8_e5m2_x4")
float4_e2m1fn_x4 = host_dtype("float4_e2m1fn_x4")


def static_cast(values: Any, dtype: Any) -> Array:
    """The values of an array in another format; `[..., n]` and a packed `[..., n / 4]` turn into each other."""
    array: Array = np.asarray(values)
    source, target = _packed(array.dtype), _packed(dtype)
    if source is not None and source == target:
        return array
    if source is not None:
        spread = mx.unpack(array.view(chip_format(source).numpy), chip_format(source))
        array = spread.reshape(*array.shape[:-1], -1)
    if target is None:
        kind = format_of(dtype).dtype if isinstance(dtype, (str, Format)) else np.dtype(dtype)
        with np.errstate(all="ignore"):
            plain: Array = array.astype(kind)
        return plain
    words: Array = mx.pack(array.astype(np.float32).reshape(*array.shape[:-1], -1, mx.LANES), chip_format(target))
    packed: Array = words.view(host_dtype(str(target)))
    return packed


def _packed(dtype: Any) -> Format | None:
    """The packed format that a dtype stands for, if it is one."""
    try:
        fmt = format_of(dtype)
    except (KeyError, TypeError):
        return None
    return fmt if chip_format(fmt).is_packed else None


def is_float_type(dtype: Any) -> bool:
    """Whether a dtype holds floating point values."""
    kind = np.dtype(dtype if not isinstance(dtype, Format) else dtype.dtype)
    try:
        ml_dtypes.finfo(kind)  # type: ignore[no-untyped-call]
    except ValueError:
        return False
    return True


def sizeinbytes(dtype: Any) -> int:
    """Bytes of one element."""
    return format_of(dtype).itemsize


def finfo(dtype: Any) -> Any:
    """Limits of a floating point format, as numpy.finfo."""
    return ml_dtypes.finfo(format_of(dtype).dtype)  # type: ignore[no-untyped-call]
