# SPDX-License-Identifier: Apache-2.0
"""What a script compiles with JAX by itself runs on the chip, computes what XLA computes, and says what does not."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

from trnlab import chips, host_ops  # noqa: E402
from trnlab.errors import UsageError  # noqa: E402
from trnlab.frontends import unedited  # noqa: E402
from trnlab.frontends.common import engine  # noqa: E402
from trnlab.frontends.jax import everywhere, partitioned  # noqa: E402
from trnlab.frontends.jax.function_metadata import FunctionMetadata  # noqa: E402
from trnlab.runtime import session  # noqa: E402


class Counting(engine.DeviceEngine):
    """The chip; `ran`: names of programs in the order of their runs; `steps`: (loss, tokens) of those told."""

    def __init__(self):
        self.ran, self.steps = [], []

    def compile(self, graph, frozen=()):
        run = super().compile(graph, frozen)

        def counted(inputs):
            self.ran.append(graph.name)
            return run(inputs)

        return counted

    def step_done(self, loss, tokens):
        self.steps.append((loss, tokens))


@pytest.fixture
def chip():
    now = session.Session(chips.target("trn1.2xlarge"), precision="fp32")
    with session.activate(now), engine.use(Counting()) as counting, everywhere.installed():
        yield counting


@pytest.fixture
def said(monkeypatch):
    lines = []
    for module in (everywhere, sys.modules["trnlab.frontends.jax.function_metadata"]):
        monkeypatch.setattr(module, "say", lines.append)
    return lines


# -- one place for all ways to compile -----------------------------------------------------------------------------

X = np.linspace(-2, 2, 24).astype(np.float32).reshape(6, 4)


def plain():
    return jax.jit(lambda x: jnp.tanh(x) @ x.T)(X)


def grad_of_jit():
    return jax.grad(lambda x: jax.jit(lambda x: (x**3).sum())(x))(X)


def jit_of_scan_and_keys():
    @jax.jit
    def walk(x, key):
        def body(carry, row):
            return carry * 0.5 + row, carry.sum()

        return jax.lax.scan(body, x[0], x), jax.random.normal(key, (3,)), jax.random.split(key)

    (carry, sums), drawn, keys = walk(X, jax.random.key(3))
    return carry, sums, drawn, jax.random.key_data(keys)


def trees_and_formats():
    @functools.partial(jax.jit, static_argnames="times")
    def mixed(tree, *, times):
        return {
            "whole": tree["a"].astype(jnp.int32) * times,
            "flags": tree["a"] > 0,
            "half": tree["b"][0].astype("bfloat16"),
        }

    return mixed({"a": X, "b": (X + 1,)}, times=3)


def flax():
    nnx = pytest.importorskip("flax.nnx")
    model = nnx.Linear(4, 3, rngs=nnx.Rngs(0))

    @nnx.jit
    def step(model, x):
        loss, grads = nnx.value_and_grad(lambda m: (m(x) ** 2).mean())(model)
        nnx.update(model, jax.tree.map(lambda p, g: p - 0.1 * g, nnx.state(model), grads))
        return loss

    return [step(model, X) for _ in range(3)]


def equinox():
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.MLP(4, 2, 8, 1, key=jax.random.key(0))

    @eqx.filter_jit
    def step(model, x):
        loss, grads = eqx.filter_value_and_grad(lambda m: (jax.vmap(m)(x) ** 2).mean())(model)
        return loss, eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, grads))

    first, model = step(model, X)
    return first, step(model, X)[0]


def ahead_of_time():
    return jax.jit(lambda x: jnp.exp(x) + 1).lower(X).compile()(X)


def a_function_of_jax():
    return jax.jit(jax.nn.gelu)(X)


def loop_outside():
    return jax.lax.scan(lambda c, x: (c + x, c * x), jnp.zeros(4), X)


WAYS = [
    plain,
    grad_of_jit,
    jit_of_scan_and_keys,
    trees_and_formats,
    flax,
    equinox,
    ahead_of_time,
    a_function_of_jax,
    loop_outside,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_it_computes_what_xla_computes(way, request):
    jax.clear_caches()
    expected = way()
    counting = request.getfixturevalue("chip")
    found = way()
    assert counting.ran
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected)):
        assert (ours.shape, ours.dtype, ours.weak_type) == (theirs.shape, theirs.dtype, theirs.weak_type)
        np.testing.assert_allclose(ours.astype("f4"), theirs.astype("f4"), rtol=2e-5, atol=2e-6)


def test_operators_outside_of_functions_are_the_hosts(chip):
    assert float((jnp.asarray(X) * 2).mean()) == pytest.approx(0, abs=1e-6)
    assert not chip.ran


def test_donated_arguments_are_gone_and_new_state_is_seen(chip):
    scale = jax.jit(lambda state, by: state * by, donate_argnums=0)
    state = jnp.ones(3)
    for by in (2.0, 3.0):
        before, state = state, scale(state, by)
        assert before.is_deleted()
    np.testing.assert_array_equal(state, [6, 6, 6])
    batch = np.ones(3, np.float32)
    assert float(scale(jnp.ones(3), batch)[0]) == 1
    batch[:] = 5  # in place, behind JAX' back
    assert float(scale(jnp.ones(3), batch)[0]) == 5


def test_an_argument_that_is_returned_is_no_part_of_the_scripts_memory(chip):
    held = np.zeros(4096 * 4 + 64, np.uint8)
    batch = held[-held.ctypes.data % 64 :][: 4096 * 4].view(np.float32)  # as XLA takes memory without a copy
    returned, _ = jax.jit(lambda x: (x, x + 1))(batch)
    batch[:] = 5
    assert float(returned[0]) == 0


# -- what is no program --------------------------------------------------------------------------------------------


def test_what_the_chip_has_no_form_for_runs_on_the_host_and_is_said_once(chip, said):
    printed = jax.jit(lambda x: (jax.debug.callback(lambda: None), x * 2)[1])
    spectrum = jax.jit(lambda x: jnp.abs(jnp.fft.fft(x)))
    with host_ops.use(host_ops.HostOps()):
        for _ in range(3):
            assert float(printed(1.0)) == 2
            np.testing.assert_allclose(spectrum(X), np.abs(np.fft.fft(X)), rtol=1e-4, atol=1e-5)
        counted = host_ops.current().totals()
    assert counted == {"setup": 6, "training": 0}
    assert not chip.ran
    assert [line[:6] for line in said] == ["TRN293", "TRN293"]
    assert "TRN295" in said[0]
    assert "TRN232" in said[1]


def test_a_version_of_jax_that_is_not_known_is_said(monkeypatch, said):
    from jax._src import pjit

    monkeypatch.delattr(pjit, "_get_fastpath_data")
    assert not everywhere.install()
    assert said[0].startswith("TRN292")


# -- training steps ------------------------------------------------------------------------------------------------


def asked(names, results, shapes, made):
    def kinds(shapes):
        return [(shape, "float32") for shape in shapes]

    return FunctionMetadata("step", "", names, results, kinds(shapes), kinds(made))


W, B = (4, 3), (3,)
LEAVES = ["dynamic_nodonate['first'][1]", "dynamic_nodonate['rest'][0]"]
PARAMETERS, MOVED = ["p['w']", "p['b']", "x"], ["result[0]['w']", "result[0]['b']", "result[1]"]
NAMED = ["result[0]['accuracy']", "result[0]['loss']", "result[1]['w']"]
STEPS = {
    "parameters and a loss": (PARAMETERS, MOVED, [W, B, (8, 4)], [W, B, ()], True, 2),
    "gradients and a loss": (
        ["state.params['w']", "x"],
        ["result[0]", "result[1]['w']"],
        [W, (8, 4)],
        [(), W],
        True,
        0,
    ),
    "metrics are no loss": (["m.a", "m.w", "x"], ["result.a", "result.w"], [(), W, (8, 4)], [(), W], True, None),
    "a loss among metrics": (["s['w']"], NAMED, [W], [(), (), W], True, 1),
    "without names": (None, None, [W, (8, 4)], [W, ()], True, 1),
    "leaves of Equinox": (LEAVES, ["result[1][0]", "result[1][1].cell.weight"], [W, (8, 4)], [(), W], True, 0),
    "an evaluation of Equinox": (LEAVES, ["result[1]"], [W, (8, 4)], [W], False, None),
    "an evaluation": (["p['w']", "x"], ["result[0]", "result[1]"], [W, (8, 4)], [(), (8, 4)], False, 0),
}


@pytest.mark.parametrize("case", STEPS, ids=str)
def test_what_is_a_step_and_what_its_loss(case):
    *given, learns, loss = STEPS[case]
    found = asked(*given)
    assert (found.is_update, found._loss) == (learns, loss)


def both(*paths):
    """Parameters, and an optimizer's state by the paths in front of them."""
    parameters, *others = paths
    return [f"{tree}{leaf}" for tree in (parameters, *others) for leaf in ("['a']['kernel']", "['b']['kernel']")]


