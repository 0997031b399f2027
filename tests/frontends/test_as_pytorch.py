# SPDX-License-Identifier: Apache-2.0
"""Operators whose formula was nearly PyTorch's, or that were refused though legal: beside PyTorch on the CPU."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import TRN1, Traced, check, worst_error

from trnlab.errors import UnsupportedOpError

pytestmark = pytest.mark.torch

HOSTILE = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    torch.inf,
    -torch.inf,
    torch.nan,
    1e-45,
    1.2e-38,
    3e38,
    -3e38,
    1e25,
    -1e-25,
    0.5,
    0.1,
)
ON = ["interpreter", TRN1]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def on_chip(function, *inputs, on=TRN1):
    results, _ = Traced(function, list(inputs)).run(on)
    return results[0] if len(results) == 1 else results


def assert_bits(got, expected):
    """Equal, both zeros apart, NaN like NaN."""
    assert got.dtype == expected.dtype
    got, expected = (x.float().numpy() if x.is_floating_point() else x.numpy() for x in (got, expected))
    np.testing.assert_array_equal(got, expected)
    if np.issubdtype(got.dtype, np.floating):
        np.testing.assert_array_equal(np.signbit(got)[got == got], np.signbit(expected)[got == got])


# -- products of one row or column ----------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [(), (1,), (3,), (4,), (2, 3)])
@pytest.mark.parametrize(
    ("m", "k", "n"), [(8, 2, 1), (8, 16, 1), (128, 2, 1), (1, 2, 8), (1, 2, 1), (8, 1, 1), (8, 1, 4)]
)
def test_products_of_one_row_or_column_take_any_bias(batch, m, k, n):
    x, w = torch.randn(*batch, m, k, generator=seeded()), torch.randn(*batch, k, n, generator=seeded(1))
    shapes = {(1,), (n,), (m, 1), (m, n), (*batch, 1, 1), (*batch, 1, n), (*batch, m, 1), (*batch, m, n)}
    biases = [torch.randn(s, generator=seeded(2)) for s in sorted(shapes)]
    check(lambda x, w, *biases: [x @ w + b for b in biases], [x, w, *biases], gradients=False, on=[TRN1])


# -- quotients, remainders, interpolation, norms --------------------------------------------------------------------


def test_a_truncated_quotient_is_that_of_the_rounded_one():
    x = torch.tensor([1.0, 2.0, 0.7, -1.0])
    function = lambda x: torch.div(x, 0.1, rounding_mode="trunc")  # noqa: E731
    for on in ON:
        assert on_chip(function, x, on=on).tolist() == [10.0, 20.0, 7.0, -10.0]


def test_truncated_quotients_beside_whole_numbers_are_exact():
    """Whole multiples of the divisor and the numbers beside them, of divisors down to subnormal ones."""
    draw, count = seeded(), 4000
    scale = torch.pow(2.0, torch.randint(-140, 100, (count,), generator=draw).float())
    y = (torch.rand(count, generator=draw) * 2 - 1) * scale
    x = torch.randint(1, 1 << 20, (count,), generator=draw).float() * y
    x = torch.cat([x, torch.nextafter(x, x * 0), torch.nextafter(x, x * 2)])
    y = torch.cat([y, y, y])
    for rounding in ("trunc", "floor"):
        function = lambda x, y: torch.div(x, y, rounding_mode=rounding)  # noqa: E731, B023
        expected = function(x, y)
        exact = expected.abs() < 2**21  # from there on the quotient has no digits to spare
        assert_bits(on_chip(function, x, y)[exact], expected[exact])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_quotients_and_remainders_of_16_bits(dtype):
    """A quotient of tensors is rounded before its fraction is cut off; remainders take the number as the format has
    it."""
    x, y = (torch.randn(2000, generator=seeded(i)).mul(30 * (1 - i) + 1).to(dtype) for i in (0, 1))
    for function in (
        lambda x, y: torch.div(x, y, rounding_mode="trunc"),
        lambda x, y: torch.div(x, 0.3, rounding_mode="trunc"),
        lambda x, y: torch.remainder(x, 0.3),
        lambda x, y: torch.fmod(x, -0.7),
    ):
        assert_bits(on_chip(function, x, y), function(x, y))


def test_interpolation_begins_at_the_nearer_end():
    x, y = torch.tensor([1e8, 1.0, -3.0, 0.0]), torch.tensor([1.0, 1e8, 5.0, -0.0])
    for weight in (0.0, 0.3, 0.5, 0.9, 1.0, -0.7):
        for function in (
            lambda x, y: torch.lerp(x, y, weight),  # noqa: B023
            lambda x, y: torch.lerp(x, y, torch.full_like(x, weight)),  # noqa: B023
        ):
            check(function, [x, y], gradients=False, on=ON)
    assert on_chip(lambda x, y: torch.lerp(x, y, 1.0), x, y).tolist() == [1.0, 1e8, 5.0, 0.0]


@pytest.mark.parametrize("order", [1, 2, 3, 0.5, -1, torch.inf, -torch.inf, 0])
def test_the_norm_of_one_number_is_its_magnitude(order):
    x = torch.tensor(HOSTILE)[:, None]
    function = lambda x: torch.linalg.vector_norm(x, order, 1)  # noqa: E731
    assert_bits(on_chip(function, x), function(x))


@pytest.mark.parametrize("function", [torch.addmm, torch.addmv, torch.addbmm, torch.baddbmm])
def test_what_is_multiplied_by_zero_is_not_read(function):
    bad, good = torch.full((8, 8), torch.nan), torch.ones(8, 8)
    shaped = {
        torch.addmm: lambda c, a: (c, a, a),
        torch.addmv: lambda c, a: (c[0], a, a[0]),
        torch.addbmm: lambda c, a: (c, a[None], a[None]),
        torch.baddbmm: lambda c, a: (c[None], a[None], a[None]),
    }[function]
    cases = [(good, bad, {"alpha": 0}), (good, bad, {"alpha": 0, "beta": 2}), (bad, good, {"beta": 0, "alpha": 3})]
    for bias, matrix, factors in [*cases, (bad, bad, {"alpha": 0, "beta": 0}), (good, good, {"alpha": 2, "beta": 3})]:
        check(lambda c, a: function(*shaped(c, a), **factors), [bias, matrix], gradients=False, on=ON)  # noqa: B023


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: x.gather(1, i),
        lambda x, i: x.take_along_dim(i, 1),
        lambda x, i: x.index_select(1, i[0]),
        lambda x, i: x[:, i[0]],
        lambda x, i: F.embedding(i[0], x),
        lambda x, i: x.flip(1),
        lambda x, i: x.roll(1, 1),
        lambda x, i: x.scatter(1, i, x[:, i.shape[1] :]),
        lambda x, i: x.tril(),
        lambda x, i: F.pad(x, (1, 1)),
    ],
)
def test_what_moves_elements_keeps_their_signs(function):
    x, i = torch.tensor([HOSTILE[:6], HOSTILE[1:7]]), torch.tensor([[0, 1, 1], [1, 0, 1]])
    assert_bits(on_chip(function, x, i), function(x, i))
    assert_bits(on_chip(lambda x, i: 1 / function(x, i), x, i), 1 / function(x, i))


# -- empty parts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(0,), (1, 0), (0, 1), (3, 0), (2, 0, 3)])
def test_parts_of_nothing(shape):
    for function in (
        lambda x: x.split(1, -1)[0],
        lambda x: x.split(2, 0)[0],
        lambda x: x.chunk(2, -1)[0],
        lambda x: x.cumprod(0),
        lambda x: x.index_select(0, torch.zeros(0, dtype=torch.int64, device=x.device)),
        lambda x: x.cumsum(-1) + 1,
    ):
        check(function, [torch.zeros(shape)], gradients=False, on=[TRN1])


# -- running sums, products, extremes -------------------------------------------------------------------------------

RUNNING = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")


@pytest.mark.parametrize("count", [1, 2, 127, 512, 513, 1300])
def test_running_results_of_any_length(count):
    draw = seeded(count)
    x, whole = torch.randn(2, count, generator=draw), torch.randint(-9, 9, (2, count), generator=draw)
    for name in RUNNING:
        y = 1 + x / 100 if name == "cumprod" else x.round(decimals=1)
        function = lambda x: getattr(x, name)(1)  # noqa: E731, B023
        found, expected = on_chip(function, y), function(y)
        for got, want in zip(*((v if isinstance(v, (tuple, list)) else [v]) for v in (found, expected))):
            assert worst_error(got, want) < 1e-5
            assert name not in ("cummax", "cummin") or got.equal(want)
        if name in ("cumsum", "cummax"):
            check(function, [whole], gradients=False, on=[TRN1])
    wrapped = lambda x: (x.cumprod(0, dtype=torch.int32), (x * 10**8).to(torch.int32).cumsum(1, dtype=torch.int32))  # noqa: E731
    check(wrapped, [whole.to(torch.int32)], gradients=False, on=[TRN1])


def test_running_results_of_hostile_values():
    """Beyond an infinity, a NaN, zeros among products that overflow, and back from where fp32 ends."""
    draw = seeded()
    x = torch.tensor(HOSTILE)[torch.randint(0, len(HOSTILE), (100, 12), generator=draw)]
    x[:, :6] = x[:, :6].where(torch.rand(100, 6, generator=draw) < 0.5, 2.0)
    for name in RUNNING[1:]:
        function = lambda x: getattr(x, name)(1)  # noqa: E731, B023
        check(function, [x], gradients=False, on=ON, rtol=1e-5, atol=1e-44)
    long = torch.ones(3, 700)
    long[0, 300], long[1, 400], long[2, 200], long[2, 600] = torch.inf, torch.nan, torch.inf, -torch.inf
    check(lambda x: x.cumsum(1), [long], gradients=False, on=[TRN1])


@pytest.mark.parametrize("zeros", [(), ((0, 3),), ((0, 1), (0, 4), (1, 2))])
def test_gradients_of_products(zeros):
    x = torch.rand(3, 7, generator=seeded()) + 0.5
    for place in zeros:
        x[place] = 0
    check(lambda x: (x.prod(1), x.prod(), x.cumprod(1)), [x], on=[TRN1], rtol=2e-5, atol=1e-5)


def test_a_running_sum_takes_a_program_that_grows_with_its_length():
    """Of 64 times the elements at most 2 times the ops: blocks and their sums, not pairs."""
    ops = [len(Traced(lambda x: x.cumsum(0), [torch.zeros(n)]).graph.ops) for n in (2**11, 2**17)]
    assert ops[1] <= 2 * ops[0]
    largest = max(
        v.type.size for op in Traced(lambda x: x.cumsum(0), [torch.zeros(2**17)]).graph.ops for v in op.results
    )
    assert largest <= 2**17 + 512**2


# -- numbers beside narrow integers ---------------------------------------------------------------------------------

WITH_NUMBERS = {
    "add": lambda x, n: x + n,
    "sub": lambda x, n: x - n,
    "rsub": lambda x, n: n - x,
    "mul": lambda x, n: x * n,
    "alpha": lambda x, n: torch.add(x, x, alpha=n),
    "min": lambda x, n: x.clamp(min=n),
    "max": lambda x, n: x.clamp(max=n),
    "and": lambda x, n: x & n,
    "pow": lambda x, n: n**x,
    "gt": lambda x, n: x > n,
    "ne": lambda x, n: x != n,
    "where": lambda x, n: torch.where(x > 3, x, n),
    "masked_fill": lambda x, n: x.masked_fill(x > 3, n),
    "floor": lambda x, n: x // n,
    "remainder": lambda x, n: x % n,
    "fmod": lambda x, n: torch.fmod(x, n),
    "trunc": lambda x, n: torch.div(x, n, rounding_mode="trunc"),
    "full": lambda x, n: torch.full_like(x, n),
}


@pytest.mark.parametrize("name", WITH_NUMBERS)
def test_numbers_are_taken_modulo_the_format(name):
    """Where PyTorch takes one; what it refuses, a program refuses, too."""
    for dtype in (torch.uint8, torch.int8):
        x, functions, expected = torch.arange(250, 256, dtype=torch.uint8).to(dtype), [], []
        for number in (-1, -3, -200, 300, 255):
            function = lambda x, n=number: WITH_NUMBERS[name](x, n)  # noqa: E731
            try:
                expected.append(function(x))
                functions.append(function)
            except RuntimeError:
                with pytest.raises(UnsupportedOpError):
                    on_chip(function, x)
        found = on_chip(lambda x: [f(x) for f in functions], x)  # noqa: B023
        for got, want in zip(found if isinstance(found, list) else [found], expected):
            assert_bits(got, want)


# -- what was refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses_by_margins_and_their_gradients(reduction):
    x, weight = torch.randn(4, 5, generator=seeded()), torch.rand(5, generator=seeded(1))
    one = torch.tensor([0, 4, 2, 2])
    several = torch.tensor([[0, 3, -1, 1, 2], [1, -1, 0, 0, 0], [4, 3, 2, 1, 0], [-1, 0, 0, 0, 0]])
    functions = [
        lambda x, t, _, w: F.multi_margin_loss(x, t, p=1, margin=0.7, weight=w.detach(), reduction=reduction),
        lambda x, t, _, w: F.multi_margin_loss(x, t, p=2, reduction=reduction),
        lambda x, _, s, w: F.multilabel_margin_loss(x, s, reduction=reduction),
        lambda x, t, s, w: F.multi_margin_loss(x[0], t[0], reduction=reduction).reshape(()),  # PyTorch's fake has [1]
        lambda x, _, s, w: F.multilabel_margin_loss(x[0], s[0], reduction=reduction).reshape(()),
    ]
    for function in functions:
        check(lambda x, t, s: function(x, t, s, weight.to(x.device)), [x, one, several], on=[TRN1])  # noqa: B023


@pytest.mark.parametrize("padding", [None, 1])
def test_gradients_by_how_often_a_row_was_read(padding):
    def function(table, ids):
        return F.embedding(ids, table, padding_idx=padding, scale_grad_by_freq=True)

    check(function, [torch.randn(6, 3, generator=seeded()), torch.tensor([[1, 1, 5], [0, 1, 5]])], on=ON)


def test_a_permutation_has_each_number_once():
    found = on_chip(lambda x: torch.randperm(300, device=x.device) + x.long(), torch.zeros(1))
    assert found.sort().values.tolist() == list(range(300))
    assert found.tolist() != list(range(300))
    with pytest.raises(UnsupportedOpError, match="pairs"):
        on_chip(lambda x: torch.randperm(100_000, device=x.device) + x.long(), torch.zeros(1))


def test_extremes_of_truth():
    x = torch.rand(4, 9, generator=seeded()) > 0.5
    check(lambda x: (*x.max(1), *x.min(0), x.amax(1), x.amin(), x.max()), [x], gradients=False, on=ON)
