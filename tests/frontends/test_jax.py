# SPDX-License-Identifier: Apache-2.0
"""Functions of JAX on the simulated chip, beside jax.jit on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

import trnlab.frontends.jax as neuron  # noqa: E402
import trnlab.nki as nki  # noqa: E402
import trnlab.nki.language as nl  # noqa: E402
from trnlab import chips  # noqa: E402
from trnlab.errors import TrnlabError  # noqa: E402
from trnlab.runtime import session  # noqa: E402

STEPS = 20


@pytest.fixture
def chip():
    with session.activate(session.Session(chips.target("trn1.2xlarge"), "fp32")) as now:
        yield now


class Losses:
    """Stands where a session keeps its run."""

    script = ""

    def __init__(self):
        self.executables, self.losses, self.tokens = {}, [], []

    def begins(self):
        pass

    def executed(self, executable, beside=0):
        self.executables[executable.key] = executable

    def updated(self):
        raise AssertionError("no optimizer of PyTorch steps here")

    def step(self, loss, tokens=0):
        self.losses.append(loss)
        self.tokens.append(tokens)


@pytest.mark.parametrize("name", ["mlp", "cnn", "gpt", "rnn"])
def test_models_of_flax_and_equinox_train_as_on_the_cpu(chip, name):
    """Dropout and noise come from the same bits; losses of 20 steps differ by rounding alone."""
    models = pytest.importorskip("jax_models")
    (state, step), x, y = models.MODELS[name]()
    chip.run = Losses()
    ours, theirs = neuron.jit(step, donate_argnums=0), jax.jit(step)
    held = jax.tree.map(jnp.array, state)
    wanted = []
    for i in range(STEPS):
        key = jax.random.fold_in(jax.random.key(7), i)
        held, loss = ours(held, x, y, key)
        state, expected = theirs(state, x, y, key)
        wanted.append(float(expected))
        assert isinstance(loss, jax.Array)
    np.testing.assert_allclose(chip.run.losses, wanted, rtol=1e-4, atol=1e-5)
    assert wanted[-1] < wanted[0]
    assert len(chip.run.executables) == 1
    assert jax.tree.structure(held) == jax.tree.structure(state)


def test_trees_types_and_donation_are_as_with_jax_jit(chip):
    def f(params, x, key, n=3):
        return {
            "a": params["w"] * x,
            "key": jax.random.split(key)[0],
            "none": None,
            "rest": (x.sum(), n, params["w"]),
        }

    results = []
    for compiled in (neuron.jit, jax.jit):
        params, key = {"w": jnp.ones(3)}, jax.random.key(0)
        results.append(compiled(f, donate_argnums=0, static_argnames="n")(params, np.arange(3.0), key, n=4))
        assert params["w"].is_deleted()
    ours, theirs = results
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs)):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        if x.dtype == key.dtype:
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        assert x.weak_type == y.weak_type
        assert (x == y).all()


def test_donation_saves_memory_on_the_chip(chip):
    x = jnp.ones((256, 256))
    plain, donating = neuron.jit(lambda x: x * 2), neuron.jit(lambda x: x * 2, donate_argnums=0)
    needs = []
    for function in (plain, donating):
        chip.executables.clear()
        function(jnp.array(x))
        (executable,) = chip.executables.values()
        needs.append(executable.forecast.peak_bytes)
    assert needs[0] - needs[1] == x.nbytes


def test_a_new_shape_compiles_again_and_is_said(chip, capsys):
    double = neuron.jit(lambda x: x * 2)
    for n in (3, 3, 5, 3, 5):
        assert double(np.ones(n, np.float32)).shape == (n,)
    assert len(chip.executables) == 2
    assert capsys.readouterr().err.count("compiling") == 1


def test_derivatives_and_vectorization_inside(chip):
    @jax.custom_vjp
    def clipped(x):
        return x * x

    clipped.defvjp(lambda x: (x * x, x), lambda x, g: (jnp.clip(2 * x * g, -1, 1),))

    def f(x, w):
        inner = jax.jit(lambda x: jax.vmap(lambda row: clipped(row @ w))(x).sum())
        value, grad = jax.value_and_grad(inner)(x)
        return (
            value,
            grad,
            jax.hessian(lambda w: (x[0] @ w) ** 3)(w),
            jax.jvp(lambda x: jnp.tanh(x @ w).sum(), (x,), (x,))[1],
        )

    x, w = (np.random.default_rng(i).standard_normal(s).astype(np.float32) for i, s in enumerate(((4, 3), (3,))))
    for ours, theirs in zip(neuron.jit(f)(x, w), jax.jit(f)(x, w)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_compiled_function_within_another_becomes_part_of_it(chip):
    inner = neuron.jit(lambda x: jnp.sin(x) * 2)
    outer = neuron.jit(lambda x: jax.grad(lambda x: inner(x).sum())(x))
    np.testing.assert_allclose(outer(np.ones(3, np.float32)), 2 * np.cos(np.ones(3)), rtol=1e-5)
    assert len(chip.executables) == 1


def test_transforming_a_compiled_function_on_the_host_is_said(chip, capsys):
    def cube(x):
        return x**3

    assert jax.grad(neuron.jit(cube))(2.0) == 12
    assert "'cube'" in capsys.readouterr().err
    assert not chip.executables


def test_closures_are_constants_as_jax_has_them(chip):
    scale = [2.0]
    times = neuron.jit(lambda x: x * scale[0])
    assert times(np.float32(3)) == 6
    scale[0] = 5.0
    assert times(np.float32(3)) == 6  # JAX traced it before
    assert times(np.ones(1, np.float32)) == 5


def test_a_loop_that_data_ends_runs_on_the_chip(chip):
    def root(a):
        return jax.lax.while_loop(lambda x: jnp.abs(x * x - a) > 1e-3, lambda x: (x + a / x) / 2, a)

    newton = neuron.jit(root)
    assert abs(float(newton(np.float32(2))) - 2**0.5) < 1e-3
    assert chip.counters.instructions > 0


def test_refusals_name_the_line(chip):
    with pytest.raises(TrnlabError) as caught:
        neuron.jit(lambda x: jnp.fft.fft(x).real)(np.ones(4, np.float32))
    assert caught.value.code == "TRN232"
    assert caught.value.where.file == __file__


@pytest.mark.parametrize(
    "function", [lambda p, x: ({"w": p["w"] - x}, x.sum()), lambda p, x: (x.mean(), {"w": p["w"]})]
)
def test_steps_are_known_by_their_loss_and_their_successor(chip, function):
    chip.run = Losses()
    neuron.jit(function)({"w": np.ones(3, np.float32)}, np.full((3,), 2.0, np.float32))
    assert len(chip.run.losses) == 1
    assert chip.run.tokens == [3]
    neuron.jit(lambda x: (x * 2, x.sum()), step=False)(np.ones(3, np.float32))
    neuron.jit(lambda x, y: (x.sum(), y))(np.ones(3, np.float32), np.float32(2))
    assert len(chip.run.losses) == 1


def test_methods_and_decorators(chip):
    class Scale:
        @neuron.jit
        def __call__(self, x):
            return x * 2

    class Times:
        @neuron.jit(static_argnums=0)
        def of(self, x):
            return x * 3

    assert Times().of(np.float32(2)) == 6
    with pytest.raises(TypeError):
        Scale()(np.float32(2))  # as with jax.jit: self is no array


# -- kernels of NKI ------------------------------------------------------------------------------------------------


@nki.jit
def scaled(x, w, factor):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.multiply(nl.multiply(nl.load(x), nl.load(w)), factor))
    return out


@jax.custom_vjp
def product(x, w):
    return scaled(x, w, 3.0)


product.defvjp(lambda x, w: (product(x, w), (x, w)), lambda held, g: (3 * g * held[1], 3 * g * held[0]))


def test_a_kernel_is_one_op_of_the_program(chip):
    """In the loss, in its gradient, and once for each element under vmap; on the host the same numbers."""
    x, w = (np.random.default_rng(i).standard_normal((64, 32)).astype(np.float32) for i in range(2))

    def step(w, x):
        value, grad = jax.value_and_grad(lambda w: (product(jnp.sin(x), w) ** 2).mean())(w)
        return w - grad, value, jax.vmap(lambda x: scaled(x, w, 2.0))(jnp.stack([x, x + 1]))

    compiled = neuron.jit(step)
    found = compiled(w, x)
    assert sum(op.name == "custom_call" for op in compiled.graph.ops) == 3
    for ours, theirs in zip(found, jax.jit(step)(w, x)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[2][1], 2 * (x + 1) * w, rtol=1e-6)
    with neuron.use(neuron.InterpreterEngine()):
        for ours, theirs in zip(neuron.jit(step)(w, x), found):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_kernel_without_a_derivative_says_so(chip):
    with pytest.raises(NotImplementedError, match="trnlab_kernel"):
        neuron.jit(jax.grad(lambda x: scaled(x, x, 1.0).sum()))(np.ones((64, 32), np.float32))


# -- attention -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["plain", "causal", "mask", "all hidden", "causal mask", "grouped", "mapped"])
def test_attention_is_one_op_and_means_what_jax_means(chip, case):
    rng = np.random.default_rng(0)
    heads = 2 if case == "grouped" else 4
    q, k, v = (rng.standard_normal((2, 10, n, 8)).astype(np.float32) for n in (4, heads, heads))
    mask = rng.random((2, 1, 10, 10)) < 0.7
    mask[0, :, 3] = case != "all hidden"

    def total(attention):
        def f(q, k, v):
            def one(q, k, v, mask=None):
                hidden = {"mask": mask} if case in ("mask", "all hidden", "causal mask", "mapped") else {}
                return attention(q, k, v, is_causal=case in ("causal", "causal mask", "grouped"), **hidden)

            out = jax.vmap(one)(q, k, v, mask) if case == "mapped" else one(q, k, v, mask)
            return (out * jnp.arange(8)).sum(), out

        return jax.value_and_grad(f, (0, 1, 2), has_aux=True)

    compiled = neuron.jit(total(neuron.dot_product_attention))
    wanted = jax.tree.leaves(jax.jit(total(jax.nn.dot_product_attention))(q, k, v))
    for ours, theirs in zip(jax.tree.leaves(compiled(q, k, v)), wanted):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    names = [op.name for op in compiled.graph.ops]
    assert names.count("trn.attention") == names.count("trn.attention_backward") == 1
    for ours, theirs in zip(jax.tree.leaves(jax.jit(total(neuron.dot_product_attention))(q, k, v)), wanted):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
