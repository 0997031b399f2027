# SPDX-License-Identifier: Apache-2.0
"""The OCP formats and their packed words against definitions written here from the standard, and ml_dtypes."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trnlab.numerics import dtypes as dt
from trnlab.numerics import mx, xorwow
from trnlab.numerics.rounding import narrow, widen

QUICK = settings(max_examples=200, deadline=None, derandomize=True)
LANES = {"float8_e5m2": (5, 2, 8), "float8_e4m3fn": (4, 3, 8), "float4_e2m1fn": (2, 1, 4)}  # exponent, fraction, bits


def decoded(code: int, lane: str) -> float:
    """The value of a code of an MX element format, from the standard's table of fields."""
    exponent_bits, fraction_bits, bits = LANES[lane]
    sign = -1.0 if code >> (bits - 1) & 1 else 1.0
    exponent, fraction = code >> fraction_bits & ((1 << exponent_bits) - 1), code & ((1 << fraction_bits) - 1)
    top = exponent == (1 << exponent_bits) - 1
    if lane == "float8_e4m3fn" and top and fraction == 7:
        return math.nan
    if lane == "float8_e5m2" and top:
        return math.nan if fraction else sign * math.inf
    bias = (1 << (exponent_bits - 1)) - 1
    whole = fraction + (1 << fraction_bits if exponent else 0)
    return sign * math.ldexp(whole, max(exponent, 1) - bias - fraction_bits)


def test_every_code_of_e4m3fn() -> None:
    """All 256 values, and each rounds to itself; zero keeps its sign."""
    codes = np.arange(256, dtype=np.uint8)
    values = widen(codes.view(ml_dtypes.float8_e4m3fn), dt.float8_e4m3fn)
    np.testing.assert_array_equal(values, np.float32([decoded(int(c), "float8_e4m3fn") for c in codes]))
    kept = ~np.isnan(values)
    np.testing.assert_array_equal(narrow(values, dt.float8_e4m3fn).view(np.uint8)[kept], codes[kept])


@QUICK
@given(x=st.one_of(st.floats(-500, 500, width=32), st.floats(-0.0625, 0.0625, width=32)))
def test_e4m3fn_rounds_to_the_nearest_of_its_values(x: float) -> None:
    """Ties go to the even code; past the middle between 448 and what would be 480 there is only NaN."""
    got = float(narrow(np.float32([x]), dt.float8_e4m3fn).astype(np.float32)[0])
    if abs(x) > 464:
        assert math.isnan(got)
        return
    values = [decoded(c, "float8_e4m3fn") for c in range(127)]
    best = min(range(127), key=lambda c: (abs(abs(x) - values[c]), c % 2))
    assert abs(got) == values[best]
    assert math.copysign(1, got) == math.copysign(1, x)


def test_overflow_of_e4m3fn() -> None:
    """It has no infinity: what is too large is NaN, on both sides."""
    got = narrow(np.float32([464, 464.01, 1e9, np.inf, -np.inf, np.nan]), dt.float8_e4m3fn).astype(np.float32)
    np.testing.assert_array_equal(got, np.float32([448, *[np.nan] * 5]))


def test_scales_are_powers_of_two() -> None:
    """float8_e8m0fnu: code c is 2**(c - 127), 255 is NaN; both ways, and as ml_dtypes has it."""
    codes = np.arange(256, dtype=np.uint8)
    values = mx.scale_values(codes)
    np.testing.assert_array_equal(values[:255], [math.ldexp(1.0, c - 127) for c in range(255)])
    assert math.isnan(values[255])
    np.testing.assert_array_equal(mx.scale_codes(values), codes)
    np.testing.assert_array_equal(widen(codes.view(ml_dtypes.float8_e8m0fnu), dt.float8_e8m0fnu), values)


@pytest.mark.parametrize("fmt", dt.PACKED, ids=repr)
def test_packed_words_hold_four_codes(fmt: dt.DType) -> None:
    """Every code in every place of a word, the first in the lowest bits; packing is the reverse."""
    bits = LANES[fmt.lane][2]
    for place in range(4):
        for code in range(1 << bits):
            word = np.array([code << (bits * place)]).astype(fmt.numpy)
            want = [decoded(code if i == place else 0, fmt.lane) for i in range(4)]
            values = mx.unpack(word, fmt)
            np.testing.assert_array_equal(values[0], np.float32(want))
            if not np.isnan(values).any():
                assert mx.pack(values, fmt)[0] == word[0]


