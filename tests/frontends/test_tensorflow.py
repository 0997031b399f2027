# SPDX-License-Identifier: Apache-2.0
"""TensorFlow and Keras: steps, loops and functions on the chip against TensorFlow's own on the CPU, and refusals."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
import keras  # noqa: E402
from keras import layers as L  # noqa: E402

import trnlab.frontends.tensorflow as neuron  # noqa: E402
from trnlab import chips  # noqa: E402
from trnlab.errors import TrnlabError, UnsupportedOpError  # noqa: E402
from trnlab.frontends.common.engine import InterpreterEngine, use  # noqa: E402
from trnlab.runtime import session  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept:DeprecationWarning")  # Keras'
STEPS = 20
CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def digits():
    i = keras.Input((16,))
    hidden = L.Dense(12, activation="gelu", kernel_regularizer="l2")(i)
    rate = keras.optimizers.schedules.CosineDecay(0.02, 40)
    return keras.Model(i, L.Dense(4)(hidden)), keras.optimizers.Adam(rate), (8, 16), (8,)


def convolutions():
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            L.Conv2D(4, 3, padding="same", activation="relu"),
            L.BatchNormalization(),
            L.MaxPooling2D(),
            L.SeparableConv2D(6, 3),
            L.GlobalAveragePooling2D(),
            L.Dense(4),
        ]
    )
    return model, keras.optimizers.SGD(0.1, momentum=0.9), (4, 8, 8, 1), (4,)


def transformer():
    i = keras.Input((6,), dtype="int32")
    h = L.Embedding(10, 8)(i)
    n = L.LayerNormalization()(h)
    h = h + L.MultiHeadAttention(2, 4)(n, n, use_causal_mask=True)
    h = h + L.Dense(8)(L.Dense(16, activation="silu")(L.LayerNormalization()(h)))
    # The gradient of the keys' bias is zero but for rounding, which Adam would make steps of.
    optimizer = keras.optimizers.SGD(0.3, momentum=0.5, clipnorm=1.0, weight_decay=0.01)
    return keras.Model(i, L.Dense(4)(h)), optimizer, ("ids", 2, 6), (2, 6)


def recurrent(cell, rate=0.1, **options):
    def make():
        i = keras.Input((5,), dtype="int32")
        model = keras.Model(i, L.Dense(4)(cell(6, **options)(L.Embedding(10, 5)(i))))
        # Adagrad divides rows of the embedding's gradient, SGD takes them away from the table.
        optimizer = keras.optimizers.Adagrad(rate) if rate else keras.optimizers.SGD(0.3)
        return model, optimizer, ("ids", 3, 5), (3,)

    return make


MODELS = {
    "digits": digits,
    "convolutions": convolutions,
    "transformer": transformer,
    "lstm": recurrent(L.LSTM, rate=None),
    "gru, unrolled": recurrent(L.GRU, unroll=True),
}


def batches(x_shape, y_shape, count=STEPS):
    rng = np.random.default_rng(3)
    for _ in range(count):
        if x_shape[0] == "ids":
            x = rng.integers(0, 10, x_shape[1:]).astype(np.int32)
        else:
            x = rng.standard_normal(x_shape).astype(np.float32)
        yield x, rng.integers(0, 4, y_shape)


def keras_step(model, optimizer):
    """The step as TensorFlow runs it on the host."""
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.add_n([CROSS_ENTROPY(y, model(x, training=True)), *model.losses])
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss

    return step


def trained(make, compile_step):
    keras.utils.set_random_seed(5)
    model, optimizer, *shapes = make()
    step = compile_step(model, optimizer)
    losses = [float(step(x, y)) for x, y in batches(*shapes)]
    return np.array(losses), [v.numpy() for v in model.variables]


@pytest.mark.parametrize("name", MODELS)
def test_twenty_steps_are_those_of_the_cpu(name):
    """Losses and all variables, moving averages among them, within rounding."""
    losses, variables = trained(MODELS[name], keras_step)
    with use(InterpreterEngine()):
        found, ours = trained(MODELS[name], lambda m, o: neuron.compile_step(m, CROSS_ENTROPY, o))
    np.testing.assert_allclose(found, losses, rtol=1e-5)
    for ours_one, theirs in zip(ours, variables, strict=True):
        np.testing.assert_allclose(ours_one, theirs, rtol=1e-3, atol=1e-5)


@pytest.fixture
def chip(tmp_path):
    """A session on a chip, with a run that keeps a record."""
    from trnlab.runtime.run import RunRecord

    now = session.Session(chips.target("trn1.2xlarge"), "fp32")
    script = tmp_path / "train.py"
    script.write_text("")
    now.run = RunRecord(tmp_path / "run", now, script)
    with session.activate(now):
        yield now


def test_a_run_on_the_chip_has_losses_time_and_lines(chip):
    losses, _ = trained(digits, lambda m, o: neuron.compile_step(m, CROSS_ENTROPY, o))
    expected, _ = trained(digits, keras_step)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    record = chip.run.finish("complete")
    assert record["loss"] == pytest.approx(losses)
    assert record["steps"] == STEPS
    assert record["step_time_s"] > 0
    assert record["tokens_per_step"] == 8


def test_dropout_masks_are_xlas():
    """The states of Keras' seed generators go on as on the host, and the masks that follow have the same bits."""
    model = keras.Sequential([keras.Input((40,)), L.Dropout(0.4, seed=3)])
    x = np.ones((3, 40), np.float32)
    host = tf.function(lambda x: model(x, training=True), jit_compile=True)
    expected = [host(x).numpy() for _ in range(3)]
    model.layers[-1].seed_generator.state.assign([3, 0])
    with use(InterpreterEngine()):
        ours = neuron.function(lambda x: model(x, training=True))
        found = [ours(x).numpy() for _ in range(3)]
    np.testing.assert_array_equal(found, expected)
    assert not np.array_equal(found[0], found[1])


