# SPDX-License-Identifier: Apache-2.0
"""`function`: a Python function of tensors and variables that runs on the simulated chip as one program.

It takes the place of `tf.function(jit_compile=True)`: one program per form of the arguments, variables are read and
written in place, Python code runs while it is traced only. Called from another traced function it is part of that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import record

from trnlab.frontends.common import engine
from trnlab.frontends.stablehlo.tracer import narrow
from trnlab.frontends.tensorflow import refusals
from trnlab.frontends.tensorflow.capture import CapturedFunction, ResultTensor, capture, leaves_of
from trnlab.frontends.tensorflow.numbers import difference
from trnlab.frontends.tensorflow.values import Array, to_array, to_tensor
from trnlab.precision import PrecisionRules
from trnlab.runtime import session
from trnlab.runtime.notices import say

Formats = tuple["str | None", "str | Path | PrecisionRules | None"]  # precision and rules
_MOST_PROGRAMS = 32  # that one function keeps; the one that was not used for longest goes first


@dataclass
class _Trace:
    captured: CapturedFunction
    run: Callable[[Sequence[Array]], list[Array]]


class ChipFunction:
    """See `function`. `captured` is what the latest call ran.

    state: read at every call; where it is another, the function is captured again. numbers: the same for Python
    numbers by name, of which a message says which one has changed.
    """

    def __init__(
        self,
        python_function: Callable[..., Any],
        name: str | None = None,
        state: Callable[[], Hashable] | None = None,
        numbers: Callable[[], Mapping[str, Any]] = dict,
        formats: Formats = (None, None),
    ) -> None:
        functools.update_wrapper(self, python_function)
        self.python_function, self.state, self.numbers = python_function, state, numbers
        self.formats = formats
        self._numbers: Mapping[str, Any] | None = None  # those of the latest call
        self.name = str(name or getattr(python_function, "__name__", "function"))
        self.captured: CapturedFunction | None = None
        self._traces: dict[Hashable, _Trace] = {}
        self._backward: ChipFunction | None = None

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        method = self.python_function.__get__(instance, owner)
        bound = ChipFunction(method, self.name, self.state, self.numbers, self.formats)
        instance.__dict__.setdefault(self.python_function.__name__, bound)
        return instance.__dict__[self.python_function.__name__]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on the chip; returns what the function returns, with tensors that hold the chip's results."""
        if not tf.executing_eagerly():  # part of a larger trace
            return self.python_function(*args, **kwargs)
        args, kwargs = tf.nest.map_structure(_as_tensor, (args, kwargs))
        leaves = leaves_of((args, kwargs), self.name)
        with session.computing(*self.formats):
            trace = self._trace(args, kwargs, leaves)
            self.captured = trace.captured
            follower = engine.follower()
            if follower is not None:
                _follow(trace.captured, leaves, follower)
                return self.python_function(*args, **kwargs)
            results = _run(trace, leaves)
        self._record(trace.captured, args, kwargs, leaves, results)
        return _reported(trace.captured.result, results)

    # -- gradients of a call ----------------------------------------------------------------------------------------
    def _record(self, captured: CapturedFunction, args: Any, kwargs: Any, leaves: Any, results: Any) -> None:
        """Tell a tape around the call, if there is one, how to go back: by a program that computes it again."""
        tensors = [x for x in leaves if isinstance(x, tf.Tensor) and x.dtype.is_floating]
        variables = [v for v in captured.captures if isinstance(v, tf.Variable) and v.trainable]
        sources = [*tensors, *(v.handle for v in variables)]
        if not record.should_record_backprop(sources):
            return
        if captured.written:
            raise refusals.written_under_tape(self.name, captured.written[0].name)
        if self._backward is None:
            name = f"{self.name}.gradient"
            self._backward = ChipFunction(self._gradients, name, self.state, self.numbers, self.formats)
        backward = self._backward

        def back(*upstream: Any) -> Any:
            return backward(args, kwargs, variables, upstream)

        record.record_operation(self.name, results, sources, back)

    def _gradients(self, args: Any, kwargs: Any, variables: Any, upstream: Any) -> Any:
        """The gradients of the results, weighted by `upstream`, in floats among the arguments and in variables."""
        tensors = [x for x in tf.nest.flatten((args, kwargs)) if isinstance(x, tf.Tensor) and x.dtype.is_floating]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([*tensors, *variables])
            results = self.python_function(*args, **kwargs)
            outputs = [tf.convert_to_tensor(x) for x in tf.nest.flatten(results) if x is not None]
        found = tape.gradient(outputs, [*tensors, *variables], list(upstream))
        return [None if g is None else tf.convert_to_tensor(g) for g in found]

    def _trace(self, args: Any, kwargs: Any, leaves: Sequence[Any]) -> _Trace:
        form = self._form_of(args, kwargs, leaves)
        trace = self._traces.pop(form, None)
        if trace is None:
            self._say_what_changed()
            captured = capture(self.python_function, args, kwargs, self.name)
            run = captured.program.load(engine.current().compile) if engine.follower() is None else _nobody
            trace = _Trace(captured, run)
            while len(self._traces) >= _MOST_PROGRAMS:
                self._traces.pop(next(iter(self._traces)))
            form = self._form_of(args, kwargs, leaves)  # as the trace has left it: layers that count calls in Python
        self._traces[form], self._numbers = trace, self.numbers()
        return trace

    def _form_of(self, args: Any, kwargs: Any, leaves: Sequence[Any]) -> Hashable:
        """What decides about the program."""
        state = self.state() if self.state is not None else None
        numbers = tuple((name, type(value), value) for name, value in self.numbers().items())
        return (
            _structure((args, kwargs)),
            *map(_form, leaves),
            keras.config.floatx(),
            state,
            numbers,
            str(session.precision_now()),
        )

    def _say_what_changed(self) -> None:
        changed = "" if self._numbers is None else difference(self._numbers, self.numbers())
        if changed:
            say(f"{self.name!r} is captured again: {changed}")


