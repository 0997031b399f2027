# SPDX-License-Identifier: Apache-2.0
"""Rounding: float32, in which the engines compute, to each format of the chip and back.

Floats round to nearest, ties to even, and overflow to infinity (float8_e4m3 is the IEEE-like one, largest 240).
Integers take the nearest value, ties to even, then saturate; NaN becomes zero (assumed). Truth values are "not zero".

Sources: rounding-modes.rst and data-types.rst of aws-neuron/aws-neuron-sdk (nearest even by default, stochastic
rounding selectable); its NKI release notes, release-notes/components/nki.rst:71 (integers). These functions are the
definition; the simulators have faster ones that must give the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trnlab.numerics.dtypes import DType, bfloat16, bool_, tfloat32

Array = np.ndarray[Any, Any]

_TF32_DROPPED = 13  # fraction bits of float32 that tfloat32 lacks
_BF16_DROPPED = 16


def widen(values: Array, dtype: DType) -> Array:
    """Values of a format as float32: exact for floats and small integers, nearest even for integers above 2**24."""
    exact: Array = np.asarray(values, dtype.numpy).astype(np.float32)
    return exact


def narrow(values: Array, dtype: DType) -> Array:
    """float32 values rounded to a format, as an array of `dtype.numpy`."""
    values = values.astype(np.float32, copy=False)
    with np.errstate(all="ignore"):
        if dtype is tfloat32:
            return _round_bits(values, _TF32_DROPPED)
        if dtype is bool_:
            return np.asarray(values != 0, np.uint8)
        if dtype.is_integer:
            return _to_integer(values, dtype)
        rounded: Array = values.astype(dtype.numpy)
        return rounded


def store(values: Array, dtype: DType) -> Array:
    """What an instruction writes: unchanged when it is already in the format, otherwise rounded through float32.

    tfloat32 and bool share their NumPy dtype with a wider format, so that they are always rounded.
    """
    if values.dtype == dtype.numpy and dtype not in (tfloat32, bool_):
        return values
    return narrow(values.astype(np.float32), dtype)


def _to_integer(values: Array, dtype: DType) -> Array:
    info = np.iinfo(dtype.numpy)
    rounded = np.nan_to_num(np.rint(values).astype(np.float64), nan=0.0, posinf=info.max, neginf=info.min)
    return np.clip(rounded, info.min, info.max).astype(dtype.numpy)


def _round_bits(values: Array, dropped: int) -> Array:
    """float32 with its lowest `dropped` fraction bits rounded away, to nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    odd = (bits >> np.uint32(dropped)) & np.uint32(1)
    rounded = bits + np.uint32((1 << (dropped - 1)) - 1) + odd
    rounded &= np.uint32(~((1 << dropped) - 1) & 0xFFFFFFFF)
    return np.where(np.isnan(values), values, rounded.view(np.float32))


def stochastic_bfloat16(values: Array, bits: Array) -> Array:
    """float32 rounded to bfloat16 at random: up with the probability of the distance to the lower neighbour.

    `bits`: one uint32 per element, of which the lower 16 decide. Infinities and NaN stay; results of `dtype.numpy`.
    """
    raw = np.ascontiguousarray(values, np.float32).view(np.uint32)
    moved = raw + (bits & np.uint32((1 << _BF16_DROPPED) - 1))
    kept = np.where(np.isfinite(values), moved & np.uint32(0xFFFF0000), raw)
    return narrow(kept.view(np.float32), bfloat16)


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)


def random_bits(seed: Any, counter: Any) -> Array:
    """uint32 random bits, a pure function of a 64-bit seed and a 64-bit counter (arrays of integers, broadcast).

    The mixing function of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA
    2014), applied to the seed, and then to the mixed seed plus the counter times the golden ratio; the upper half of
    the result.
    """
    key = _mix(np.atleast_1d(np.asarray(seed)).astype(np.uint64) + _GOLDEN)
    state = key + np.atleast_1d(np.asarray(counter)).astype(np.uint64) * _GOLDEN
    return (_mix(state) >> np.uint64(32)).astype(np.uint32)


def _mix(z: Array) -> Array:
    z = (z ^ (z >> np.uint64(30))) * _MIX1
    z = (z ^ (z >> np.uint64(27))) * _MIX2
    mixed: Array = z ^ (z >> np.uint64(31))
    return mixed
