# SPDX-License-Identifier: Apache-2.0
"""StableHLO in: what JAX writes, read, gives XLA's results on the CPU, element by element."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402
from stablehlo_oracle import against_xla, keys  # noqa: E402

from trnlab import chips  # noqa: E402
from trnlab.errors import RunError, TrnlabError, UsageError  # noqa: E402
from trnlab.frontends.common.engine import DeviceEngine, InterpreterEngine  # noqa: E402
from trnlab.frontends.stablehlo import import_module  # noqa: E402
from trnlab.runtime import session  # noqa: E402

# Without subnormal numbers, which XLA takes for zero on a CPU.
HOSTILE = np.array(
    [0.0, -0.0, 1.0, -1.5, 2.5, -2.5, 2e-38, -2e-38, 3e38, -3e38, np.inf, -np.inf, np.nan, 0.49999997, 7.0],
    np.float32,
)
WORDS = np.array([0, 1, -1, 2, 7, -8, 2**31 - 1, -(2**31), 12345, -54321], np.int32)


@pytest.mark.parametrize(
    "function",
    [
        jnp.abs,
        jnp.sign,
        jnp.floor,
        jnp.ceil,
        jnp.round,
        jnp.isfinite,
        jnp.negative,
        lax.is_finite,
        lambda x: lax.round(x),
        lambda x: lax.reduce_precision(x, 8, 7),
        lambda x: x.astype(jnp.bfloat16),
        lambda x: x.astype(bool),
        lambda x: jnp.nan_to_num(x),
        lambda x: jnp.clip(x, -1, 2),
        lambda x: lax.bitcast_convert_type(x, jnp.uint32),
        lambda x: jnp.signbit(x),
        lambda x: jnp.sort(x),
        lambda x: jnp.argsort(x),
        lambda x: -jnp.sort(-x),
        lambda x: jnp.flip(x),
        lambda x: lax.top_k(x, 4),
        lambda x: lax.top_k(x, 15),
        lambda x: jnp.argmax(x),
        lambda x: jnp.argmin(x),
        lambda x: jnp.max(x),
        lambda x: jnp.nanmax(x),
        lambda x: jnp.where(x > 0, x, -x),
        lambda x: x == x[::-1],
        lambda x: x[:, None] < x[None],
        lambda x: jnp.maximum(x, x[::-1]),
    ],
)
def test_hostile_floats_give_the_same_bits(function):
    against_xla(function, HOSTILE, exact=True)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + x[::-1],
        lambda x: x * x,
        lambda x: x // jnp.where(x == 0, 3, x[::-1]),
        lambda x: x % 7,
        lambda x: x << 3,
        lambda x: x >> 2,
        lambda x: lax.shift_right_logical(x, jnp.int32(5)),
        lambda x: ~x,
        lambda x: x & x[::-1],
        lambda x: x ^ x[::-1],
        lax.population_count,
        lax.clz,
        lambda x: x.astype(jnp.int8),
        lambda x: x.astype(jnp.uint32),
        lambda x: x.astype(jnp.float32),
        jnp.sort,
        jnp.argmax,
        jnp.sum,
        jnp.prod,
        jnp.cumsum,
        jnp.cumprod,
        lambda x: lax.cumsum(x, reverse=True),
        lambda x: jnp.bincount(x & 3, length=4),
        lambda x: jnp.any(x > 5),
        lambda x: jnp.all(x > 5),
        lambda x: lax.top_k(x, 3),
        lambda x: x.astype(bool),
    ],
)
def test_hostile_words_give_the_same_bits(function):
    against_xla(function, WORDS, exact=True)


@pytest.mark.parametrize(
    "function",
    [
        jnp.tan,
        jnp.cbrt,
        jnp.expm1,
        jnp.log1p,
        jax.nn.sigmoid,
        jax.nn.gelu,
        jax.nn.softplus,
        jnp.sinh,
        jnp.cosh,
        jnp.arcsinh,
        jnp.arctan,
        lambda x: jnp.arctan2(x, x[::-1]),
        jax.scipy.special.erf,
        jax.scipy.special.erfc,
        lambda x: jax.scipy.special.erfinv(x / 10),
        jax.scipy.special.digamma,
        lax.lgamma,
        jax.nn.softmax,
        lambda x: jnp.var(x),
        jax.nn.logsumexp,
        lambda x: x**3,
        lambda x: jnp.hypot(x, x[::-1]),
        lax.cummax,
        lax.cumlogsumexp,
    ],
)
def test_functions_agree_to_rounding(function):
    against_xla(function, np.linspace(-6, 6, 37, dtype=np.float32) + np.float32(0.01), tolerance=3e-6)


@pytest.mark.parametrize("by", [0, 1, 3, 1000, 2**16 + 1, 2**31 - 1, 2**31, 2**32 - 1, None])
def test_the_chip_divides_unsigned_words_exactly(by):
    x = np.array([0, 1, 2, 999, 1000, 2**24 + 1, 2**31 - 1, 2**31, 2**31 + 5, 2**32 - 2, 2**32 - 1], np.uint32)
    y = x[::-1].copy() if by is None else np.full_like(x, by)
    with session.activate(session.Session(chips.target("trn1.2xlarge"), "fp32")):
        against_xla(lambda x, y: (lax.div(x, y), lax.rem(x, y)), x, y, exact=True, runner=DeviceEngine().compile)
        against_xla(lambda x: lax.rem(x, jnp.uint32(by or 7)), x, exact=True, runner=DeviceEngine().compile)


def test_random_bits_are_those_of_jax():
    """Threefry is integer arithmetic: bits, and the numbers made of them without a function, are equal."""

    def draws(key):
        first, second = jax.random.split(key)
        return (
            jax.random.bits(first, (3, 41)),
            jax.random.uniform(second, (5, 7)),
            jax.random.split(key, 3),
            jax.random.bernoulli(key, 0.3, (64,)),
            jax.random.randint(key, (50,), 0, 1000),
            jax.random.fold_in(key, 7),
            jax.random.permutation(key, 20),
            jax.random.choice(key, 9, (4,), replace=False),
        )

    against_xla(draws, jax.random.key(5), exact=True)
    against_xla(lambda key: jax.random.normal(key, (200,)), jax.random.key(5), tolerance=1e-5)


@pytest.mark.parametrize("seed", range(12))
def test_indexing(seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((5, 6, 7)).astype(np.float32)
    i, j = (rng.integers(-9, 9, (4,)).astype(np.int32) for _ in range(2))
    k = rng.integers(-9, 9, (4, 3)).astype(np.int32)
    functions = [
        lambda x, i, j, k: (x[i], x[:, j], x[i, j], x[i, :, j], x[k, 2], x[..., k]),
        lambda x, i, j, k: (x.at[i].set(1.0), x.at[i, j].add(x[0, :4]), x.at[:, i].multiply(2.0), x.at[k].max(0.5)),
        lambda x, i, j, k: (lax.dynamic_slice(x, (i[0], j[0], k[0, 0]), (2, 6, 3)), x.at[i, :, j].min(0.1)),
        lambda x, i, j, k: (
            lax.dynamic_update_slice(x, x[:2, :3, :4], (i[0], j[1], k[0, 1])),
            x.at[2:4, i[0]].set(0),
        ),
        lambda x, i, j, k: (
            jnp.take_along_axis(x, jnp.abs(k[:1, :1, None]) + x.astype(int)[..., :3], 2, mode="clip"),
            jnp.take(x, k, 1, mode="fill"),
        ),
        lambda x, i, j, k: (
            x.at[i].set(x[:4], mode="drop"),
            x.at[i].get(mode="fill", fill_value=3),
            x.at[i, 1].divide(2.0),
        ),
        lambda x, i, j, k: jax.vmap(lambda a, n: lax.dynamic_slice(a, (n, 1), (3, 2)))(x, jnp.arange(5) + i[0]),
        lambda x, i, j, k: jax.vmap(lambda a, n: lax.dynamic_update_slice(a, a[:2, :3], (n, 1)))(
            x, jnp.arange(5) + i[0]
        ),
        lambda x, i, j, k: jax.grad(lambda x: (x[i] * x[i, j][:, None]).sum())(x),
        lambda x, i, j, k: jax.vmap(lambda a, n: a[n])(x, k[jnp.arange(5) % 4]),
        lambda x, i, j, k: jax.vmap(lambda a, n: a.at[n].add(1.0))(x, k[jnp.arange(5) % 4]),
        lambda x, i, j, k: (
            jax.ops.segment_sum(x, jnp.abs(i)[jnp.arange(5) % 4], 10),
            jnp.roll(x, 2, 1),
            x[::-2, 1:5:2],
        ),
    ]
    against_xla(functions[seed], x, i, j, k, tolerance=1e-6)


@pytest.mark.parametrize("dims", [(1, "SAME"), (2, "VALID"), (2, ((1, 0), (0, 2)))])
def test_windows_and_their_gradients(dims):
    strides, padding = dims
    x = np.random.default_rng(0).standard_normal((2, 7, 6, 3)).astype(np.float32)
    pads = padding if isinstance(padding, str) else ((0, 0), *padding, (0, 0))

    def pooled(x):
        largest = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 2, 1), (1, strides, strides, 1), pads)
        sums = lax.reduce_window(x, 0.0, lax.add, (1, 3, 2, 1), (1, strides, strides, 1), pads)
        return largest, sums

    against_xla(pooled, x, tolerance=1e-6)
    against_xla(jax.grad(lambda x: sum((p * p).sum() for p in pooled(x))), x, tolerance=1e-5)


def test_convolutions_of_any_layout():
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((2, 9, 8, 4), (3, 2, 2, 6)))

    def f(x, w):
        numbers = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(
            x, w, (2, 1), "SAME", rhs_dilation=(1, 2), dimension_numbers=numbers, feature_group_count=2
        )

    against_xla(f, x, w, tolerance=1e-5)
    against_xla(jax.grad(lambda x, w: (f(x, w) ** 2).sum(), (0, 1)), x, w, tolerance=1e-4)


# -- control flow ---------------------------------------------------------------------------------------------------


def test_loops_of_known_length_are_unrolled():
    def f(x):
        carry, seen = lax.scan(lambda c, t: (c * 0.5 + t, c.sum()), jnp.zeros(4), x)
        return carry, seen, lax.fori_loop(0, 5, lambda i, c: c + i * x[i % 3], carry)

    program = against_xla(f, np.arange(12, dtype=np.float32).reshape(3, 4), tolerance=1e-6)
    assert program.graph is not None
    against_xla(jax.grad(lambda x: f(x)[2].sum()), np.ones((3, 4), np.float32), tolerance=1e-6)


def test_a_loop_that_data_ends_runs_round_by_round():
    def f(x, n):
        y, rounds = lax.while_loop(lambda s: s[0].sum() < 100, lambda s: (s[0] * 2, s[1] + n), (x + 1, 0))
        z = lax.while_loop(
            lambda s: s < rounds, lambda s: lax.while_loop(lambda t: t % 3 < 2, lambda t: t + 1, s) + 1, 0
        )
        return y * x, rounds, z

    program = against_xla(f, np.arange(4, dtype=np.float32), np.int32(3), exact=True)
    assert program.graph is None
    assert len(program.steps) == 4


def test_a_loop_in_the_branch_that_is_not_taken_does_not_run():
    def f(x, go):
        return lax.cond(go, lambda x: lax.while_loop(lambda s: s.sum() > 0, lambda s: s + 1, x), lambda x: x * 2, x)

    against_xla(f, np.ones(3, np.float32), np.False_, exact=True)  # the loop would not end


def test_a_long_loop_becomes_one_of_the_host_and_that_is_said(capsys):
    def f(x):
        def body(i, c):
            return jnp.sin(c) + lax.while_loop(lambda n: n < i, lambda n: n + 1, 0)  # rounds that are not alike

        return lax.fori_loop(0, 30, body, x)

    assert against_xla(f, np.ones(3, np.float32)).graph is not None
    assert against_xla(f, np.ones(3, np.float32), most_ops=40).graph is None
    assert "TRN238" in capsys.readouterr().err


def counting(until):
    """A loop that counts up to a number that only data says."""
    jitted = jax.jit(lambda n: lax.while_loop(lambda s: s != n, lambda s: s + 1, jnp.zeros_like(n)))
    run = import_module(jitted.lower(np.int32(0)).compiler_ir("stablehlo"), "counting").load(
        InterpreterEngine().compile
    )
    return run([np.int32(until)])[0]


def test_a_loop_without_end_is_told_and_stopped(monkeypatch, capsys):
    """It counts away from the number that it waits for; the line is the user's."""
    monkeypatch.setenv("TRNLAB_MOST_ROUNDS", "1500")
    with pytest.raises(RunError) as caught:
        counting(-1)
    assert caught.value.code == "TRN511"
    assert "1,500" in str(caught.value)
    assert "TRNLAB_MOST_ROUNDS" in str(caught.value)
    assert caught.value.where is not None
    assert caught.value.where.file.endswith("test_stablehlo_import.py")
    told = capsys.readouterr().err
    assert told.count("TRN512") == 1
    assert "1,000 times" in told


