# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's tensors as arrays in the chip's formats, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from trnlab.frontends.common.integers import check_fits
from trnlab.numerics.dtypes import DType

Array = np.ndarray[Any, Any]


def to_array(tensor: tf.Tensor, dtype: DType, name: str) -> Array:
    """The tensor's values as a C-contiguous array in the format `dtype`: its own memory where it can be.

    Raises NumericsError (TRN211) for an integer of 64 bits that does not fit in 32.
    """
    array = np.asarray(tensor)
    if array.dtype == np.bool_:
        array = array.view(np.uint8)
    elif array.dtype == np.int64:
        check_fits(array, name)
    if array.dtype != dtype.numpy:
        array = array.astype(dtype.numpy)
    return np.ascontiguousarray(array).reshape(array.shape)


def to_tensor(array: Array, dtype: tf.DType) -> tf.Tensor:
    """A tensor of `dtype` with the values of an array in a format of the chip."""
    wanted = dtype.as_numpy_dtype
    return tf.constant(array if array.dtype == wanted else array.astype(wanted), dtype)
