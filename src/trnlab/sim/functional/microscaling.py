# SPDX-License-Identifier: Apache-2.0
"""nc_matmul_mx and quantize_mx as their definitions say, to the bit, with words taken apart in compiled loops.

Words and scales are looked up in a table of all products that the definition makes of them; the sums of products in
float64 are those of the same call of the same library. What a number becomes in a format of eight bits is looked up,
too: of sources in bf16 and fp16, its first 19 bits decide. Shape letters: K partitions, N columns, 4 values of a
word.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from trnlab.isa.base import Array, Arrays, as_float
from trnlab.isa.products.microscaling import codes_of
from trnlab.numerics.dtypes import DType, dtype
from trnlab.numerics.mx import (
    GROUP_PARTITIONS,
    LANES,
    LARGEST_EXPONENT,
    SCALE_BIAS,
    SCALE_NAN,
    dequantize,
    quantize,
    scale_rows,
    scale_values,
)
from trnlab.sim.functional.linking import entry

_CODES = 256  # of a scale
_FIRST_BITS = 19  # of a float32: sign, exponent, and the ten bits of the fraction that fp16 has
_POWERS = np.ldexp(1.0, SCALE_BIAS - np.arange(_CODES))  # what divides by the scale of each code


@lru_cache(maxsize=8)
def products(fmt: DType) -> Array:
    """float64 [scale code, value code]: what `dequantize` makes of them."""
    values = 1 << (8 * fmt.itemsize // LANES)
    words = np.arange(values).astype(fmt.numpy)[None].repeat(GROUP_PARTITIONS, axis=0)
    rows = [dequantize(words, np.full((1, values), code, np.uint8), fmt)[0, :, 0] for code in range(_CODES)]
    return np.stack(rows)


@entry
def unpack_rows(words: Array, codes: Array, table: Array, bits: int, out: Array) -> None:
    """out [4 K, N]: the values of words [K, N] times the scales whose codes are [K / 8, N]."""
    mask = (1 << bits) - 1
    for k in range(words.shape[0]):
        for n in range(words.shape[1]):
            word, code = np.int64(words[k, n]), codes[k // GROUP_PARTITIONS, n]
            for lane in range(LANES):
                out[LANES * k + lane, n] = table[code, word >> bits * lane & mask]


def matrix(arrays: Arrays, attrs: Mapping[str, Any], name: str) -> Array:
    """float64 [4 K, N]: an operand and its scales."""
    words, fmt = arrays[name].reshape(arrays[name].shape[0], -1), dtype(attrs[f"{name}_format"])
    codes = codes_of(arrays[f"{name}_scale"], len(words))
    out = np.empty((LANES * words.shape[0], words.shape[1]))
    unpack_rows(np.ascontiguousarray(words), codes, products(fmt), 8 * fmt.itemsize // LANES, out)
    return out


def nc_matmul_mx(arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
    """What `isa.nc_matmul_mx` means."""
    with np.errstate(all="ignore"):
        left, right = (matrix(arrays, attrs, name) for name in ("stationary", "moving"))
        product = (left.T @ right).astype(np.float32).reshape(arrays["dst"].shape)
        return {"dst": as_float(arrays["dst"]) + product if attrs["accumulate"] else product}


@lru_cache(maxsize=8)
def rounded(fmt: DType) -> Array:
    """uint32: what `quantize` makes of float32 numbers of these first bits at a scale of one; last, of NaN."""
    numbers = (np.arange(1 << _FIRST_BITS, dtype=np.uint32) << np.uint32(32 - _FIRST_BITS)).view(np.float32)
    numbers = np.append(numbers, np.float32(np.nan))
    values = np.zeros((GROUP_PARTITIONS, len(numbers), LANES), np.float32)
    values[0, :, 0] = numbers
    words = quantize(values, np.full((1, len(numbers)), SCALE_BIAS, np.uint8), fmt)
    return np.asarray(words[0], np.uint32)


@entry
def quantize_rows(
    values: Array, bits: Array, top: int, table: Array, powers: Array, lane_bits: int, codes: Array, words: Array
) -> None:
    """Fill in codes [K / 8, N] and words [K, N] of float32 values [K, N, 4], whose bits are given, too.

    top: the exponent that the largest of a group shall have. The last entry of `table` is what a NaN becomes.
    """
    scaled = np.zeros(1, np.float32)
    scaled_bits = scaled.view(np.uint32)
    for group in range(codes.shape[0]):
        first = GROUP_PARTITIONS * group
        for n in range(codes.shape[1]):
            largest = np.int64(0)
            for k in range(first, first + GROUP_PARTITIONS):
                for lane in range(LANES):
                    largest = max(largest, np.int64(bits[k, n, lane]) & 0x7FFFFFFF)
            exponent = int(largest >> 23)
            code = SCALE_NAN if exponent == 255 else max(exponent - top, 0)
            codes[group, n] = code
            for k in range(first, first + GROUP_PARTITIONS):
                word = np.int64(0)
                for lane in range(LANES):
                    scaled[0] = np.float32(values[k, n, lane] * powers[code])
                    number = np.int64(scaled_bits[0]) >> (32 - _FIRST_BITS)
                    value = table[table.shape[0] - 1] if code == SCALE_NAN else table[number]
                    word |= np.int64(value) << lane_bits * lane
                words[k, n] = word


def quantize_mx(arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
    """What `isa.quantize_mx` means."""
    fmt, partitions = dtype(attrs["dst_format"]), arrays["dst"].shape[0]
    values = np.ascontiguousarray(arrays["src"], np.float32).reshape(partitions, -1, LANES)
    codes = np.empty((partitions // GROUP_PARTITIONS, values.shape[1]), np.uint8)
    words = np.empty(values.shape[:2], np.uint32)
    top, lane_bits = LARGEST_EXPONENT[fmt.lane] - attrs["headroom"], 8 * fmt.itemsize // LANES
    quantize_rows(values, values.view(np.uint32), top, rounded(fmt), _POWERS, lane_bits, codes, words)
    scales = arrays["dst_scale"].reshape(arrays["dst_scale"].shape[0], -1).copy()
    scales[scale_rows(partitions)] = scale_values(codes) if scales.dtype.kind == "f" else codes
    return {
        "dst": words.astype(fmt.numpy).reshape(arrays["dst"].shape),
        "dst_scale": scales.reshape(arrays["dst_scale"].shape),
    }
