# SPDX-License-Identifier: Apache-2.0
"""One function that TensorFlow executes, as a program: tensors and handles of variables in, tensors out.

TensorFlow's compiler bridge writes it as HLO for the shapes of the call, as it does for `jit_compile=True`. Variables
are read before the program and written after it, through their handles.
"""

from __future__ import annotations

import re
import warnings
import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context, record
from tensorflow.python.ops import resource_variable_ops as variables

from trnlab.errors import TrnlabError
from trnlab.frontends.common import engine
from trnlab.frontends.stablehlo import SegmentedProgram, import_module
from trnlab.frontends.stablehlo.formats import in_precision
from trnlab.frontends.stablehlo.tracer import narrow
from trnlab.frontends.tensorflow import lower
from trnlab.frontends.tensorflow.locations import Lines
from trnlab.frontends.tensorflow.refusals import not_lowered
from trnlab.frontends.tensorflow.values import to_array, to_tensor
from trnlab.runtime import session

Array = np.ndarray[Any, Any]
_INFERENCE = re.compile(r"^__(?:inference|forward|backward)_(.*?)(?:_\d+)+$")
_HOSTS = (tf.string, tf.variant, tf.complex64, tf.complex128, tf.float64)
_HOUSEKEEPING = ("initialize_variables", "tf_function_save", "tf_function_restore")
_FEWEST = 2  # operators of a function that is worth a program


class NotRepresentable(Exception):  # noqa: N818
    """What a function takes, gives or does has no form on the chip."""


class NotWorthIt(Exception):  # noqa: N818
    """A function of TensorFlow's own housekeeping, or one that computes nothing."""


@dataclass
class _Loaded:
    """A program, and what its arguments and results are."""

    program: SegmentedProgram
    run: Callable[[Sequence[Array]], list[Array]]
    given: list[int]  # which arguments of the call the module has
    # how many results are the function's; after them come the variables at these places of the arguments
    own: list[tf.DType]
    written: list[int]


_programs: weakref.WeakKeyDictionary[Any, dict[Hashable, _Loaded]] = weakref.WeakKeyDictionary()
_refused: weakref.WeakKeyDictionary[Any, dict[Hashable, Exception]] = weakref.WeakKeyDictionary()
_tracing: list[bool] = []


def is_tracing() -> bool:
    """Whether a module is being written, for which TensorFlow may execute what it knows."""
    return bool(_tracing)


def name_of(function: Any) -> str:
    """What the script calls it."""
    shown = function.name.decode() if isinstance(function.name, bytes) else str(function.name)
    match = _INFERENCE.match(shown)
    return match[1] if match is not None else shown


def run(function: Any, arguments: Sequence[Any]) -> list[tf.Tensor]:
    """The results of `function`, computed on the chip; variables that it writes are written.

    Raises UnsupportedOpError, NumericsError (TRN211), NotRepresentable or NotWorthIt, before anything happened.
    """
    key = (*map(_form, arguments), id(engine.current()), id(session.active()), session.precision_now())
    loaded = _found(function, arguments, key)
    with record.stop_recording():
        return _run(loaded, arguments, function)


def follow(function: Any, arguments: Sequence[Any], follower: engine.TracingEngine) -> None:
    """Say what the chip would run of `function`, which somebody else computes. Raises as `run`."""
    loaded = _found(function, arguments, (*map(_form, arguments), id(follower)))
    kinds = [_variable(a) if a.dtype == tf.resource else None for a in arguments]
    written = set(loaded.written)
    named = {_name(function, i): _kind_of(kind, i in written, bool(written)) for i, kind in enumerate(kinds)}
    given = [(tuple(a.shape), a.dtype.name) for a in arguments if a.dtype != tf.resource]
    graphs, has = list(loaded.program.graphs()), engine.counted(given)
    follower.follow("tf.function", graphs, named, _learns(loaded, arguments), has)
    if _learns(loaded, arguments):
        from trnlab.frontends.tensorflow.step import learned_from

        engine.current().step_done(0.0, learned_from([a for a in arguments if a.dtype != tf.resource]))


def _kind_of(variable: Any, is_written: bool, any_is: bool) -> str:
    """What an argument is: of a function that writes no variable, those that it reads are the model's."""
    if variable is None or (any_is and not is_written):
        return "batch"
    return "parameter" if variable.shape.rank else "state"


def _found(function: Any, arguments: Sequence[Any], key: Hashable) -> _Loaded:
    refused = _refused.setdefault(function, {})
    if key in refused:
        raise refused[key]
    known = _programs.setdefault(function, {})
    if key not in known:
        try:
            known[key] = _loaded(function, arguments)
        except (TrnlabError, NotRepresentable, NotWorthIt) as error:
            refused[key] = error
            raise
    return known[key]


def _form(argument: Any) -> Hashable:
    """What of an argument decides about the program."""
    if argument.dtype == tf.resource:
        kind = _variable(argument)
        return None if kind is None else (kind.dtype, tuple(kind.shape))
    return argument.dtype, tuple(argument.shape)


