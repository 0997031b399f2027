# SPDX-License-Identifier: Apache-2.0
"""Runs of elements between memory in the chip's formats and float32 scratch.

The engines compute in float32 and convert at both ends for free (architecture guide,
trainium_inferentia2_arch.rst:315). To a narrower float: round to nearest even, or stochastically. To an integer:
round half to even, then saturate (rounding-modes.rst:71), NaN to zero.
"""

from __future__ import annotations

import numpy as np

from trnlab.loops.kinds import i64, void
from trnlab.numerics import dtypes
from trnlab.sim.functional.linking import exported, inline
from trnlab.sim.functional.native import (
    bits,
    from_bits,
    read_f32,
    read_i8,
    read_i16,
    read_i32,
    read_u8,
    read_u16,
    read_u32,
    rint,
    write_f32,
    write_i8,
    write_i16,
    write_i32,
    write_u8,
    write_u16,
    write_u32,
)

F32, BF16, F16, E4M3, E5M2 = (
    d.code for d in (dtypes.float32, dtypes.bfloat16, dtypes.float16, dtypes.float8_e4m3, dtypes.float8_e5m2)
)
I32, U32, I16, U16, I8, U8 = (
    d.code for d in (dtypes.int32, dtypes.uint32, dtypes.int16, dtypes.uint16, dtypes.int8, dtypes.uint8)
)
BOOL, TF32 = dtypes.bool_.code, dtypes.tfloat32.code
COMPILED = frozenset({F32, BF16, F16, E4M3, E5M2, I32, U32, I16, U16, I8, U8, BOOL, TF32})  # what the loops know

u32, u64, i32, f32 = np.uint32, np.uint64, np.int32, np.float32
_GOLDEN, _MIX1, _MIX2 = u64(0x9E3779B97F4A7C15), u64(0xBF58476D1CE4E5B9), u64(0x94D049BB133111EB)
_INF = u32(0x7F800000)
_MAGNITUDE = u32(0x7FFFFFFF)
_ZERO, _ONE = f32(0), f32(1)
_TWO_112, _TWO_120 = f32(2.0**112), f32(2.0**120)  # 2 ** (127 - bias): moves a small exponent field into place
_TWO_M24 = f32(2.0**-24)


@inline
def decode_half(h):
    """The value of fp16 bits."""
    magnitude = (h & u32(0x7FFF)) << u32(13)
    value = bits(from_bits(magnitude) * _TWO_112)
    value = value | (_INF if (h & u32(0x7C00)) == u32(0x7C00) else u32(0))
    return from_bits(value | ((h & u32(0x8000)) << u32(16)))


@inline
def decode_e4m3(h):
    """The value of IEEE-like fp8 e4m3 bits (with infinities, as ml_dtypes.float8_e4m3)."""
    magnitude = (h & u32(0x7F)) << u32(20)
    value = bits(from_bits(magnitude) * _TWO_120)
    value = value | (_INF if (h & u32(0x78)) == u32(0x78) else u32(0))
    return from_bits(value | ((h & u32(0x80)) << u32(24)))


@inline
def mix(z):
    """The finaliser of SplitMix64, as in `numerics.rounding`."""
    z = (z ^ (z >> u64(30))) * _MIX1
    z = (z ^ (z >> u64(27))) * _MIX2
    return z ^ (z >> u64(31))


@inline
def stream_key(seed):
    """The key of a random stream, for `element_noise`."""
    return mix(u64(seed) + _GOLDEN)


@inline
def element_noise(key, index):
    """Random bits number `index` of a stream: `numerics.rounding.random_bits`."""
    return u32(mix(u64(key) + u64(index) * _GOLDEN) >> u64(32))


@inline
def round_bits(u, shift, stochastic, noise):
    """float32 bits with `shift` mantissa bits dropped, rounded by noise or to nearest even; still in their place."""
    half = (u32(1) << (shift - u32(1))) - u32(1)
    nearest = half + ((u >> shift) & u32(1))
    added = noise & ((u32(1) << shift) - u32(1)) if stochastic else nearest
    return ((u + added) >> shift) << shift