@pytest.mark.parametrize(
    ("names", "parameters"),
    [
        (both("params['params']"), 2),  # layers alike are no state of each other
        (both("params", "opt_state[0].mu"), 2),
        (both("state.params", "state.opt_state[0].mu", "state.opt_state[0].nu"), 2),
        (both("params", "moments[0]", "moments[1]"), 2),
        (both("carry[0]", "carry[1]"), 2),
        (["params[0]['w']", "params[1]['w']", "m[0]['w']", "m[1]['w']"], 2),
        (["model.layers[0].weight", "model.layers[1].weight", "mu.layers[0].weight", "mu.layers[1].weight"], 2),
        (["p['w']", "m['w']", "v['w']"], 1),
        (["optimizer.model['a']", "optimizer.model['b']", "optimizer.opt_state[0].mu['a']"], 2),
    ],
)
def test_parameters_are_told_from_what_an_optimizer_keeps(names, parameters):
    """By whole paths within a tree: equal last keys and shapes are many layers'."""
    results = [f"result[0]{name}" for name in names]
    kinds = asked([*names, "x"], [*results, "result[1]"], [W] * len(names) + [(8, 4)], [W] * len(names) + [()]).kinds
    assert list(kinds.values()) == ["parameter"] * parameters + ["state"] * (len(names) - parameters) + ["batch"]