@pytest.mark.parametrize(("most", "rounds"), [("1100", 1100), ("none", 1100), (None, 999)])
def test_as_many_rounds_as_allowed_are_done(most, rounds, monkeypatch, capsys):
    """The last one that is allowed, any number where there is no limit; a loop of fewer than 1000 says nothing."""
    monkeypatch.delenv("TRNLAB_MOST_ROUNDS", raising=False)
    if most is not None:
        monkeypatch.setenv("TRNLAB_MOST_ROUNDS", most)
    assert counting(rounds) == rounds
    assert capsys.readouterr().err.count("TRN512") == (rounds > 1000)


@pytest.mark.parametrize("told", ["0", "-1", "many", ""])
def test_a_limit_that_is_no_number_is_refused(told, monkeypatch):
    monkeypatch.setenv("TRNLAB_MOST_ROUNDS", told)
    with pytest.raises(UsageError) as caught:
        counting(1)
    assert caught.value.code == "TRN511"


def test_branches_on_data_are_selected_and_known_ones_followed():
    def f(x, n):
        chosen = lax.switch(n, [lambda x: x, lambda x: x * 2, lambda x: jnp.log(x)], x)
        return chosen, lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x), lax.cond(jnp.array(True), jnp.sin, jnp.cos, x)

    for n in (-3, 0, 1, 2, 9):
        against_xla(f, np.array([-1.0, 2.0, 0.5], np.float32), np.int32(n), tolerance=1e-6)