@inline
def encode_bf16(x, stochastic, noise):
    """bf16 bits of a float32."""
    u = bits(x)
    magnitude = u32(u & _MAGNITUDE)
    added = noise & u32(0xFFFF) if stochastic else u32(u32(0x7FFF) + u32(u32(u >> u32(16)) & u32(1)))
    rounded = u32(u32(u + added) >> u32(16))
    return u32(u32(u >> u32(16)) | u32(0x40)) if magnitude > _INF else rounded


@inline
def encode_tf32(x, stochastic, noise):
    """A float32 with ten mantissa bits."""
    u = bits(x)
    return x if (u & _MAGNITUDE) > _INF else from_bits(round_bits(u, u32(13), stochastic, noise))


@inline
def encode_small(x, mantissa, bias, stochastic, noise):
    """(sign, rest) of the bits of an IEEE-like float with a small exponent: fp16, e4m3, e5m2."""
    u = bits(x)
    magnitude = u & _MAGNITUDE
    top = u32(2 * bias + 1) << u32(mantissa)  # the code of infinity
    normal = round_bits(magnitude, u32(23 - mantissa), stochastic, noise) >> u32(23 - mantissa)
    normal = normal - (u32(127 - bias) << u32(mantissa))
    small = magnitude < (u32(128 - bias) << u32(23))  # below the smallest normal number
    scaled = from_bits(magnitude if small else u32(0)) * from_bits(u32(127 + mantissa + bias - 1) << u32(23))
    whole = u32(scaled)
    up = f32(noise >> u32(8)) * _TWO_M24 < scaled - f32(whole)
    tiny = whole + (u32(1) if up else u32(0)) if stochastic else u32(rint(scaled))
    code = tiny if small else normal
    code = top if magnitude >= _INF or (not small and code > top) else code
    code = top + (u32(1) << u32(mantissa - 1)) if magnitude > _INF else code
    return u >> u32(31), code


@inline
def to_integer(x, low, high):
    """Nearest integer within [low, high] as a float32; NaN gives zero. Exact for bounds that float32 holds."""
    y = rint(x)
    y = low if y < low else y
    y = high if y > high else y
    return y if y == y else _ZERO


@inline
def to_int32(x):
    """Nearest int32, saturating."""
    y = to_integer(x, f32(-2147483648.0), f32(2147483520.0))
    return i32(2147483647) if x >= f32(2147483648.0) else i32(y)


@inline
def to_uint32(x):
    """Nearest uint32, saturating."""
    y = to_integer(x, _ZERO, f32(4294967040.0))
    return u32(4294967295) if x >= f32(4294967296.0) else u32(np.int64(y))


@exported(void(i64, i64, i64, i64, i64))
def load_small(base, code, step, n, out):
    """`load_run` for the formats that few use."""
    if code == U16:
        for i in range(n):
            write_f32(out, i, f32(read_u16(base, i * step)))
    elif code == I16:
        for i in range(n):
            write_f32(out, i, f32(read_i16(base, i * step)))
    elif code == F16:
        for i in range(n):
            write_f32(out, i, decode_half(read_u16(base, i * step)))
    elif code == E5M2:
        for i in range(n):
            write_f32(out, i, decode_half(read_u8(base, i * step) << u32(8)))
    elif code == E4M3:
        for i in range(n):
            write_f32(out, i, decode_e4m3(read_u8(base, i * step)))
    elif code == TF32:
        for i in range(n):
            write_f32(out, i, encode_tf32(read_f32(base, i * step), False, u32(0)))
    else:  # not in COMPILED: only the search for NaN comes here
        for i in range(n):
            write_f32(out, i, _ZERO)


@exported(void(i64, i64, i64, i64, i64))
def load_other(base, code, step, n, out):
    """`load_run` for the less common formats."""
    if code == I32:
        for i in range(n):
            write_f32(out, i, f32(read_i32(base, i * step)))
    elif code == U32:
        for i in range(n):
            write_f32(out, i, f32(read_u32(base, i * step)))
    elif code in (U8, BOOL):
        for i in range(n):
            write_f32(out, i, f32(read_u8(base, i * step)))
    elif code == I8:
        for i in range(n):
            write_f32(out, i, f32(read_i8(base, i * step)))
    else:
        load_small(base, code, step, n, out)