def function(
    python_function: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    precision: str | None = None,
    precision_rules: str | Path | PrecisionRules | None = None,
) -> Any:
    """Run `python_function` on the chip, as a decorator or called; see the head of this module.

    precision, precision_rules: see `compile_step`.
    """
    if python_function is None:
        return functools.partial(function, name=name, precision=precision, precision_rules=precision_rules)
    if isinstance(python_function, tf.types.experimental.PolymorphicFunction):
        python_function = python_function.python_function
    return ChipFunction(python_function, name, formats=(precision, precision_rules))


def _nobody(arguments: Sequence[Array]) -> list[Array]:
    raise AssertionError("what is followed is computed by TensorFlow")


def _follow(captured: CapturedFunction, leaves: Sequence[Any], follower: engine.TracingEngine) -> None:
    """Say what the chip would run; TensorFlow computes it."""
    written = set(map(id, captured.written))
    kinds = {
        role.name: role.kind
        if role.kind == "parameter"
        else "state"
        if role.kind != "batch" and id(captured.captures[role.place]) in written
        else "batch"
        for role in captured.inputs
    }
    learns = any(v.dtype.is_floating and v.shape.rank for v in captured.written)
    has = engine.counted([(tuple(x.shape), x.dtype.name) for x in leaves if isinstance(x, tf.Tensor)])
    follower.follow("TensorFlow", list(captured.program.graphs()), kinds, learns, has)


def _run(trace: _Trace, leaves: Sequence[Any]) -> list[tf.Tensor]:
    """Run the program: variables are overwritten, results come back."""
    captured = trace.captured
    arrays = []
    for role, kind in zip(captured.inputs, captured.program.argument_types):
        source = leaves[role.place] if role.kind == "batch" else captured.captures[role.place]
        arrays.append(to_array(source, narrow(kind).dtype, role.name))
    results = trace.run(arrays)
    own = len(captured.kinds)
    for variable, array in zip(captured.written, results[own:]):
        variable.assign(to_tensor(array, variable.dtype))
    return [to_tensor(array, dtype) for array, dtype in zip(results, captured.kinds)]


def _reported(result: Any, tensors: Sequence[tf.Tensor]) -> Any:
    return tf.nest.map_structure(lambda x: tensors[x.index] if isinstance(x, ResultTensor) else x, result)


def _as_tensor(leaf: Any) -> Any:
    """Arrays are tensors, and those of float64 are what Keras makes of them."""
    if isinstance(leaf, np.ndarray | np.generic):
        return tf.convert_to_tensor(leaf, keras.config.floatx() if leaf.dtype == np.float64 else None)
    return leaf


def _form(leaf: Any) -> Hashable:
    """What of an argument decides about the program: the form of a tensor, the value of all else."""
    if isinstance(leaf, tf.Tensor):
        return ("tensor", leaf.dtype.name, tuple(leaf.shape))
    if isinstance(leaf, (int, float, complex, str, bytes, type(None))):
        return (type(leaf).__name__, repr(leaf))
    return _Same(leaf.ref() if isinstance(leaf, tf.Variable) else leaf)


def _structure(arguments: Any) -> str:
    return str(tf.nest.map_structure(lambda _: 0, arguments))


class _Same:
    """An object, equal to itself only; it lives as long as the program that was captured with it."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value
