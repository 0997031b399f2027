# SPDX-License-Identifier: Apache-2.0
"""Rounding against a definition that needs no casts: the nearest of all values, ties to the even code."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trnlab.numerics import dtypes as dt
from trnlab.numerics.rounding import narrow, random_bits, stochastic_bfloat16, store, widen

NARROW = [dt.bfloat16, dt.float16, dt.float8_e4m3, dt.float8_e5m2]
INTEGERS = [dt.int32, dt.uint32, dt.int16, dt.uint16, dt.int8, dt.uint8]
# exponent bits, fraction bits
FIELDS = {"bfloat16": (8, 7), "float16": (5, 10), "float8_e4m3": (4, 3), "float8_e5m2": (5, 2), "tfloat32": (8, 10)}
floats = st.floats(width=32, allow_nan=False)


def nearest(x: float, exponent_bits: int, fraction_bits: int) -> float:
    """x rounded to nearest even on the grid of an IEEE-like format, in exact double arithmetic."""
    if x == 0 or math.isinf(x):
        return x
    bias = (1 << (exponent_bits - 1)) - 1
    exponent = max(math.frexp(x)[1] - 1, 1 - bias)
    ulp = math.ldexp(1.0, exponent - fraction_bits)
    rounded = round(x / ulp) * ulp  # Python rounds halves to even; the quotient is exact
    largest = math.ldexp(2 - math.ldexp(1.0, -fraction_bits), bias)
    return math.copysign(math.inf if abs(rounded) > largest else abs(rounded), x)


@pytest.mark.parametrize("name", FIELDS)
@settings(max_examples=400, deadline=None, derandomize=True)
@given(x=st.one_of(floats, st.floats(-300, 300, width=32), st.floats(-(2.0**-13), 2.0**-13, width=32)))
def test_nearest_even(name: str, x: float) -> None:
    """Normals, subnormals, overflow to infinity and signed zeros, for every float format."""
    got = float(narrow(np.float32([x]), dt.dtype(name)).astype(np.float32)[0])
    want = nearest(x, *FIELDS[name])
    assert got == want
    assert math.copysign(1, got) == math.copysign(1, want)


@pytest.mark.parametrize("fmt", NARROW, ids=repr)
def test_values_and_midpoints(fmt: dt.DType) -> None:
    """Every value of the format is a fixed point; the middle of two neighbours goes to the one with the even code."""
    codes = np.arange(1 << (8 * fmt.itemsize), dtype=f"u{fmt.itemsize}")
    values = widen(codes.view(fmt.numpy), fmt)
    kept = np.isfinite(values)
    np.testing.assert_array_equal(narrow(values, fmt).view(codes.dtype)[kept], codes[kept])
    positive = codes[: int(np.argmax(~kept))]
    low, high = widen(positive[:-1].view(fmt.numpy), fmt), widen(positive[1:].view(fmt.numpy), fmt)
    middle = ((low.astype(np.float64) + high) / 2).astype(np.float32)
    even = np.where(positive[:-1] % 2 == 0, positive[:-1], positive[1:])
    exact = middle.astype(np.float64) * 2 == low.astype(np.float64) + high
    np.testing.assert_array_equal(narrow(middle, fmt).view(codes.dtype)[exact], even[exact])


@pytest.mark.parametrize(
    ("fmt", "largest", "first_infinite"),
    [
        (dt.float8_e4m3, 240.0, 248.0),
        (dt.float8_e5m2, 57344.0, 61440.0),
        (dt.float16, 65504.0, 65520.0),
        (dt.bfloat16, 3.3895313892515355e38, 3.3961775292304957e38),
    ],
)
def test_overflow(fmt: dt.DType, largest: float, first_infinite: float) -> None:
    """Below half a step past the largest value it stays; from there on it is infinite. NaN stays NaN."""
    below = np.nextafter(np.float32(first_infinite), np.float32(0))
    got = narrow(np.float32([largest, below, first_infinite, -first_infinite, np.inf, np.nan]), fmt).astype(
        np.float32
    )
    np.testing.assert_array_equal(got, np.float32([largest, largest, np.inf, -np.inf, np.inf, np.nan]))


@pytest.mark.parametrize("fmt", INTEGERS, ids=repr)
@settings(max_examples=300, deadline=None, derandomize=True)
@given(x=st.one_of(floats, st.floats(-300, 300, width=32), st.integers(-70000, 70000).map(lambda n: n / 2)))
def test_integers_round_half_even_then_saturate(fmt: dt.DType, x: float) -> None:
    """Python's own round, then the ends of the range."""
    info = np.iinfo(fmt.numpy)
    want = (info.max if x > 0 else info.min) if math.isinf(x) else max(info.min, min(info.max, round(x)))
    assert int(narrow(np.float32([x]), fmt)[0]) == want


