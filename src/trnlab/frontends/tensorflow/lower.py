# SPDX-License-Identifier: Apache-2.0
"""A Python function, traced by TensorFlow and written out as StableHLO.

TensorFlow's own compiler bridge turns the trace into XLA's HLO, as `tf.function(jit_compile=True)` would, and jaxlib
turns that into StableHLO. The module's arguments are the function's tensors, then what it captured, in the order of
the trace; its results are those of the function, then the variables that it writes.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from keras.src.backend.tensorflow import numpy as keras_numpy

from trnlab.errors import TrnlabError, UsageError
from trnlab.frontends.tensorflow.locations import Lines
from trnlab.frontends.tensorflow.refusals import not_lowered, not_static

DEVICE = "/job:localhost/replica:0/task:0/device:CPU:0"  # for whose bridge TensorFlow writes HLO; nothing runs there
ALIAS = re.compile(r"parameter_number = (\d+) : i64\}, output_index = array<i64: (\d+)>")
_NAMED = re.compile(r'^(#loc\d+ = )loc\("([^"]+)"\)$', re.MULTILINE)
_DYNAMIC = re.compile(r"tensor<[^>]*(\?|#stablehlo\.bounds)")


@dataclass
class Lowered:
    """A function of TensorFlow as a module of StableHLO."""

    text: str  # the module
    # what follows the tensors among its arguments: variables and constant tensors
    captures: list[tf.Variable | tf.Tensor]
    # dtypes of the function's own results. aliases[i] = j: result i of the module is the new value of the
    # variable that is argument j
    results: list[tf.DType]
    aliases: dict[int, int]
    lines: Lines


def lower(function: Callable[..., Sequence[tf.Tensor]], specs: Sequence[tf.TensorSpec], name: str) -> Lowered:
    """Lower `function` for tensors like `specs`; it returns a flat list of tensors.

    Raises UnsupportedOpError (TRN240 to TRN243) for what has no form as HLO, with the user's line.
    """
    try:
        traced = tf.function(function, jit_compile=True, reduce_retracing=False)
        with _static_quotients():
            concrete = traced.get_concrete_function(*specs)
    except TrnlabError:
        raise
    except (tf.errors.OpError, NotImplementedError) as error:
        raise not_lowered(error, name, None) from error
    lines = Lines(concrete.graph)
    captures = [_captured(tensor, concrete, lines, name) for tensor in concrete.captured_inputs]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # without a device TensorFlow draws a random number to find one
            serialized = traced.experimental_get_compiler_ir(*specs)("hlo_serialized", device_name=DEVICE)
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        raise not_lowered(error, name, lines) from error
    text = static_text(serialized, lines, name)
    aliases = {int(out): int(argument) for argument, out in ALIAS.findall(text)}
    return Lowered(text, captures, [t.dtype for t in concrete.outputs], aliases, lines)


def static_text(serialized: bytes, lines: Lines, name: str) -> str:
    """The module of StableHLO for serialized HLO, with the user's lines. Raises UnsupportedOpError (TRN242)."""
    text = _stablehlo(serialized)
    if _DYNAMIC.search(text):
        raise not_static(text, _DYNAMIC, name, lines)
    return _with_lines(text, lines)


@contextmanager
def _static_quotients() -> Iterator[None]:
    """Within the block Keras divides rows of an embedding's gradient in a form of known size.

    Where it divides rows with their numbers by a whole table (RMSprop, Adagrad), it looks for rows of the table that
    hold zero or NaN, because 0 / 0 is no row of zeros; nobody knows how many these are before the step runs. A
    quotient of whole tables has the same values. All else that Keras does with such rows keeps its form, and its
    meaning: a row that comes twice is squared twice, not once as the sum.
    """
    names = ("divide", "true_divide")
    originals = {name: getattr(keras_numpy, name) for name in names}

    def whole(divide: Callable[..., Any]) -> Callable[..., Any]:
        def divided(x1: Any, x2: Any) -> Any:
            rows = isinstance(x1, tf.IndexedSlices) and len(getattr(x2, "shape", ())) > 0
            return divide(tf.convert_to_tensor(x1) if rows else x1, x2)

        return divided

    for name, divide in originals.items():
        setattr(keras_numpy, name, whole(divide))
    try:
        yield
    finally:
        for name, divide in originals.items():
            setattr(keras_numpy, name, divide)


def _with_lines(text: str, lines: Lines) -> str:
    """The module with the user's lines beside the names of ops; what follows TensorFlow's own lines is left out."""

    def placed(match: re.Match[str]) -> str:
        where = lines.find(match[2])
        return match[0] if where is None else f'{match[1]}loc("{match[2]}"("{where.file}":{where.line}:0))'

    return _NAMED.sub(placed, text)


def _captured(tensor: tf.Tensor, concrete: Any, lines: Lines, name: str) -> tf.Variable | tf.Tensor:
    """The variable behind a handle, or a tensor from outside itself."""
    if tensor.dtype != tf.resource:
        return tensor
    for variable in concrete.graph.variables:
        if variable.handle is tensor:
            return variable
    kept = next((inner for outer, inner in concrete.graph.captures if outer is tensor), None)
    raise not_lowered(None, name, lines, kept)


def _stablehlo(serialized: bytes) -> str:
    """HLO as StableHLO text. Raises UsageError (TRN244) when jaxlib cannot do it."""
    try:
        from trnlab.frontends.stablehlo import mlir

        return mlir.from_hlo(serialized)
    except (ImportError, AttributeError) as error:
        raise UsageError(
            "models of TensorFlow are read through jaxlib, which is missing or of another version",
            code="TRN244",
            got=str(error),
            remedy="pip install 'trnlab[tensorflow]'",
        ) from error