@exported(void(i64, i64, i64, i64, i64))
def load_run(base, code, step, n, out):
    """out[0..n) = the elements at base, `step` elements apart, as float32."""
    if code == F32:
        if step == 1:
            for i in range(n):
                write_f32(out, i, read_f32(base, i))
        else:
            for i in range(n):
                write_f32(out, i, read_f32(base, i * step))
    elif code == BF16:
        if step == 1:
            for i in range(n):
                write_u32(out, i, read_u16(base, i) << u32(16))
        else:
            for i in range(n):
                write_u32(out, i, read_u16(base, i * step) << u32(16))
    else:
        load_other(base, code, step, n, out)


@exported(void(i64, i64, i64, i64, i64, i64, i64))
def store_small(base, code, step, n, source, key, first):
    """`store_run` for the less common floats."""
    stochastic = key != 0
    if code == F16:
        for i in range(n):
            sign, rest = encode_small(read_f32(source, i), 10, 15, stochastic, element_noise(key, first + i))
            write_u16(base, i * step, (sign << u32(15)) | rest)
    elif code == E5M2:
        for i in range(n):
            sign, rest = encode_small(read_f32(source, i), 2, 15, stochastic, element_noise(key, first + i))
            write_u8(base, i * step, (sign << u32(7)) | rest)
    elif code == E4M3:
        for i in range(n):
            sign, rest = encode_small(read_f32(source, i), 3, 7, stochastic, element_noise(key, first + i))
            write_u8(base, i * step, (sign << u32(7)) | rest)
    else:
        for i in range(n):
            write_f32(base, i * step, encode_tf32(read_f32(source, i), stochastic, element_noise(key, first + i)))


@exported(void(i64, i64, i64, i64, i64))
def store_short_integers(base, code, step, n, source):
    """`store_run` for integers of one or two bytes."""
    if code == I16:
        for i in range(n):
            write_i16(base, i * step, i32(to_integer(read_f32(source, i), f32(-32768), f32(32767))))
    elif code == U16:
        for i in range(n):
            write_u16(base, i * step, u32(i32(to_integer(read_f32(source, i), _ZERO, f32(65535)))))
    elif code == I8:
        for i in range(n):
            write_i8(base, i * step, i32(to_integer(read_f32(source, i), f32(-128), f32(127))))
    elif code == U8:
        for i in range(n):
            write_u8(base, i * step, u32(i32(to_integer(read_f32(source, i), _ZERO, f32(255)))))


@exported(void(i64, i64, i64, i64, i64))
def store_integers(base, code, step, n, source):
    """`store_run` for integers."""
    if code == I32:
        for i in range(n):
            write_i32(base, i * step, to_int32(read_f32(source, i)))
    elif code == U32:
        for i in range(n):
            write_u32(base, i * step, to_uint32(read_f32(source, i)))
    elif code == BOOL:
        for i in range(n):
            write_u8(base, i * step, u32(1) if read_f32(source, i) != _ZERO else u32(0))
    else:
        store_short_integers(base, code, step, n, source)


@exported(void(i64, i64, i64, i64, i64, i64, i64))
def store_run(base, code, step, n, source, key, first):
    """The reverse of `load_run`. key: 0 rounds to nearest even, else the instruction's key for stochastic rounding.

    first: index of the run's first element within the operand, which the noise depends on.
    """
    if code == F32:
        if step == 1:
            for i in range(n):
                write_f32(base, i, read_f32(source, i))
        else:
            for i in range(n):
                write_f32(base, i * step, read_f32(source, i))
    elif code == BF16:
        if key != 0:
            for i in range(n):
                write_u16(base, i * step, encode_bf16(read_f32(source, i), True, element_noise(key, first + i)))
        elif step == 1:
            for i in range(n):
                write_u16(base, i, encode_bf16(read_f32(source, i), False, u32(0)))
        else:
            for i in range(n):
                write_u16(base, i * step, encode_bf16(read_f32(source, i), False, u32(0)))
    elif code in (F16, E5M2, E4M3, TF32):
        store_small(base, code, step, n, source, key, first)
    else:
        store_integers(base, code, step, n, source)


@exported(void(i64, i64, i64, i64, i64))
def store_array(base, code, n, source, stream):
    """n adjacent elements, rounded stochastically with a random stream."""
    store_run(base, code, 1, n, source, np.int64(stream_key(u64(stream))), 0)