def test_odd_values() -> None:
    """NaN is zero in integers and one in truth values; 2**31 saturates, although float32 cannot hold 2**31 - 1."""
    assert narrow(np.float32([np.nan]), dt.int32)[0] == 0
    assert narrow(np.float32([np.nan, 0, -0.0, 1e-45]), dt.bool_).tolist() == [1, 0, 0, 1]
    assert narrow(np.float32([2.0**31, -(2.0**31)]), dt.int32).tolist() == [2**31 - 1, -(2**31)]
    assert narrow(np.float32([2.0**32]), dt.uint32)[0] == 2**32 - 1


def test_store_keeps_what_is_in_the_format() -> None:
    """No detour through float32 for integers above 2**24, but one when the format changes."""
    big = np.array([16777217], np.int32)
    assert store(big, dt.int32)[0] == 16777217
    assert store(big, dt.uint32)[0] == 16777216
    assert store(big, dt.float32)[0] == 16777216
    assert store(np.float32([1 + 2.0**-11]), dt.tfloat32)[0] == 1


@settings(max_examples=200, deadline=None, derandomize=True)
@given(x=floats, bits=st.integers(0, 2**32 - 1))
def test_stochastic_rounding_takes_a_neighbour(x: float, bits: int) -> None:
    """The result is one of the two bfloat16 values around x; values of the format stay."""
    got = float(stochastic_bfloat16(np.float32([x]), np.uint32([bits])).astype(np.float32)[0])
    raw = int(np.float32(x).view(np.uint32))
    low, high = (np.uint32(raw >> 16 << 16), np.uint32(min((raw >> 16) + 1, 0xFFFF) << 16))
    allowed = [float(low.view(np.float32))] + ([float(high.view(np.float32))] if raw & 0xFFFF else [])
    assert got in allowed


def test_stochastic_rounding_has_no_bias() -> None:
    """All 65536 values of the deciding bits round up exactly as often as the distance says."""
    every = np.arange(1 << 16, dtype=np.uint32)
    for part in (0, 1, 0x4000, 0x8000, 0xFFFF):
        x = np.full(every.shape, np.uint32(0x3F800000 + part), np.uint32).view(np.float32)
        up = stochastic_bfloat16(x, every).astype(np.float32) > 1
        assert int(up.sum()) == part
    odd = stochastic_bfloat16(np.float32([np.nan, np.inf, -np.inf]), np.uint32([0xFFFF] * 3)).astype(np.float32)
    np.testing.assert_array_equal(odd, np.float32([np.nan, np.inf, -np.inf]))


def _splitmix(seed: int, counter: int) -> int:
    def mix(z: int) -> int:
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        return z ^ z >> 31

    golden = 0x9E3779B97F4A7C15
    return mix((mix((seed + golden) % 2**64) + counter * golden) % 2**64) >> 32


@given(seed=st.integers(0, 2**64 - 1), counter=st.integers(0, 2**64 - 1))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_random_bits_are_a_pure_function(seed: int, counter: int) -> None:
    """The same numbers from Python's unbounded integers."""
    got = random_bits(np.uint64(seed), np.uint64(counter))
    assert got.tolist() == [_splitmix(seed, counter)]


def test_the_mixing_function_is_splitmix64() -> None:
    """The generator's published first outputs for seed 0, which are mix(n * golden ratio)."""
    golden = 0x9E3779B97F4A7C15
    from trnlab.numerics.rounding import _mix

    states = np.array([golden, 2 * golden % 2**64, 3 * golden % 2**64], np.uint64)
    assert [hex(v) for v in _mix(states).tolist()] == [
        "0xe220a8397b1dcdaf",
        "0x6e789e6aa1b965f4",
        "0x6c45d188009454f",
    ]


def _chi_square(counts: Any, expected: float) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("seed", [0, 1, 2**40])
def test_random_bits_look_uniform(seed: int) -> None:
    """Bytes of 2**18 draws, and single bits over neighbouring seeds, within six standard deviations of chi-square."""
    draws = random_bits(seed, np.arange(1 << 18))
    for shift in (0, 8, 16, 24):
        counts = np.bincount((draws >> np.uint32(shift)) & np.uint32(0xFF), minlength=256)
        assert abs(_chi_square(counts, draws.size / 256) - 255) < 6 * math.sqrt(2 * 255)
    neighbours = random_bits(seed, np.arange(4096)) ^ random_bits(seed + 1, np.arange(4096))
    ones = np.unpackbits(neighbours.view(np.uint8)).sum()
    assert abs(int(ones) - 65536) < 6 * math.sqrt(131072) / 2