def test_leaves_of_equinox_are_known_by_their_successors():
    """Numbers in one list, whose results have paths: those of moments end as a parameter's does."""
    places = [f"dynamic_nodonate['rest'][{i}]" for i in range(7)]
    leaves = [".layers[0].weight", ".layers[1].weight"]
    results = [f"result{tree}{leaf}" for tree in ("[0]", "[1][0].mu", "[1][0].nu") for leaf in leaves]
    found = asked(places, [*results, "result[2]"], [W] * 6 + [(8, 4)], [W] * 6 + [()])
    assert list(found.kinds.values()) == ["parameter"] * 2 + ["state"] * 4 + ["batch"]


def test_an_optimizer_that_holds_the_model_has_parameters():
    """Flax' ModelAndOptimizer within nnx.jit: numbers in one list, the model before what counts steps."""
    shapes = [W, B, (), W, B, W, B]
    names = [f"optimizer.states[0][{i}]" for i in range(len(shapes))]
    results = [f"result[0][0].states[0][{i}]" for i in range(len(shapes))]
    kinds = asked([*names, "x"], [*results, "result[1]"], [*shapes, (8, 4)], [*shapes, ()]).kinds
    assert list(kinds.values()) == ["parameter"] * 2 + ["batch"] + ["state"] * 4 + ["batch"]


class _Steps:
    """An engine that is told of steps."""

    def __init__(self):
        self.tokens = []

    def step_done(self, loss, tokens):
        self.tokens.append(tokens)


def test_gradients_and_their_update_in_two_functions_are_one_step():
    """As the MNIST example of Flax has it: what updates without a loss ends no step where another one tells it."""
    gradients = asked(["params['w']", "x"], ["result[0]['w']", "result[1]"], [W, (8, 4)], [W, ()])
    update = asked(["params['w']", "grads['w']"], ["result['w']"], [W, W], [W])
    steps = _Steps()
    for _ in range(3):
        gradients.followed([W, (8, 4)], steps)
        update.followed([W, W], steps)
    assert steps.tokens == [8, 8, 8]
    alone = _Steps()
    for _ in range(2):
        update.followed([W, W], alone)
    assert len(alone.tokens) == 2