def test_packed_formats_are_words() -> None:
    """They move as unsigned integers of their width, and are found by name and code."""
    for fmt in dt.PACKED:
        assert (fmt.is_packed, fmt.is_float, fmt.numpy.kind) == (True, False, "u")
        assert fmt.itemsize == fmt.numpy.itemsize == LANES[fmt.lane][2] // 2
        assert dt.dtype(fmt.name) is dt.BY_CODE[fmt.code] is fmt
    assert not any(fmt.is_packed for fmt in dt.ALL)
    assert sorted(dt.BY_CODE) == list(range(18))


def test_where_scales_lie() -> None:
    """Four rows in each quadrant, whatever lies between."""
    assert mx.scale_rows(32).tolist() == [0, 1, 2, 3]
    assert mx.scale_rows(128).tolist() == [32 * q + i for q in range(4) for i in range(4)]


@pytest.mark.parametrize(("fmt", "top"), [(dt.float8_e4m3fn_x4, 8), (dt.float8_e5m2_x4, 15)], ids=["e4m3fn", "e5m2"])
@QUICK
@given(seed=st.integers(0, 2**32), exponent=st.integers(-120, 120))
def test_quantization(fmt: dt.DType, top: int, seed: int, exponent: int) -> None:
    """The scale is the published formula; nothing overflows; values come back within half a step of the format.

    The largest of a group is at least half of the largest power of two of the format after division, so the step is
    relative to it: 2**-(fraction bits + 1) of each value, or of the smallest normal number.
    """
    rng = np.random.default_rng(seed)
    values = (rng.standard_normal((32, 5, 4)) * 2.0**exponent).astype(np.float32)
    values[:8, 0] = 0
    codes = mx.block_scales(values, fmt)
    for group in range(4):
        for column in range(5):
            largest = float(np.abs(values[8 * group : 8 * group + 8, column]).max())
            want = max(math.floor(math.log2(largest)) - (top - 1), -127) if largest else -127
            assert codes[group, column] == want + 127
    words = mx.quantize(values, codes, fmt)
    assert words.shape == (32, 5)
    assert words.dtype == np.uint32
    back = mx.dequantize(words, codes, fmt)
    fraction = LANES[fmt.lane][1]
    bias = (1 << (LANES[fmt.lane][0] - 1)) - 1
    scale = np.repeat(mx.scale_values(codes).astype(np.float64), 8, axis=0)[:, :, None]
    step = np.maximum(np.abs(values) * 2.0 ** -(fraction + 1), scale * 2.0 ** (1 - bias - fraction - 1))
    assert (np.abs(back - values) <= step).all()


def test_groups_without_a_scale() -> None:
    """An infinity or a NaN makes its group NaN, and no other (assumed)."""
    values = np.ones((16, 1, 4), np.float32)
    values[3, 0, 2] = np.inf
    codes = mx.block_scales(values, dt.float8_e5m2_x4)
    assert codes[:, 0].tolist() == [255, 127 - 14]
    back = mx.dequantize(mx.quantize(values, codes, dt.float8_e5m2_x4), codes, dt.float8_e5m2_x4)
    assert np.isnan(back[:8]).all()
    np.testing.assert_array_equal(back[8:], 1)


def _xorwow(state: list[int], count: int) -> list[int]:
    """Marsaglia's text in Python's integers."""
    x, y, z, w, v, d = state
    numbers, mask = [], 0xFFFFFFFF
    for _ in range(count):
        t = x ^ x >> 2
        x, y, z, w = y, z, w, v
        v = (v ^ (v << 4) & mask) ^ (t ^ (t << 1) & mask)
        d = (d + 362437) & mask
        numbers.append((d + v) & mask)
    return numbers


def test_xorwow_against_python_integers() -> None:
    """From the state that the paper starts with and from others; the state carries on."""
    rng = np.random.default_rng(0)
    states = rng.integers(0, 1 << 32, (5, 6)).astype(np.uint32)
    states[0] = [123456789, 362436069, 521288629, 88675123, 5783321, 6615241]
    numbers, after = xorwow.draw(states, 50)
    for lane in range(5):
        assert numbers[lane].tolist() == _xorwow(states[lane].tolist(), 50)
    more, _ = xorwow.draw(after, 10)
    np.testing.assert_array_equal(more, xorwow.draw(states, 60)[0][:, 50:])
