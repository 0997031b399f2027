# SPDX-License-Identifier: Apache-2.0
"""`jax.lax.ragged_dot`, by which experts of a mixture multiply rows of their own, beside jax.jit on the CPU."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

import trnlab.frontends.jax as neuron  # noqa: E402
from trnlab import chips  # noqa: E402
from trnlab.frontends.jax import everywhere  # noqa: E402
from trnlab.frontends.stablehlo import import_module  # noqa: E402
from trnlab.graph.flops import model_flops  # noqa: E402
from trnlab.runtime import session  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1] / "compiler"))
from compiled import error, execute_in_both_orders  # noqa: E402

TOLERANCE = {"float32": 2e-6, "bfloat16": 2.0**-7}
GROUPED = ("trn.grouped_dot", "trn.grouped_outer")
# rows, sizes of groups, K, N
SHAPES = {
    "uneven": (150, (20, 0, 123, 7), 24, 40),
    "all rows in one group": (140, (0, 140, 0), 40, 16),
    "rows of no group": (90, (20, 0, 30), 130, 33),
    "none in any": (30, (0, 0), 16, 8),
    "more than there are rows": (40, (30, 30, 5), 16, 24),
    "one group": (33, (33,), 16, 24),
}


@pytest.fixture
def chip():
    with session.activate(session.Session(chips.target("trn1.2xlarge"), "fp32")) as now:
        yield now


def example(name, dtype="float32"):
    """Rows, matrices, sizes of groups, and weights of results."""
    rows, sizes, k, n = SHAPES[name]
    rng = np.random.default_rng(0)
    shapes = (rows, k), (len(sizes), k, n), (rows, n)
    x, w, c = (jnp.asarray(rng.standard_normal(shape), dtype) for shape in shapes)
    return x, w, np.array(sizes, np.int32), c


def loss(x, w, sizes, c, **how):
    out = lax.ragged_dot(x, w, sizes, **how)
    return (out * c.astype(out.dtype)).sum(dtype=jnp.float32), out


def both_ways(**how):
    return jax.value_and_grad(partial(loss, **how), (0, 1), has_aux=True)


def graph_of(f, *arguments):
    return import_module(jax.jit(f).lower(*arguments).as_text(debug_info=True)).graph


def names(graph):
    return [op.name for op in graph.ops if op.name in (*GROUPED, "dot_general")]


def compare(got, want, tolerance):
    for ours, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        if ours.ndim:  # the loss is a sum of both signs
            assert error(np.asarray(ours, np.float32), np.asarray(theirs, np.float32)) <= tolerance


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_results_and_gradients(chip, name, dtype):
    given = example(name, dtype)
    compiled = neuron.jit(both_ways())
    compare(compiled(*given), jax.jit(both_ways())(*given), TOLERANCE[dtype])
    assert sorted(names(compiled.graph)) == ["trn.grouped_dot", "trn.grouped_dot", "trn.grouped_outer"]


@pytest.mark.parametrize("name", ["uneven", "rows of no group"])
def test_results_in_a_wider_format(chip, name):
    """Gradients of the results are in float32 then, beside matrices in bfloat16."""
    given = example(name, "bfloat16")
    f = both_ways(preferred_element_type=jnp.float32)
    compiled = neuron.jit(f)
    (_, out), gradients = got = compiled(*given)
    assert (out.dtype, *(g.dtype for g in gradients)) == (jnp.float32, jnp.bfloat16, jnp.bfloat16)
    compare(out, jax.jit(f)(*given)[0][1], TOLERANCE["float32"])
    compare(got, jax.jit(f)(*given), TOLERANCE["bfloat16"])
    assert sorted(names(compiled.graph)) == ["trn.grouped_dot", "trn.grouped_dot", "trn.grouped_outer"]


def test_both_orders_of_execution():
    x, w, sizes, c = example("uneven")
    f = lambda *given: both_ways()(*given)[1]  # noqa: E731
    graph = graph_of(f, x, w, sizes, c)
    places = {4: sizes, 40: np.asarray(c), 24: np.asarray(x)}
    given = [np.asarray(w) if len(v.shape) == 3 else places[v.shape[-1]] for v in graph.inputs]
    compare(execute_in_both_orders(graph, given), [np.asarray(g) for g in f(x, w, sizes, c)], TOLERANCE["float32"])


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("where", ["rows", "matrices", "rows of none"])
def test_nothing_of_a_group_reaches_another(chip, where, bad):
    """Where XLA multiplies by zero on the host, it makes NaN of infinities; here rows meet their own matrix alone."""
    x, w, sizes, c = (np.array(v) for v in example("rows of no group"))
    if where == "matrices":
        w[0, 3], w[1] = bad, bad
    else:
        x[slice(0, 20) if where == "rows" else slice(50, 90), 5] = bad
    out = np.asarray(neuron.jit(lambda *given: loss(*given)[1])(x, w, sizes, c))
    with np.errstate(all="ignore"):
        assert error(out[:20], x[:20] @ w[0]) <= TOLERANCE["float32"]
        assert error(out[20:50], x[20:50] @ w[2]) <= TOLERANCE["float32"]
    assert out[50:].tobytes() == bytes(out[50:].nbytes)


def numbers(contracting, ragged, group=(), batch=((), ())):
    return lax.RaggedDotDimensionNumbers((contracting, batch), ragged, group)


# the order of dimensions of both operands, and the numbers that say which are which
ORDERS = {
    "matrices turned": ((0, 1), (0, 2, 1), numbers(((1,), (2,)), (0,), (0,))),
    "groups last": ((0, 1), (1, 2, 0), numbers(((1,), (0,)), (0,), (2,))),
    "groups between": ((0, 1), (2, 0, 1), numbers(((1,), (2,)), (0,), (1,))),
    "rows turned": ((1, 0), (0, 1, 2), numbers(((0,), (1,)), (1,), (0,))),
    "terms": ((0, 1), (0, 1), numbers(((0,), (0,)), (0,))),
    "terms last": ((1, 0), (1, 0), numbers(((1,), (1,)), (1,))),
    "terms last on one side": ((0, 1), (1, 0), numbers(((0,), (1,)), (0,))),
}


@pytest.mark.parametrize("order", ORDERS)
def test_dimensions_in_other_orders(chip, order):
    x, w, sizes, c = example("uneven")
    first, second, how = ORDERS[order]
    x, y = x.transpose(first), (w if len(second) == 3 else c).transpose(second)
    f = partial(lax.ragged_dot_general, ragged_dot_dimension_numbers=how)
    compiled = neuron.jit(f)
    compare(compiled(x, y, sizes), jax.jit(f)(x, y, sizes), TOLERANCE["float32"])
    assert names(compiled.graph) == ["trn.grouped_dot" if len(second) == 3 else "trn.grouped_outer"]


def test_batches_are_spelled_out(chip):
    x, w, sizes, _ = example("uneven")
    x, w, sizes = jnp.stack([x, 2 * x]), jnp.stack([w, w + 1]), np.stack([sizes, sizes[::-1]])
    f = jax.vmap(lax.ragged_dot)
    compiled = neuron.jit(f)
    compare(compiled(x, w, sizes), jax.jit(f)(x, w, sizes), TOLERANCE["float32"])
    assert names(compiled.graph) == ["dot_general"]


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.uint32])
def test_sizes_in_other_integers(chip, kind):
    """None of which holds where the last group ends, if it has 8 bits."""
    x, w, sizes, c = example("uneven")
    x, c = (jnp.tile(v, (2, 1)) for v in (x, c))
    f = lambda *given: loss(*given)[1]  # noqa: E731
    sizes = np.array([120, 0, 100, 7])
    compare(neuron.jit(f)(x, w, sizes.astype(kind), c), jax.jit(f)(x, w, sizes.astype(np.int32), c), 2e-6)


@pytest.mark.parametrize("wide", [False, True])
def test_operands_that_are_known(chip, wide):
    """As constants of the function; and sizes in 64 bits."""
    x, w, sizes, c = example("uneven")
    with jax.enable_x64(wide):
        f = lambda c: loss(x, w, jnp.asarray(sizes, int), c)[1]  # noqa: E731
        compare(neuron.jit(f)(c), jax.jit(f)(c), TOLERANCE["float32"])
        f = lambda x, sizes: loss(x, w, sizes, c)[1]  # noqa: E731
        given = x, sizes.astype(np.int64 if wide else np.int32)
        compare(neuron.jit(f)(*given), jax.jit(f)(*given), TOLERANCE["float32"])


@pytest.mark.parametrize("n", [1, 2])
def test_branches_and_forward_mode(chip, n):
    x, w, sizes, _ = example("uneven")

    def f(x, w, sizes, n):
        return lax.cond(n > 1, lambda: lax.ragged_dot(x, w, sizes), lambda: -lax.ragged_dot(2 * x, w, sizes))

    g = lambda n: jax.jvp(lambda x, w: f(x, w, sizes, n), (x, w), (x + 1, w - 1))  # noqa: E731
    compare(neuron.jit(g)(n), jax.jit(g)(n), TOLERANCE["float32"])


@pytest.mark.parametrize(
    ("precision", "kept"), [(None, "DEFAULT"), ("highest", "HIGHEST"), (("default", "highest"), "HIGHEST")]
)
def test_what_must_not_be_narrowed_is_not(precision, kept):
    graph = graph_of(lambda *given: loss(*given, precision=precision)[1], *example("uneven"))
    assert [op.attrs["precision"] for op in graph.ops if op.name in GROUPED] == [kept]


def test_each_row_is_counted_once():
    given = example("uneven")
    rows, _, k, n = SHAPES["uneven"]
    assert model_flops(graph_of(both_ways(), *given)) == 3 * 2 * rows * k * n


@pytest.mark.parametrize(("rounds", "rolled"), [(40, True), (3, False)])
def test_what_a_loop_computes_again_is_counted_once(chip, rounds, rolled):
    """Layers in a loop, as an op of the graph and unrolled, with and without checkpoints."""
    rng = np.random.default_rng(0)
    width, hidden, rows, groups = 8, 16, 20, 3
    up, down = (
        (0.3 * rng.standard_normal((rounds, groups, *shape))).astype(np.float32)
        for shape in ((width, hidden), (hidden, width))
    )
    x, sizes = rng.standard_normal((rows, width)).astype(np.float32), np.array([4, 0, 15], np.int32)

    def layer(sizes, x, weights):
        h = jnp.tanh(lax.ragged_dot(jnp.sin(x), weights[0], sizes))
        return x + 0.1 * jnp.tanh(lax.ragged_dot(h, weights[1], sizes)), None

    def step(around, weights, x, sizes):
        total = lambda w: (lax.scan(around(partial(layer, sizes)), x, w)[0] ** 2).sum()  # noqa: E731
        return jax.grad(total)(weights)

    found = []
    for around in (lambda f: f, jax.checkpoint):
        compiled = neuron.jit(partial(step, around))
        compare(compiled((up, down), x, sizes), jax.jit(partial(step, around))((up, down), x, sizes), 5e-6)
        assert any(op.name == "loop" for op in compiled.graph.ops) == rolled
        found.append(model_flops(compiled.graph))
    unread = 0 if rolled else 2 * rows * width * hidden  # nobody reads the gradient of x
    assert found == 2 * [rounds * 6 * 2 * rows * width * hidden - unread]


def test_a_script_that_nobody_edited(chip):
    given = example("rows of no group")
    want = jax.jit(both_ways())(*given)
    with everywhere.installed():
        compare(jax.jit(lambda *given: both_ways()(*given))(*given), want, TOLERANCE["float32"])
        programs = [e.program for e in chip.executables.values()]
    labels = [call.label for program in programs for call in program.calls]
    assert sum(label.startswith("grouped") for label in labels) == 3
    assert not any(label.startswith("dot") for label in labels)
    assert any("grouped_dot" in label for label in labels)
