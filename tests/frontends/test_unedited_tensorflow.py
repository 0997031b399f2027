# SPDX-License-Identifier: Apache-2.0
"""tf.function and Keras' loops of scripts that nobody edited: on the chip, with TensorFlow's numbers on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
import keras  # noqa: E402

from trnlab import chips, host_ops  # noqa: E402
from trnlab.frontends.common import engine  # noqa: E402
from trnlab.frontends.tensorflow import everywhere  # noqa: E402
from trnlab.frontends.torch.check.report import examine  # noqa: E402
from trnlab.runtime import session  # noqa: E402
from trnlab.runtime.script import Script  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept:DeprecationWarning")  # Keras'
X = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
Y = np.arange(8) % 3


class Counting(engine.DeviceEngine):
    """The chip; `ran`: names of programs in the order of their runs; `steps`: (loss, samples) of those told."""

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
    monkeypatch.setattr(everywhere, "say", lines.append)
    monkeypatch.setattr(everywhere, "_told", set())
    return lines


def step_with_variables():
    w, b = tf.Variable(tf.reshape(tf.range(12.0), (4, 3)) / 10), tf.Variable(tf.zeros(3))
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.keras.losses.sparse_categorical_crossentropy(y, x @ w + b, from_logits=True))
        optimizer.apply_gradients(zip(tape.gradient(loss, [w, b]), [w, b]))
        return loss

    return [step(tf.constant(X), tf.constant(Y)) for _ in range(3)] + [w, b]


def tape_outside_and_any_length():
    w = tf.Variable(tf.ones((4, 3)) / 7)

    @tf.function(reduce_retracing=True)
    def model(x):
        return tf.nn.softplus(x @ w)

    found = []
    for rows in (8, 5, 3):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(tf.constant(X[:rows])) ** 2)
        found += [loss, tape.gradient(loss, w)]
    return found


def loop_and_state_in_arguments():
    count = tf.Variable(1.0)

    @tf.function
    def until(x, counter):
        while tf.reduce_sum(x) < 20.0:
            x = x * 1.5
            counter.assign_add(1.0)
        return x, {"double": counter * 2}

    x, more = until(tf.constant([1.0, 2.0]), count)
    return [x, more["double"], count]


@pytest.mark.parametrize(
    "way", [step_with_variables, tape_outside_and_any_length, loop_and_state_in_arguments], ids=lambda w: w.__name__
)
def test_it_computes_what_tensorflow_computes(way, request):
    expected = [np.asarray(t) for t in way()]
    counting = request.getfixturevalue("chip")
    found = [np.asarray(t) for t in way()]
    assert counting.ran
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_step_is_what_writes_variables(chip):
    losses = [float(t) for t in step_with_variables()[:3]]
    assert chip.steps == [(loss, 8) for loss in losses]


def test_what_is_no_program_runs_on_the_host_and_is_said_once(chip, said):
    @tf.function
    def over(data):
        total = tf.constant(0.0)
        for value in data:
            total += value
        return total

    data = tf.data.Dataset.range(4).map(lambda v: tf.cast(v, tf.float32))
    with host_ops.use(host_ops.HostOps()):
        assert [float(over(data)) for _ in range(2)] == [6, 6]
        assert host_ops.current().totals() == {"setup": 2, "training": 0}
    assert not chip.ran
    assert [line.split(":")[0] for line in said] == ["TRN293"]


# -- Keras ---------------------------------------------------------------------------------------------------------


def fitted(layers=list, **options):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), *layers(), keras.layers.Dense(3, activation="softmax")])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"], **options)
    log = model.fit(X, Y, batch_size=4, epochs=2, verbose=0, shuffle=False, validation_data=(X, Y)).history
    return [*log.values(), model.evaluate(X, Y, verbose=0), model.predict(X, verbose=0), model.train_on_batch(X, Y)]


def test_a_loop_of_keras_trains_evaluates_and_predicts_on_the_chip(request):
    def layers():
        return keras.layers.Dense(6, activation="gelu"), keras.layers.BatchNormalization()

    expected = fitted(layers)
    chip = request.getfixturevalue("chip")
    found = fitted(layers)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    assert len(chip.steps) == 5  # two epochs of two batches, and train_on_batch
    kinds = {name.rsplit(".", 1)[-1] for name in chip.ran}
    assert kinds >= {"train_step", "test_step", "predict_step"}


class Unseeded(keras.layers.Layer):
    def call(self, x):
        return x + 0.0 * tf.random.uniform(())


def test_a_model_that_the_chip_refuses_trains_on_the_host_from_the_same_batch(request, said):
    expected = fitted(lambda: [Unseeded()])
    chip = request.getfixturevalue("chip")
    found = fitted(lambda: [Unseeded()])
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    assert not chip.ran
    assert {line.split(":")[0] for line in said} == {"TRN293"}
    assert sum("train_step" in line for line in said) == 1


def test_run_eagerly_stays_as_it_is(chip, said):
    fitted(run_eagerly=True)
    assert not chip.ran
    assert not said


KERAS = """
import keras, numpy as np
layers = keras.layers
model = keras.Sequential([layers.Input((64,)), layers.Dense(256, "relu"), layers.Dense(10)])
model.compile(keras.optimizers.SGD(0.1, momentum=0.9), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(np.zeros((24, 64), "float32"), np.zeros(24, "int32"), batch_size=8, verbose=0)
"""


def test_a_step_of_keras_is_of_samples_and_has_all_phases(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(KERAS)
    target = chips.target("trn1.2xlarge")
    report = examine(Script(path), [target], session.Session(target))
    assert (report.per_step, report.counted) == (8, "samples")
    assert set(report.targets[0].parts) == {"forward", "backward", "update"}
