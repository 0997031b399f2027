# SPDX-License-Identifier: Apache-2.0
"""A training step of a Keras model that runs on the simulated chip as one program.

    step = compile_step(model, loss, optimizer)
    for x, y in batches:
        loss = step(x, y)

Weights, moving averages, the optimizer's variables and the states of random generators are overwritten in place: what
is saved, evaluated or trained on afterwards with Keras on the host is the same model.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trnlab.errors import UsageError
from trnlab.frontends.common import engine
from trnlab.frontends.tensorflow.capture import CapturedFunction
from trnlab.frontends.tensorflow.chip_function import ChipFunction, Formats
from trnlab.frontends.tensorflow.locations import layers_of
from trnlab.frontends.tensorflow.numbers import numbers_of
from trnlab.precision import PrecisionRules

Loss = str | Callable[..., Any] | None


def compile_step(
    model: Any,
    loss: Loss,
    optimizer: Any,
    *,
    name: str = "train_step",
    precision: str | None = None,
    precision_rules: str | Path | PrecisionRules | None = None,
) -> TensorFlowTrainStep:
    """A step of `optimizer` on loss(y, model(x)) and the losses that layers add.

    loss: a keras.losses.Loss, a function of (y, predictions), or its name in Keras; None when the layers add all of
    it. The model is called with training=True where it takes that. Programs are compiled on first use, one per form
    of the batch. precision, precision_rules: the mode and the rules (or their file) in which it computes, see
    docs/precision.md; None: those of the session. Raises UsageError (TRN110) for a loss that is not one number, and
    TRN121, TRN245, TRN246 for a precision that does not exist, or not on the chip.
    """
    return TensorFlowTrainStep(model, loss, optimizer, name, (precision, precision_rules))


class TensorFlowTrainStep:
    """See `compile_step`. `captured` is the graph of the latest call."""

    def __init__(self, model: Any, loss: Loss, optimizer: Any, name: str, formats: Formats = (None, None)) -> None:
        self.model, self.loss, self.optimizer, self.name = model, _loss(loss), keras.optimizers.get(optimizer), name
        self._function = ChipFunction(
            self._step,
            name,
            lambda: trainable(model),
            lambda: numbers_of(model, self.loss, self.optimizer),
            formats,
        )

    @property
    def captured(self) -> CapturedFunction | None:
        """What the latest call ran."""
        return self._function.captured

    def __call__(self, x: Any, y: Any = None, sample_weight: Any = None) -> tf.Tensor:
        """Train on one batch; returns its loss."""
        with layers_of(self.model):
            loss = self._function(x, y, sample_weight)
        engine.current().step_done(float(loss), learned_from((x, y)))
        return loss

    def _step(self, x: Any, y: Any, sample_weight: Any) -> tf.Tensor:
        with tf.GradientTape() as tape:
            predictions = self.model(x, training=True)
            loss = self._total(y, predictions, sample_weight)
            scaled = self.optimizer.scale_loss(loss)
        learned = self.model.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(scaled, learned), learned))
        return loss

    def _total(self, y: Any, predictions: Any, sample_weight: Any) -> tf.Tensor:
        parts = list(self.model.losses)
        if self.loss is not None:
            parts.append(self.loss(y, predictions, sample_weight=sample_weight))
        if not parts or any(part.shape.rank for part in parts):
            raise UsageError(
                "the loss of a training step must be one number",
                code="TRN110",
                got=f"{list(parts[-1].shape)}" if parts else "no loss",
                remedy="average it: tf.reduce_mean",
            )
        return tf.add_n([tf.cast(part, parts[-1].dtype) for part in parts])


def trainable(model: Any) -> Hashable:
    """Which weights learn: freezing a layer asks for another program."""
    return tuple(id(w) for w in model.trainable_weights) if model.built else None


def learned_from(batch: Any) -> int:
    """How many tokens, or else samples, are in it: see `counted`."""
    tensors = [np.asarray(x) for x in tf.nest.flatten(batch) if x is not None]
    return engine.counted([(x.shape, x.dtype.name) for x in tensors])[0]


def _loss(loss: Loss) -> Any:
    found: Any = keras.losses.get(loss)
    return found if found is None or isinstance(found, keras.losses.Loss) else _FunctionLoss(found)


class _FunctionLoss(keras.losses.Loss):
    """A function of (y, predictions), averaged over the batch as `model.compile` does."""

    def __init__(self, function: Callable[..., Any]) -> None:
        name = getattr(function, "__name__", "")
        super().__init__(name=name if name.isidentifier() else "loss")
        self.function = function

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """The function's values, one per sample."""
        return self.function(y_true, y_pred)


TrainStep = TensorFlowTrainStep  # what `trnlab.frontends.tensorflow` calls it, as that of PyTorch is called
