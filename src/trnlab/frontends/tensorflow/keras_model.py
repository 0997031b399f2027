# SPDX-License-Identifier: Apache-2.0
"""`on_chip(model)`: a compiled Keras model whose fit, evaluate and predict run on the simulated chip.

    model.compile(optimizer, loss, metrics=[...])
    neuron.on_chip(model)
    model.fit(x, y, validation_data=..., callbacks=[...])

The loops are Keras' own: data, callbacks, metrics and logs are as ever. What changes is who runs one batch: the
model's train_step, test_step or predict_step (its own or an overridden one) as one program, metrics included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import keras
import tensorflow as tf

from trnlab.errors import UsageError
from trnlab.frontends.common import engine
from trnlab.frontends.tensorflow.chip_function import ChipFunction
from trnlab.frontends.tensorflow.numbers import numbers_of
from trnlab.frontends.tensorflow.step import learned_from, trainable

_MAKERS = ("train", "test", "predict")


def on_chip(model: Any) -> Any:
    """Let `model` train, evaluate and predict on the simulated chip from now on; returns it.

    Calls of the model itself, model(x), stay on the host. Raises UsageError (TRN244) for what is no Keras model on
    the TensorFlow backend.
    """
    if keras.backend.backend() != "tensorflow" or not isinstance(model, keras.Model):
        raise UsageError(
            "only models of Keras on its TensorFlow backend are trained this way",
            code="TRN244",
            got=f"{type(model).__name__} on {keras.backend.backend()}",
            remedy="set KERAS_BACKEND=tensorflow",
        )
    for kind in _MAKERS:
        _set(model, f"{kind}_function", None)
        _set(model, f"make_{kind}_function", MethodType(_maker(kind), model))
    return model


def on_host(model: Any) -> Any:
    """Undo `on_chip`."""
    for kind in _MAKERS:
        vars(model).pop(f"make_{kind}_function", None)
        _set(model, f"{kind}_function", None)
    return model


def _set(model: Any, name: str, value: Any) -> None:
    """Without Keras' tracking of attributes: what is set is no part of the model."""
    object.__setattr__(model, name, value)


def _maker(kind: str) -> Callable[..., Any]:
    """What Keras calls to make the function that runs one batch, or as many as one execution has steps."""

    def make(self: Any, force: bool = False) -> Any:
        name = f"{kind}_function"
        if getattr(self, name) is None or force:
            _set(self, name, _predict(self) if kind == "predict" else _batches(self, kind))
        return getattr(self, name)

    return make


def _batches(model: Any, kind: str) -> Callable[[Any], Any]:
    """A function of an iterator over batches; returns the logs of the last. StopIteration when there is none."""
    step = _Step(model, kind)

    def run(iterator: Any) -> Any:
        logs = None
        batches = iter(iterator)
        for _ in range(model.steps_per_execution):
            try:
                data = next(batches)
            except (StopIteration, tf.errors.OutOfRangeError):
                if logs is None:
                    raise
                break
            logs = step(data)
        return logs

    return run


def _predict(model: Any) -> Callable[[Any], Any]:
    step = ChipFunction(model.predict_step, f"{model.name}.predict_step", numbers=lambda: numbers_of(model))

    def run(batches: Any) -> Any:
        outputs = [step(_without_optionals(data)) for data in batches]
        return tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), *outputs) if len(outputs) > 1 else outputs[0]

    return run


class _Step:
    """A model's train_step or test_step as a program, which returns the batch's own loss beside the logs."""

    def __init__(self, model: Any, kind: str) -> None:
        self.model, self.kind = model, kind
        self.function = ChipFunction(
            self._step,
            f"{model.name}.{kind}_step",
            lambda: trainable(model),
            lambda: numbers_of(model, model.loss, model.optimizer),
        )

    def __call__(self, data: Any) -> Any:
        loss, logs = self.function(_without_optionals(data))
        if self.kind == "train":
            engine.current().step_done(float(loss), learned_from(data))
        return logs

    def _step(self, data: Any) -> Any:
        with _losses(self.model) as found:
            logs = getattr(self.model, f"{self.kind}_step")(data)
        return found[-1] if found else logs["loss"], logs


@contextmanager
def _losses(model: Any) -> Iterator[list[Any]]:
    """The losses that the model computes within the block; its logs hold the epoch's mean so far."""
    found: list[Any] = []
    compute = model._compute_loss

    def computed(*args: Any, **kwargs: Any) -> Any:
        found.append(compute(*args, **kwargs))
        return found[-1]

    _set(model, "_compute_loss", computed)
    try:
        yield found
    finally:
        del vars(model)["_compute_loss"]


def _without_optionals(data: Any) -> Any:
    return tf.nest.map_structure(lambda x: None if isinstance(x, tf.experimental.Optional) else x, data)