def compiled(dropout=0.0):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([L.Dense(8, activation="relu"), L.BatchNormalization(), L.Dropout(dropout), L.Dense(4)])
    model.compile(keras.optimizers.Adam(0.01), CROSS_ENTROPY, metrics=["accuracy"])
    return model


def fitted(model):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((24, 5)).astype(np.float32), rng.integers(0, 4, 24)
    seen = []
    history = model.fit(
        x,
        y,
        batch_size=8,
        epochs=2,
        validation_split=0.34,
        class_weight={0: 1.0, 1: 2.0, 2: 1.0, 3: 0.5},
        verbose=0,
        callbacks=[
            keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(logs["loss"])),
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2),
        ],
    )
    scores = model.evaluate(x, y, batch_size=8, verbose=0)
    return [*history.history.values(), seen, scores], model.predict(x, batch_size=8, verbose=0)


def test_fit_evaluate_and_predict_are_keras_own(tmp_path):
    """Metrics, validation, callbacks, weights of classes, a last batch that is smaller; then weights go back and
    forth in Keras' formats."""
    logs, predictions = fitted(compiled())
    with use(InterpreterEngine()):
        model = neuron.on_chip(compiled())
        ours, found = fitted(model)
    for a, b in zip(ours, logs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4)
    np.testing.assert_allclose(found, predictions, atol=1e-5)

    model.save(tmp_path / "m.keras")
    model.save_weights(tmp_path / "m.weights.h5")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    x = np.random.default_rng(0).standard_normal((24, 5)).astype(np.float32)
    np.testing.assert_allclose(loaded.predict(x, verbose=0), found, atol=1e-5)  # on the host
    with use(InterpreterEngine()):
        other = neuron.on_chip(compiled())
        other.build((None, 5))
        other.optimizer.build(other.trainable_variables)
        other.load_weights(tmp_path / "m.weights.h5")
        np.testing.assert_array_equal(other.predict(x, batch_size=8, verbose=0), found)
    np.testing.assert_allclose(neuron.on_host(model).predict(x, verbose=0), found, atol=1e-5)


