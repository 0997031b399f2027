# SPDX-License-Identifier: Apache-2.0
"""Integers of every width, and what meets them, mean what PyTorch means on the CPU: exact, wrapping, at their limits.

On the interpreter and on the compiled program, every element equal.
"""

from __future__ import annotations

import pytest
import torch
from helpers import Traced, check, listed

INF, NAN = float("inf"), float("nan")
KINDS = (torch.int32, torch.int16, torch.int8, torch.uint8)
NUMBERS = (
    -129,
    -128,
    -100,
    -8,
    -7,
    -3,
    -2,
    -1,
    0,
    1,
    2,
    3,
    5,
    7,
    8,
    100,
    127,
    128,
    200,
    255,
    2**24,
    2**24 + 1,
    2**31 - 1,
)
FLOATS = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    2.5,
    -2.5,
    3.7,
    -3.7,
    1e-40,
    -1e-40,
    1e10,
    -1e10,
    255.7,
    300.5,
    -300.5,
    INF,
    -INF,
    NAN,
)


def numbers(kind):
    """Those that the format has, and its limits."""
    info = torch.iinfo(kind)
    found = {info.min, info.min + 1, info.max - 1, info.max, *(n for n in NUMBERS if info.min <= n <= info.max)}
    return torch.tensor(sorted(found)).to(kind)


def pairs(values):
    """Every value with every value, as two square tensors."""
    n = len(values)
    return values.repeat_interleave(n).reshape(n, n).contiguous(), values.repeat(n).reshape(n, n).contiguous()


def divisors(x, y):
    """y where the quotient exists: PyTorch raises for zero, and C leaves the lowest number by -1 open."""
    return torch.where((y == 0) | ((y == -1) & (x == x.min())), torch.ones_like(y), y)


def identical(function, inputs):
    """NaN equals NaN, everything else is the very number."""
    expected = listed(function(*inputs))
    traced = Traced(function, inputs)
    for on in ("interpreter", "trn1", "trn2"):
        for got, want in zip(traced.run(on)[0], expected, strict=True):
            assert torch.equal(got.isnan(), want.isnan()), on
            assert torch.equal(got[~got.isnan()], want[~want.isnan()]), on


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", ["add", "sub", "mul", "maximum", "minimum", "bitwise_and", "bitwise_or", "bitwise_xor"]
)
def test_arithmetic(name, kind):
    function = getattr(torch, name)
    x, y = pairs(numbers(kind))
    check(lambda x, y: [function(x, y), function(x, y[:1]), function(x[:, :1], y)], [x, y], gradients=False)
    check(lambda x: [function(x, torch.tensor(3, dtype=kind)), x + 100, 7 - x, x * 3], [x], gradients=False)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: torch.div(x, y, rounding_mode="floor"),
        lambda x, y: torch.div(x, y, rounding_mode="trunc"),
        lambda x, y: x // y,
        torch.remainder,
        torch.fmod,
    ],
    ids=["floor", "trunc", "//", "remainder", "fmod"],
)
def test_division(function, kind):
    x, y = pairs(numbers(kind))
    check(function, [x, divisors(x, y)], gradients=False)
    check(lambda x: [function(x, 3), function(x, 128 if kind is torch.uint8 else -5)], [x], gradients=False)


