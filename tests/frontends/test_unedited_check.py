# SPDX-License-Identifier: Apache-2.0
"""`trnlab check` and `estimate` see the steps of a script of JAX that nobody edited, and compute what it reads."""

from __future__ import annotations

import pytest

pytest.importorskip("jax")
pytest.importorskip("torch")

from trnlab import chips
from trnlab.findings import WARNING
from trnlab.frontends.jax import everywhere
from trnlab.frontends.torch.check.report import examine
from trnlab.runtime.script import Script
from trnlab.runtime.session import Session

SCRIPT = """
import jax, jax.numpy as jnp

@jax.jit
def train(params, moments, x):
    loss, grads = jax.value_and_grad(lambda p: ((x @ p["w"]) ** 2).mean())(params)
    moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, grads)
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, moments), moments, loss

@jax.jit
def spectrum(x):
    return jnp.abs(jnp.fft.fft(x))

params, x = {"w": jnp.ones((4, 3))}, jnp.ones((8, 4))
moments, losses = jax.tree.map(jnp.zeros_like, params), []
for _ in range(3):
    params, moments, loss = train(params, moments, x)
    losses.append(float(loss))
    spectrum(x)
assert losses[0] == 16 and losses[1] < losses[0], losses  # with values
"""


def test_a_step_has_time_memory_and_what_runs_on_the_host(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    target = chips.target("trn1.2xlarge")
    report = examine(Script(path), [target], Session(target, precision="fp32"))
    assert report.complete
    assert (report.how, report.steps, report.per_step, report.parameters) == ("jax.jit", 3, 8, 12)
    assert report.counted == "samples"
    (found,) = report.targets
    assert found.fits
    assert found.step_s > 0
    assert (found.memory.parameters, found.memory.state, found.memory.batch) == (48, 48, 128)
    assert [(f.code, f.severity) for f in report.findings] == [("TRN232", WARNING)]
    assert any("computed, on the host" in note for note in report.notes)
    assert not everywhere._installed


LABELLED = """
import jax, jax.numpy as jnp

@jax.jit
def train(params, x, y):
    def loss(p):
        return -jnp.take_along_axis(jax.nn.log_softmax(x @ p["w"]), y.reshape(-1, 1), -1).mean()
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))

params = {"w": jnp.ones((4, 3))}
for _ in range(3):
    params = train(params, jnp.ones((SIZE, 4)), jnp.zeros(SHAPE, jnp.int32))
"""


@pytest.mark.parametrize(
    ("shape", "unit"),
    [((8,), "samples"), ((8, 1), "samples"), ((2, 4), "tokens")],
    ids=["labels", "column", "tokens"],
)
def test_a_step_is_of_samples_or_of_tokens(shape, unit, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(LABELLED.replace("SIZE", "8").replace("SHAPE", str(shape)))
    target = chips.target("trn1.2xlarge")
    report = examine(Script(path), [target], Session(target, precision="fp32"))
    assert (report.steps, report.per_step, report.counted) == (3, 8, unit)


PICTURES = """
import keras, numpy as np

x, y = np.zeros((64, 8, 8, 3), np.uint8), np.zeros((64, 1), np.uint8)
model = keras.Sequential([keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(10)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(x, y, batch_size=32, verbose=0)
"""


def test_pictures_of_bytes_are_samples_of_keras(tmp_path):
    """As `keras.datasets` has them; labels are bytes, too."""
    pytest.importorskip("tensorflow")
    path = tmp_path / "train.py"
    path.write_text(PICTURES)
    target = chips.target("trn1.2xlarge")
    report = examine(Script(path), [target], Session(target, precision="fp32"))
    assert (report.per_step, report.counted) == (32, "samples")


CONVOLVED = """
import keras, numpy as np

x, y = np.zeros((96, 16, 16, 3), np.float32), np.zeros((96,), np.int32)
layers = [keras.layers.Conv2D(64, 3, activation="relu", name=f"convolution{i}") for i in range(3)]
model = keras.Sequential([*layers, keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(10)])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(x, y, batch_size=32, verbose=0)
"""


def test_a_backward_pass_of_keras_is_told_by_its_lines(tmp_path):
    """The loss is averaged for a metric, by a call of its own that comes among those of the backward pass."""
    pytest.importorskip("tensorflow")
    path = tmp_path / "train.py"
    path.write_text(CONVOLVED)
    target = chips.target("trn1.2xlarge")
    parts = examine(Script(path), [target], Session(target, precision="fp32")).targets[0].parts
    assert set(parts) == {"forward", "backward", "update"}
    assert parts["backward"] > parts["forward"] > parts["update"]


UPDATED = """
import jax, jax.numpy as jnp

def loss(params, x, y):
    for w in params:
        x = jax.nn.relu(x @ w)
    return ((x - y) ** 2).mean()

@jax.jit
def train(params, moments, count, x, y):
    found, grads = jax.value_and_grad(loss)(params, x, y)
    count = count + 1
    moments = [0.9 * m + 0.1 * g for m, g in zip(moments, grads)]
    scale = 1 - 0.9 ** count.astype(jnp.float32)
    return [p - 1e-3 * m / (scale + 1e-8) for p, m in zip(params, moments)], moments, count, found

params = [jnp.ones((512, 512)) for _ in range(3)]
moments, count = [jnp.zeros_like(p) for p in params], jnp.zeros((), jnp.int32)
for _ in range(3):
    params, moments, count, _ = train(params, moments, count, jnp.ones((256, 512)), jnp.ones((256, 512)))
"""


def test_what_is_made_of_gradients_is_the_update(tmp_path):
    """Three of four of its bytes, which take as long as all products."""
    path = tmp_path / "train.py"
    path.write_text(UPDATED)
    target = chips.target("trn1.2xlarge")
    (found,) = examine(Script(path), [target], Session(target)).targets
    assert set(found.parts) == {"forward", "backward", "update"}
    assert sum(found.parts.values()) == pytest.approx(found.step_s, rel=0.05)
    assert found.parts["update"] > 0.25 * found.step_s


IN_TWO = """
import jax, jax.numpy as jnp

@jax.jit
def gradients(params, x):
    loss, grads = jax.value_and_grad(lambda p: ((x @ p["w"]) ** 2).mean())(params)
    return grads, loss

@jax.jit
def update(params, moments, grads):
    moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, grads)
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, moments), moments

params = {"w": jnp.ones((64, 48))}
moments = jax.tree.map(jnp.zeros_like, params)
for _ in range(5):
    grads, loss = gradients(params, jnp.ones((512, 64)))
    params, moments = update(params, moments, grads)
"""


def test_gradients_and_their_update_in_two_functions_are_one_step(tmp_path):
    """As the MNIST example of Flax has it; the update's program keeps moments, the other one needs more."""
    path = tmp_path / "train.py"
    path.write_text(IN_TWO)
    target = chips.target("trn1.2xlarge")
    report = examine(Script(path), [target], Session(target, precision="fp32"))
    assert (report.steps, report.per_step, report.counted, report.parameters) == (5, 512, "samples", 64 * 48)
    (result,) = report.targets
    assert (result.memory.parameters, result.memory.state) == (4 * 64 * 48, 4 * 64 * 48)
    assert result.mfu > 0
    assert set(result.parts) == {"forward", "backward", "update"}
