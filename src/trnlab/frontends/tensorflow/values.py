# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's tensors as arrays in the chip's formats, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from trnlab.errors import NumericsError
from trnlab.numerics.dtypes import DType

Array = np.ndarray[Any, Any]
_INT32 = np.iinfo(np.int32)


def to_array(tensor: tf.Tensor, dtype: DType, name: str) -> Array:
    """The tensor's values as a C-contiguous array in the format `dtype`: its own memory where it can be.

    Raises NumericsError (TRN211) for an integer of 64 bits that does not fit in 32.
    """
    array = np.asarray(tensor)
    if array.dtype == np.bool_:
        array = array.view(np.uint8)
    elif array.dtype == np.int64:
        _check_fits(array, name)
    if array.dtype != dtype.numpy:
        array = array.astype(dtype.numpy)
    return np.ascontiguousarray(array).reshape(array.shape)


def to_tensor(array: Array, dtype: tf.DType) -> tf.Tensor:
    """A tensor of `dtype` with the values of an array in a format of the chip."""
    wanted = dtype.as_numpy_dtype
    return tf.constant(array if array.dtype == wanted else array.astype(wanted), dtype)


def _check_fits(array: Array, name: str) -> None:
    if array.size == 0 or (array.min() >= _INT32.min and array.max() <= _INT32.max):
        return
    place = tuple(int(i) for i in np.argwhere((array < _INT32.min) | (array > _INT32.max))[0])
    raise NumericsError(
        f"{name} has a 64-bit integer that does not fit in the 32 bits that the chip has", code="TRN211",
        limit=f"{_INT32.min} to {_INT32.max}", got=f"{array[place]} at {list(place)}",
        remedy="keep such numbers out of compiled code, or map them to smaller ones before the step",
    )  # fmt: skip
