# SPDX-License-Identifier: Apache-2.0
"""Arrays of JAX and those that programs run on.

Keys of random numbers are their words; 64-bit integers, which JAX has where `jax_enable_x64` is on, lie in 32 bits.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax._src.lax.lax import _convert_element_type  # the one way to a weakly typed array

from trnlab.errors import NumericsError
from trnlab.frontends.stablehlo.mlir import WIDE
from trnlab.graph.ir import TensorType

Array = np.ndarray[Any, Any]


def to_array(leaf: Any, kind: TensorType) -> Array:
    """A leaf of the arguments as the program takes it, whose module has it as `kind`; memory is shared if possible.

    Raises NumericsError (TRN211) for an integer that does not fit in 32 bits.
    """
    if isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    held = WIDE.get(kind.dtype, kind.dtype)
    array = np.asarray(leaf)
    narrow: Array = np.asarray(array.astype(held.numpy, copy=False), order="C")
    if kind.dtype in WIDE and held.is_integer and not (narrow == array).all():
        raise NumericsError(
            "an array of 64-bit integers has one that does not fit in 32 bits",
            code="TRN211",
            limit=f"{held.limits[0]} to {held.limits[1]}",
            got=str(array.reshape(-1)[(narrow != array).argmax()]),
            remedy="keep such numbers out of compiled code",
        )
    return narrow


def from_array(array: Array, like: Any) -> jax.Array:
    """A result as JAX has it; `like` is JAX's own description."""
    if jax.numpy.issubdtype(like.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(jax.numpy.asarray(array), impl=like.dtype._impl.name)
    held = jax.numpy.asarray(array.astype(like.dtype, copy=False))
    return _convert_element_type(held, like.dtype, weak_type=True) if like.weak_type else held
