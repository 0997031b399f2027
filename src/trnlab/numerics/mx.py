# SPDX-License-Identifier: Apache-2.0
"""Microscaling (MX) formats: packed words of four values, and the power-of-two scales that groups of 32 share.

A group is 8 partitions by 4 values of one word. Its scale is one byte, the biased exponent of a power of two
(float8_e8m0fnu: value 2**(code - 127), code 255 is NaN).

Sources: OCP Microscaling Formats (MX) 1.0; nki.isa.quantize_mx (from NKI 0.5.0 on the scale is one power of two
larger than in the standard's sample algorithm, which earlier releases follow: release-notes/components/nki.rst:166);
nki/deep-dives/mxfp-matmul.rst:99-129, 228 (layout), in aws-neuron/aws-neuron-sdk.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from trnlab.numerics.dtypes import DType, dtype

Array = np.ndarray[Any, Any]

LANES = 4  # values of a packed word
GROUP_PARTITIONS = 8  # partitions that share a scale
SCALE_BIAS, SCALE_NAN, SMALLEST_EXPONENT = 127, 255, -127
_QUADRANT = 32  # partitions; the scales of a quadrant lie in four of its own

LARGEST_EXPONENT = {"float8_e4m3fn": 8, "float8_e5m2": 15, "float4_e2m1fn": 2}


def unpack(words: Array, dtype: DType) -> Array:
    """float32 [..., 4] from packed words [...], the value in the lowest bits first."""
    lane = np.dtype(getattr(ml_dtypes, dtype.lane))
    values: Array = _split(words, dtype).view(lane).astype(np.float32)
    return values


def pack(values: Array, dtype: DType) -> Array:
    """Packed words [...] from float32 values [..., 4], rounded to nearest even; the reverse of `unpack`."""
    lane = np.dtype(getattr(ml_dtypes, dtype.lane))
    with np.errstate(all="ignore"):
        codes = values.astype(np.float32).astype(lane).view(np.uint8).astype(np.uint32)
    bits = 8 * dtype.itemsize // LANES
    shifts = np.arange(LANES, dtype=np.uint32) * np.uint32(bits)
    words: Array = (codes << shifts).sum(axis=-1, dtype=np.uint32).astype(dtype.numpy)
    return words


def _split(words: Array, dtype: DType) -> Array:
    """uint8 codes [..., 4], in the low bits."""
    bits = 8 * dtype.itemsize // LANES
    shifts = np.arange(LANES, dtype=np.uint32) * np.uint32(bits)
    codes = words.astype(np.uint32)[..., None] >> shifts
    return np.asarray(codes & np.uint32((1 << bits) - 1), np.uint8)


def scale_values(codes: Array) -> Array:
    """float32 powers of two from scale codes (uint8); 255 is NaN."""
    values = np.ldexp(np.float32(1), np.minimum(codes, SCALE_NAN - 1).astype(np.int32) - SCALE_BIAS)
    return np.where(codes == SCALE_NAN, np.float32(np.nan), values)


def scale_codes(values: Array) -> Array:
    """uint8 codes from float32 powers of two, the reverse of `scale_values`."""
    codes: Array = values.astype(ml_dtypes.float8_e8m0fnu).view(np.uint8)
    return codes


def scale_rows(partitions: int) -> Array:
    """Where the scales of a tile's groups lie: row p // 8 of the tile is on partition ... of the scale tile.

    Four scales per quadrant of 32 partitions, on the first four partitions of that quadrant.
    """
    group = np.arange(partitions // GROUP_PARTITIONS)
    per_quadrant = _QUADRANT // GROUP_PARTITIONS
    return np.asarray(group // per_quadrant * _QUADRANT + group % per_quadrant)


def block_scales(values: Array, dtype: DType, headroom: int = 1) -> Array:
    """Scale codes (uint8) [P / 8, N] of float32 values [P, N, 4] to be packed as `dtype`.

    2**(floor(log2(largest magnitude)) - (Emax - headroom)), with Emax the largest exponent of the lane's format;
    2**-127 for a group of zeros, and at least that. NaN (assumed) for a group that holds an infinity or a NaN. A
    headroom of 1 leaves room to round the largest value up; with 0, the standard's sample, `quantize` cuts it off.
    """
    partitions, count, _ = values.shape
    groups = np.abs(values).reshape(partitions // GROUP_PARTITIONS, GROUP_PARTITIONS, count, LANES)
    largest = groups.max(axis=(1, 3))
    top = LARGEST_EXPONENT[dtype.lane] - headroom
    exponent = np.frexp(np.where(np.isfinite(largest), largest, 1))[1] - 1 - top
    exponent = np.where(largest == 0, SMALLEST_EXPONENT, np.maximum(exponent, SMALLEST_EXPONENT))
    codes = np.where(np.isfinite(largest), exponent + SCALE_BIAS, SCALE_NAN)
    return np.asarray(codes, np.uint8)


def quantize(values: Array, codes: Array, dtype: DType) -> Array:
    """Packed words [P, N] of float32 values [P, N, 4] divided by the scales [P / 8, N] of their groups.

    What is then larger than the lane's format can hold becomes its largest value.
    """
    most = np.float32(ml_dtypes.finfo(getattr(ml_dtypes, dtype.lane)).max)  # type: ignore[no-untyped-call]
    exponents = np.repeat(codes.astype(np.int32) - SCALE_BIAS, GROUP_PARTITIONS, axis=0)[:, :, None]
    with np.errstate(all="ignore"):
        scaled = np.ldexp(values, -exponents)
    bad = np.repeat(codes == SCALE_NAN, GROUP_PARTITIONS, axis=0)[:, :, None]
    return pack(np.where(bad, np.float32(np.nan), np.clip(scaled, -most, most)), dtype)


def dequantize(words: Array, codes: Array, dtype: DType) -> Array:
    """float64 values [P, N, 4] of packed words [P, N] times the scales [P / 8, N] of their groups: exact."""
    scales = np.repeat(scale_values(codes).astype(np.float64), GROUP_PARTITIONS, axis=0)
    return np.asarray(unpack(words, dtype).astype(np.float64) * scales[:, :, None])


def mx_dtype(lane: str) -> DType:
    """The packed format whose values have the format called `lane`."""
    return dtype(f"{lane}_x4")


def block_rounded(values: Array, packed: DType, headroom: int = 1) -> Array:
    """float64 [..., K]: what quantization makes of values whose blocks of 32 neighbours in K share a scale.

    A last block that is shorter is filled up with zeros. The same as `quantize` and `dequantize` of a tile in which
    value k lies on partition k // 4, at place k % 4 of a word.
    """
    block = GROUP_PARTITIONS * LANES
    *lead, k = values.shape
    padded = np.zeros((*lead, -(-k // block) * block), np.float32)
    padded[..., :k] = values
    tile = padded.reshape(-1, padded.shape[-1] // LANES, LANES).transpose(1, 0, 2)  # [K / 4, N, 4]
    if tile.size == 0:
        return np.asarray(values, np.float64)
    codes = block_scales(tile, packed, headroom)
    exact = dequantize(quantize(tile, codes, packed), codes, packed).transpose(1, 0, 2)
    return np.asarray(exact.reshape(*lead, -1)[..., :k])