# -- what does not run ----------------------------------------------------------------------------------------------


def lowered(function, *args):
    return jax.jit(function).lower(*args).compiler_ir("stablehlo")


@pytest.mark.parametrize(
    ("function", "code"),
    [
        (lambda x: jnp.fft.fft(x), "TRN232"),
        (lambda x: jax.lax.complex(x, x), "TRN232"),
        (lambda x: jnp.linalg.cholesky(x[:, None] * x), "TRN234"),
        (lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x), "TRN234"),
        (
            lambda x: lax.rng_bit_generator(
                jnp.zeros(4, "uint32"), (3,), algorithm=lax.RandomAlgorithm.RNG_THREE_FRY
            ),
            "TRN231",
        ),
    ],
)
def test_refusals_have_a_code_and_the_line(function, code):
    with pytest.raises(TrnlabError) as caught:
        import_module(lowered(function, np.ones(4, np.float32)))
    assert caught.value.code == code
    assert caught.value.where is not None
    assert caught.value.where.file == __file__


def test_what_is_no_module_is_said_in_the_parsers_words():
    with pytest.raises(TrnlabError) as caught:
        import_module("module { nothing }")
    assert caught.value.code == "TRN230"


def test_donated_arguments_are_aliases():
    step = jax.jit(lambda x, y: (x + y, y * 2), donate_argnums=0)
    program = import_module(step.lower(np.ones(3, np.float32), np.ones(3, np.float32)).as_text())
    assert program.graph.aliases == {0: 0}