def test_rates_are_inputs_and_freezing_asks_for_another_program():
    model, _, *shapes = digits()
    optimizer = keras.optimizers.SGD(0.1)
    with use(InterpreterEngine()):
        step = neuron.compile_step(model, CROSS_ENTROPY, optimizer)
        (x, y), *_ = batches(*shapes)
        step(x, y)
        first = step.captured
        optimizer.learning_rate = 0.0
        before = [v.numpy() for v in model.variables]
        step(x, y)
        assert step.captured is first
        for a, v in zip(before, model.variables):
            np.testing.assert_array_equal(a, v.numpy())
        optimizer.learning_rate = 0.1
        model.layers[1].trainable = False
        step(x, y)
        assert step.captured is not first
        moved = [not np.array_equal(a, v.numpy()) for a, v in zip(before, model.variables)]
        assert moved == [False, False, True, True]


def test_numbers_of_layers_that_change_are_seen(capsys):
    """A momentum, a factor of a regularizer and a flag of the loss, each as a host that traces again has them."""

    def run(make_step):
        keras.utils.set_random_seed(1)
        factor = keras.regularizers.L2(0.1)
        norm = L.BatchNormalization()
        model = keras.Sequential([L.Input((8,)), L.Dense(8, kernel_regularizer=factor), norm, L.Dense(4)])
        optimizer, losses = keras.optimizers.SGD(0.1), []
        optimizer.build(model.trainable_variables)
        step = make_step(model, optimizer)
        for i, (x, y) in enumerate(batches((6, 8), (6,), 6)):
            if i == 2:
                norm.momentum, factor.l2 = 0.5, 0.3
            if i == 4:
                norm.momentum = 0.99
            losses.append(float((step() if make_step is keras_again else step)(x, y)))
        return np.array(losses), norm.moving_mean.numpy(), step

    def keras_again(model, optimizer):
        return lambda: keras_step(model, optimizer)

    losses, mean, _ = run(keras_again)
    with use(InterpreterEngine()):
        found, ours, step = run(lambda m, o: neuron.compile_step(m, CROSS_ENTROPY, o))
    np.testing.assert_allclose(found, losses, rtol=1e-5)
    np.testing.assert_allclose(ours, mean, rtol=1e-4, atol=1e-6)
    assert len(step._function._traces) == 3
    assert "momentum was 0.99, is 0.5" in capsys.readouterr().err