def test_state_that_is_returned_as_it_came_is_no_update():
    found = asked(["s['w']"], ["result[0]", "result[1]['w']"], [W], [(), W])
    found.passes([1])
    assert not found.is_update


def test_a_step_is_told_with_its_loss_and_its_samples(chip):
    @jax.jit
    def step(params, x):
        loss, grads = jax.value_and_grad(lambda p: ((x @ p["w"]) ** 2).mean())(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss

    params, losses = {"w": jnp.ones((4, 3))}, []
    for _ in range(3):
        params, loss = step(params, X)
        losses.append((float(loss), 6))
    assert chip.steps == losses


# -- several cores -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ([("a", "", "")], [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ([("b", "", "")], [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ([("b", "1", "2")], [[0, 2], [1, 3], [4, 6], [5, 7]]),
        ([("a", "", ""), ("b", "2", "2")], [[0, 1, 4, 5], [2, 3, 6, 7]]),
    ],
    ids=["an axis", "the other", "the first half of one", "an axis and a half"],
)
def test_groups_along_axes_of_a_mesh(chosen, expected):
    assert partitioned._groups('"a"=2, "b"=4', "", chosen).tolist() == expected


CORES = """
import functools, jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
assert jax.device_count() == 2
x = np.linspace(-1, 1, 32).astype(np.float32).reshape(8, 4)
mesh = jax.make_mesh((2,), ("data",))
rows, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())

@jax.jit
def step(w, x):
    loss, grad = jax.value_and_grad(lambda w: ((x @ w) ** 2).mean())(w)
    return w - 0.1 * grad, loss

w, loss = step(jax.device_put(np.ones((4, 3), np.float32), whole), jax.device_put(x, rows))
n = x @ np.ones((4, 3))
np.testing.assert_allclose(loss, (n ** 2).mean(), rtol=1e-5)
np.testing.assert_allclose(w, 1 - 0.1 * x.T @ (2 * n / n.size), rtol=1e-5)
assert w.sharding.is_fully_replicated
summed = jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")(x.reshape(2, 4, 4))
np.testing.assert_allclose(summed[1], x[:4] + x[4:], rtol=1e-6)
specs = {"mesh": mesh, "in_specs": P("data"), "out_specs": P(None, "data")}
halves = jax.make_mesh((2,), ("half",), axis_types=(jax.sharding.AxisType.Auto,))
made = jax.jit(lambda x: jax.lax.with_sharding_constraint(jnp.outer(x, x), NamedSharding(halves, P("half"))))
np.testing.assert_allclose(made(x[0]), np.outer(x[0], x[0]), rtol=1e-6)  # each makes its own rows
gathered = jax.jit(jax.shard_map(lambda x: jax.lax.all_gather(x, "data"), **specs))
np.testing.assert_array_equal(gathered(jax.device_put(x, rows))[0], np.concatenate([x[:4], x[:4]]))
"""


@pytest.mark.slow
def test_cores_of_the_target_are_devices_and_their_collectives_the_networks(tmp_path):
    """The front door: `trnlab run` of a script that nobody edited, on two cores."""
    (tmp_path / "script.py").write_text(CORES)
    command = ["run", "--target", "trn1.2xlarge", "--precision", "fp32", "--out", "run", "script.py"]
    done = subprocess.run(
        [sys.executable, "-m", "trnlab.cli.main", *command], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["steps"] == 1
    assert summary["instructions"] > 0
    assert "TRN293" not in done.stderr


# -- the setting ---------------------------------------------------------------------------------------------------


def test_the_setting_leaves_functions_on_the_host():
    now = SimpleNamespace(chosen=True)
    with pytest.raises(UsageError, match="TRN291"), unedited.reaching_the_chip(now, {"TRNLAB_JIT": "tpu"}):
        pass
    with unedited.reaching_the_chip(now, {"TRNLAB_JIT": "host"}):
        assert not everywhere._installed
    with unedited.reaching_the_chip(SimpleNamespace(chosen=False), {}):
        assert not everywhere._installed