def test_division_by_zero():
    """The CPU raises; a program cannot, and gives what `docs/adr/0021` says."""
    x = torch.tensor([-7, 0, 7, 2**31 - 1], dtype=torch.int32)
    traced = Traced(lambda x: [x // (x * 0), torch.fmod(x, x * 0)], [x])
    for on in ("interpreter", "trn1"):
        quotient, rest = traced.run(on)[0]
        assert quotient.tolist() == [-1] * 4
        assert torch.equal(rest, x)


@pytest.mark.parametrize("kind", KINDS)
def test_shifts(kind):
    """By all distances, negative ones and those beyond the width among them."""
    x, y = pairs(numbers(kind))
    check(lambda x, y: [x << y, x >> y], [x, y], gradients=False)
    check(lambda x: [x << 3, x >> 3, x >> 1, 1 << x, x >> 40], [x], gradients=False)


@pytest.mark.parametrize("kind", [*KINDS, torch.int64])
@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparisons(name, kind):
    x, y = pairs(numbers(torch.int32 if kind is torch.int64 else kind).to(kind))
    function = getattr(torch, name)
    number = 2**24 if kind in (torch.int32, torch.int64) else 5
    check(lambda x, y: [function(x, y), function(x, y[:1]), function(x, number)], [x, y], gradients=False)


@pytest.mark.parametrize("kind", KINDS)
def test_signs_and_bounds(kind):
    x, y = pairs(numbers(kind))
    check(
        lambda x, y: [
            -x,
            x.abs(),
            x.sign(),
            ~x,
            x.clamp(2, 100),
            x.clamp(max=7),
            torch.clamp(x, y, y + 1),
            x**2,
            torch.addcmul(x, x, y),
        ],
        [x, y],
        gradients=False,
    )


@pytest.mark.parametrize("kind", [*KINDS, torch.bool, torch.int64])
def test_choices(kind):
    x, y = pairs(numbers(torch.int32 if kind in (torch.bool, torch.int64) else kind).to(kind))
    check(
        lambda x, y: [
            torch.where(x > y, x, y),
            torch.where(x > y, x, 1),
            torch.where(x > y, 0, y),
            x.masked_fill(x > y, 1),
            x.tril(),
            torch.where(x[:, :1] > y, x[:, :1], y[:1]),
        ],
        [x, y],
        gradients=False,
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [0, 1, (0, 1)])
def test_sums_and_extremes(kind, dim):
    """Sums and products wrap at 32 bits."""
    x, y = pairs(numbers(kind))
    check(
        lambda x: [
            x.sum(dim, dtype=torch.int32),
            x.prod(-1, dtype=torch.int32),
            x.amax(dim),
            x.amin(dim),
            (x > 3).any(dim),
            (x != 3).all(dim),
        ],
        [x ^ (y & 3)],
        gradients=False,
    )


@pytest.mark.parametrize("count", [257, 5000, 70_000])
def test_long_rows(count):
    """Longer than one limb of 16 bits allows, than SBUF's chunks, than an instruction."""
    generator = torch.Generator().manual_seed(count)
    x = torch.randint(-(2**31), 2**31 - 1, (2, count), dtype=torch.int32, generator=generator)
    check(lambda x: [x.sum(1, dtype=torch.int32), x.amax(1), x.amin(1)], [x], gradients=False)
    check(lambda x: [(x > 0).any(1), (x > -(2**31)).all(1), x.sum(0, dtype=torch.int32)], [x], gradients=False)


@pytest.mark.parametrize("kind", KINDS)
def test_places_of_extremes(kind):
    """The first one counts; PyTorch leaves open which, and takes the first on the CPU."""
    x, y = pairs(numbers(kind))
    check(
        lambda x: [x.argmax(), x.argmin(1), x.argmax(0, keepdim=True), *x.max(0), *x.min(1)],
        [x ^ (y & 3)],
        gradients=False,
    )


def test_places_of_extremes_among_nan_and_infinities():
    """NaN is the largest and the smallest."""
    x = torch.tensor([[1.0, NAN, 3, NAN], [INF, 2, INF, -INF], [-INF] * 4, [5.0] * 4])
    check(lambda x: [x.argmax(1), x.argmin(1), *x.max(1), *x.min(0), x.argmax()], [x], gradients=False)


@pytest.mark.parametrize("kind", KINDS)
def test_casts(kind):
    x, _ = pairs(numbers(kind))
    targets = (
        torch.float32,
        torch.bfloat16,
        torch.float16,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    )
    check(lambda x: [x.to(t) for t in targets], [x], gradients=False)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16])
def test_floats_truncate(kind):
    """Within the target's range toward zero; beyond it narrow formats keep the lowest bits, as on the CPU."""
    x = torch.tensor(
        [[0.17, 0.28, 0.99, 1.5, 2.5, -2.5, 0.49999997, 8388607.5, 16777217, 2147483520.0, *FLOATS[:-3]]]
    )
    most = min(1e9, torch.finfo(kind).max)
    within = x.clamp(-most, most).to(kind)
    within = torch.where(within.isfinite(), within, 1.0)
    check(lambda x: [(x.float() * 10).clamp(-2e9, 2e9).int(), x.int(), x.long()], [within], gradients=False)
    check(lambda x: [x.to(torch.uint8), x.to(torch.int8), x.to(torch.int16), x.bool()], [x.to(kind)], gradients=False)
    check(lambda x: [x.bool(), x != 0, x.isnan()], [torch.tensor(FLOATS).to(kind)], gradients=False)


def test_choices_of_infinities():
    """Nothing is multiplied by zero: what was not chosen leaves no trace."""
    x, y = pairs(torch.tensor(FLOATS))
    identical(
        lambda x, y: [
            torch.where(x > y, x, y),
            torch.where(x > y, -INF, 0.0),
            torch.where(x > y, x[:, :1], 0.0),
            torch.where(x == 1, y[:1], 0.0),
            torch.where(x > 0, 2.5, 0.0),
            torch.maximum(x, y),
            torch.minimum(x, y),
            x.masked_fill(y > 0, -INF),
            x.clamp(-1, 1),
            x.relu(),
        ],
        [x, y],
    )


@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparisons_of_floats(name):
    function = getattr(torch, name)
    check(
        lambda x, y: [function(x, y), function(x, 0.5), function(x[:, :1], y)],
        [*pairs(torch.tensor(FLOATS))],
        gradients=False,
    )


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_running_sums(dim, precision):
    """Of integers exact, of floats never in bfloat16, though they are a matrix product."""
    from trnlab import chips
    from trnlab.runtime import session

    x, y = pairs(numbers(torch.int32))
    z = torch.tensor([[257.0, -256, 258, 512], [1, INF, 2, 3], [1, -INF, 2, INF], [NAN, 1, 2, 3], [1001.5, 1, 1, 1]])
    with session.activate(session.Session(chips.target("trn1"), precision)):
        identical(lambda x, z: [x.cumsum(dim, dtype=torch.int32), z.cumsum(dim)], [x ^ y, z])


@pytest.mark.parametrize("kind", KINDS)
def test_rows_by_index_and_products(kind):
    x, y = pairs(numbers(kind))
    ids = torch.arange(len(x)) % 4
    check(lambda x, y, i: [x[i], x @ y], [x, y, ids], gradients=False)
    check(lambda x, y, i: x.index_add(0, i, y), [x & 127, y & 127, ids], gradients=False)


def test_any_of_bytes_is_a_byte():
    x = torch.tensor([[0, 0], [0, 3]], dtype=torch.uint8)
    check(lambda x: [x.any(1), x.all(1), x.any()], [x], gradients=False)