def test_sample_weights_and_losses_by_name():
    model, _, *shapes = digits()
    (x, _), *_ = batches(*shapes)
    target, weight = np.ones((8, 4), np.float32), np.arange(8, dtype=np.float32)
    with use(InterpreterEngine()):
        for loss in ("mse", lambda y, p: tf.reduce_mean((y - p) ** 2, -1)):
            step = neuron.compile_step(model, loss, keras.optimizers.SGD(0.0))
            errors = np.mean((target - model(x).numpy()) ** 2, -1)
            expected = np.mean(errors * weight) + float(tf.add_n(model.losses))
            assert float(step(x, target, weight)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_keeps_float32_variables(policy):
    model = keras.Sequential([keras.Input((16,)), L.Dense(8, dtype=policy), L.Dense(4, dtype="float32")])
    optimizer = keras.optimizers.SGD(0.05)
    if policy == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    with use(InterpreterEngine()):
        step = neuron.compile_step(model, CROSS_ENTROPY, optimizer)
        ((x, y),) = batches((8, 16), (8,), 1)
        losses = [float(step(x, y)) for _ in range(STEPS)]
    assert losses[-1] < 0.9 * losses[0]
    assert {str(v.dtype) for v in model.variables} == {"float32"}
    assert {v.dtype.name for v in step.captured.graph.values()} >= {policy.removeprefix("mixed_"), "float32"}


# -- functions -------------------------------------------------------------------------------------------------


def test_a_function_takes_and_returns_nests_and_writes_variables():
    weight, count = tf.Variable([[1.0, 2.0]]), tf.Variable(0, dtype=tf.int64)
    traced = []

    @neuron.function
    def body(x, scale=2.0, *, flag=True):
        traced.append(scale)
        count.assign_add(1)
        y = x["a"] @ weight * scale
        return {"y": y, "none": None, "first": (tf.argmax(y, 1), y > 3 if flag else None)}

    with use(InterpreterEngine()):
        x = {"a": tf.constant([[1.0], [2.0]])}
        found = body(x)
        np.testing.assert_array_equal(found["y"], [[2, 4], [4, 8]])
        assert found["none"] is None
        assert found["first"][0].dtype == tf.int64
        np.testing.assert_array_equal(found["first"][1], [[False, True], [True, True]])
        weight.assign([[0.0, 1.0]])
        np.testing.assert_array_equal(body(x)["y"], [[0, 2], [0, 4]])
        assert body(x, 1.0, flag=False)["first"][1] is None
    assert int(count) == 3
    assert traced == [2.0, 1.0]


def test_the_error_function_of_xlas_own_modules():
    x = tf.constant([0.1, -0.5, 0.9, 3.0, float("inf"), -0.0, float("nan")])
    with use(InterpreterEngine()):
        found = neuron.function(lambda x: tf.math.erf(x))(x)
    np.testing.assert_allclose(found, tf.math.erf(x), rtol=1e-6)


def test_gradients_go_through_a_function():
    weight, x = tf.Variable([[0.5, -0.2]]), tf.constant([[1.0], [2.0]])

    def body(x):
        return tf.reduce_sum(tf.tanh(x @ weight) ** 2)

    def gradients(function):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = function(x) * 3
        return tape.gradient(loss, [x, weight])

    with use(InterpreterEngine()):
        for ours, theirs in zip(gradients(neuron.function(body)), gradients(body)):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_gradients_of_a_function_that_writes_are_refused():
    state = tf.Variable(1.0)
    x = tf.constant(2.0)
    with use(InterpreterEngine()), tf.GradientTape() as tape:
        tape.watch(x)
        with pytest.raises(UnsupportedOpError) as caught:
            neuron.function(lambda x: x * state.assign_add(1.0))(x)
    assert caught.value.code == "TRN244"


def test_loops_that_the_data_end():
    def body(x):
        return tf.while_loop(lambda a: tf.reduce_sum(a) < 1000.0, lambda a: (a * 2,), [x])[0]

    with use(InterpreterEngine()):
        np.testing.assert_array_equal(neuron.function(body)(tf.constant([1.0, 2.0])), [512.0, 1024.0])


TABLE = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1, 2], [3, 4]), -1)
REFUSED = {
    "strings": (lambda x: tf.strings.as_string(x), "TRN240", "AsString"),
    "python": (lambda x: tf.py_function(lambda v: v, [x], tf.float32), "TRN240", "EagerPyFunc"),
    "table": (lambda x: TABLE.lookup(tf.cast(x, tf.int32)), "TRN240", "table_handle"),
    "shape": (lambda x: tf.reshape(x, tf.cast(x[0], tf.int32)), "TRN241", "Reshape"),
    "mask": (lambda x: tf.boolean_mask(x, x > 0), "TRN242", "bounds"),
    "unseeded": (lambda x: x + tf.random.normal(x.shape), "TRN231", None),
    "float64": (lambda x: tf.cast(x, tf.float64) * 2, "TRN232", "float64"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_run_is_refused_with_its_line(name):
    function, code, got = REFUSED[name]
    with use(InterpreterEngine()), pytest.raises(TrnlabError) as caught:
        neuron.function(function)(tf.constant([[1.0, 1.0]]))
    error = caught.value
    assert error.code == code
    assert error.where is None or error.where.file == __file__
    assert name == "table" or error.where.line == function.__code__.co_firstlineno
    assert got is None or got in str(error.got)
    assert error.remedy


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (tf.sparse.from_dense(np.eye(2, dtype=np.float32)), "TRN243"),
        (tf.ragged.constant([[1.0], [2.0, 3.0]]), "TRN243"),
        (tf.constant(["a"]), "TRN240"),
        (tf.constant(1.0, tf.float64), "TRN212"),
        (tf.constant([0, 2**40]), "TRN211"),
    ],
)
def test_arguments_that_the_chip_cannot_hold(value, code):
    with use(InterpreterEngine()), pytest.raises(TrnlabError) as caught:
        neuron.function(lambda x: x)(value)
    assert caught.value.code == code


def test_no_framework_is_loaded_before_it_is_used():
    code = "import sys, trnlab.frontends.tensorflow; assert not {'tensorflow', 'keras', 'jaxlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