def _variable(handle: Any) -> tf.TensorSpec | None:
    """Shape and format of the variable behind a handle; None where it is another resource."""
    data = variables.get_eager_safe_handle_data(handle)
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        return None
    kind = data.shape_and_type[0]
    return tf.TensorSpec(tf.TensorShape(kind.shape), tf.dtypes.as_dtype(kind.dtype))


def _loaded(function: Any, arguments: Sequence[Any]) -> _Loaded:
    name = name_of(function)
    _check(function, arguments)
    lines = Lines(function.graph)
    text = lower.static_text(_hlo(function, arguments, lines, name), lines, name)
    aliases = {int(out): int(place) for place, out in lower.ALIAS.findall(text)}
    own = [t.dtype for t in function.function_type.flat_outputs]
    given = list(range(len(arguments)))
    try:
        donated = {place: out for out, place in aliases.items()}
        program = import_module(text, name, names=[_name(function, i) for i in given], donated=donated)
    except TrnlabError as error:
        error.where = lines.resolved(error.where)
        raise
    for graph in program.graphs():
        for op in graph.ops:
            op.loc = lines.resolved(op.loc)
    if len(program.argument_types) != len(given):
        raise NotRepresentable("the compiler leaves out some of its arguments")
    written = [aliases[i] for i in range(len(own), len(program.result_types))]
    in_precision(program, session.asked())
    run = _nobody if engine.follower() is not None else program.load(engine.current().compile)
    return _Loaded(program, run, given, own, written)


def _nobody(arguments: Sequence[Array]) -> list[Array]:
    raise AssertionError("what is followed is computed by somebody else")


def _check(function: Any, arguments: Sequence[Any]) -> None:
    """Raises NotRepresentable for what is known without asking the compiler."""
    if len(function.cached_definition.node_def) < _FEWEST or name_of(function) in _HOUSEKEEPING:
        raise NotWorthIt
    kinds = [a.dtype for a in arguments if a.dtype != tf.resource]
    kinds += [_variable(a) for a in arguments if a.dtype == tf.resource]
    for kind in kinds:
        if kind is None:
            raise NotRepresentable(
                "it uses a resource that is no variable: a data set's iterator, a table or a queue"
            )
        if getattr(kind, "dtype", kind) in _HOSTS:
            raise NotRepresentable(f"the chip has no format for {getattr(kind, 'dtype', kind).name}")
    for output in function.function_type.flat_outputs:
        if output.dtype in (*_HOSTS, tf.resource):
            raise NotRepresentable(f"the chip has no format for {output.dtype.name}, which it returns")


def _hlo(function: Any, arguments: Sequence[Any], lines: Lines, name: str) -> bytes:
    """What TensorFlow's bridge makes of the function for arguments of these shapes."""
    first = next((i for i, a in enumerate(arguments) if a.dtype == tf.resource), len(arguments))
    specs = [tf.TensorSpec(a.shape, a.dtype) for a in arguments[:first]]
    _tracing.append(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found: bytes = context.context().get_compiler_ir(
                device_name=lower.DEVICE,
                platform_name=None,
                function_name=function.name,
                flat_args=specs,
                captured_inputs=list(arguments[first:]),
                stage="hlo_serialized",
            )
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        raise not_lowered(error, name, lines) from error
    finally:
        _tracing.pop()
    return found


def _name(function: Any, place: int) -> str:
    graph = function.graph
    tensor = graph.inputs[place] if place < len(graph.inputs) else None
    return f"arg{place}" if tensor is None else str(tensor.op.name)


def _run(loaded: _Loaded, arguments: Sequence[Any], function: Any) -> list[tf.Tensor]:
    values = [_read(arguments[i]) for i in loaded.given]
    kinds = loaded.program.argument_types
    given = [to_array(v, narrow(kind).dtype, name_of(function)) for v, kind in zip(values, kinds)]
    results = loaded.run(given)
    made = [to_tensor(a, kind) for a, kind in zip(results, loaded.own)]
    for place, array in zip(loaded.written, results[len(loaded.own) :]):
        kind = _variable(arguments[place])
        assert kind is not None
        tf.raw_ops.AssignVariableOp(resource=arguments[place], value=to_tensor(array, kind.dtype))
    _tell_of_step(loaded, arguments, made)
    return made


def _read(argument: Any) -> Any:
    if argument.dtype != tf.resource:
        return argument
    kind = _variable(argument)
    assert kind is not None
    return tf.raw_ops.ReadVariableOp(resource=argument, dtype=kind.dtype)


def _learns(loaded: _Loaded, arguments: Sequence[Any]) -> bool:
    """Whether a function writes variables of floats, and not only numbers."""
    kinds = [_variable(arguments[place]) for place in loaded.written]
    return any(kind is not None and kind.dtype.is_floating and kind.shape.rank for kind in kinds)


def _tell_of_step(loaded: _Loaded, arguments: Sequence[Any], made: Sequence[tf.Tensor]) -> None:
    """Where it learns, its first number is the loss."""
    if not _learns(loaded, arguments):
        return
    loss = next((t for t in made if t.dtype.is_floating and t.shape.rank == 0), None)
    if loss is None:
        engine.optimizer_stepped()
        return
    from trnlab.frontends.tensorflow.step import learned_from

    engine.current().step_done(float(loss), learned_from([a for a in arguments if a.dtype != tf.resource]))