def test_keys_are_arguments_by_their_words():
    assert keys(jax.random.key(3)).tolist() == [0, 3]


def test_what_nobody_reads_is_not_refused():
    text = """
    func.func @main(%x: tensor<2xf32>, %z: tensor<2xf64>) -> tensor<2xf32> {
      %c = stablehlo.complex %x, %x : tensor<2xcomplex<f32>>
      %d = stablehlo.add %z, %z : tensor<2xf64>
      %e = stablehlo.real %c : (tensor<2xcomplex<f32>>) -> tensor<2xf32>
      return %x : tensor<2xf32>
    }"""
    assert import_module(text).steps == []
    with pytest.raises(TrnlabError, match="also"):
        import_module(
            text.replace("return %x : tensor<2xf32>", "return %e, %d : tensor<2xf32>, tensor<2xf64>").replace(
                "-> tensor<2xf32> {", "-> (tensor<2xf32>, tensor<2xf64>) {"
            )
        )


@pytest.mark.parametrize("unique", [False, True])
def test_scatters_take_any_body(unique):
    """Updates of one row are combined one after the other, in order; a row that does not exist is dropped."""
    x, u = np.arange(1, 13, dtype=np.float32).reshape(4, 3), np.linspace(-1, 2, 9, dtype=np.float32).reshape(3, 3)
    rows = np.array([[2, 9, 0]] if unique else [[2, 2, 1], [3, 9, 3]], np.int32)
    numbers = lax.ScatterDimensionNumbers((1,), (0,), (0,))

    def f(x, u, i):
        halved = x.at[i].apply(lambda v: v / 2 + 1, unique_indices=unique)
        mixed = lax.scatter_apply(x, i[:, None], jnp.tanh, numbers, update_shape=u.shape, unique_indices=unique)
        return halved, mixed, x.at[i, i % 3].apply(jnp.negative, unique_indices=unique)

    for i in rows:
        against_xla(f, x, u, i, tolerance=1e-6)
        against_xla(lambda x, u, i: f(x, u, i)[0].astype(jnp.int32), x, u, i, exact=True)


@pytest.mark.parametrize("direction", ["left", "right"])
def test_searches_in_sorted_numbers_compare_in_total_order(direction):
    there = np.array([-np.inf, -2.0, -0.0, 0.0, 1.5, 1.5, np.inf], np.float32)
    wanted = np.array([-3.0, 0.0, -0.0, 1.5, np.nan, 2.0, -np.inf], np.float32)
    against_xla(lambda x, y: jnp.searchsorted(x, y, side=direction), there, wanted, exact=True)
    against_xla(lambda x, y: lax.sort((x, y), num_keys=2), np.repeat(there, 2), np.tile(wanted, 2), exact=True)
    against_xla(
        lambda x, y: (lax.eq_to_p.bind(x, y), lax.le_to_p.bind(x, y), lax.lt_to_p.bind(x, y)),
        there,
        wanted,
        exact=True,
    )
