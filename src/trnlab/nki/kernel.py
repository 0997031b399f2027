# SPDX-License-Identifier: Apache-2.0
"""Kernels that can run: recorded once per shapes, formats and constants, then executed and timed.

kernel = Kernel(function)
result = kernel(x, y)            # numbers
kernel[4](x, y)                  # on a launch grid
kernel.timeline(x, y).total      # time, in picoseconds
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.errors import UsageError
from trnlab.lang.recorder import Recorder, recording
from trnlab.lang.tensor import Tensor
from trnlab.nki.arrays import HostArray, is_array, like, to_host
from trnlab.nki.target import default_chip
from trnlab.program.routine import Routine
from trnlab.sim.functional import Machine, RunOptions
from trnlab.sim.timing import time_routine
from trnlab.timeline import Timeline

Array = np.ndarray[Any, Any]
_POISON = 0xFF


@dataclass(frozen=True)
class Result:
    """A tensor that a kernel returns: parameter number `param` of its routine, as a view."""

    param: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    format: Any


@dataclass(frozen=True)
class Trace:
    """A recorded kernel: its routine, and per parameter what to bind.

    arguments: how many parameters the caller's arrays take. arrays: contents of constants by parameter. results: the
    returned structure with `Result` where tensors were. aliases: parameters of arguments that are returned.
    """

    routine: Routine
    arguments: int
    arrays: dict[int, Array]
    results: Any


class Kernel:
    """What @nki.jit makes of a function."""

    tensor_type: type[Tensor] = Tensor

    def __init__(
        self, function: Callable[..., Any], grid: tuple[int, ...] = (), traces: dict[Any, Trace] | None = None,
        chip: Chip | None = None, options: RunOptions | None = None,
    ) -> None:  # fmt: skip
        functools.update_wrapper(self, function)
        self.function, self.grid, self.chip, self.options = function, grid, chip, options
        self.traces: dict[Any, Trace] = {} if traces is None else traces

    def __getitem__(self, grid: Any) -> Kernel:
        """The kernel on a launch grid: kernel[2](x), kernel[4, 8](x)."""
        sizes = tuple(max(int(g), 1) for g in (grid if isinstance(grid, tuple) else (grid,)))
        return type(self)(self.function, sizes, self.traces, self.chip, self.options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on arrays. Inside another kernel it is an ordinary function."""
        if recording():
            return self.function(*args, **kwargs)
        structure, arrays = self._bind(args, kwargs)
        trace = self._trace(structure, arrays)
        machine = Machine(self.chip or default_chip(), self.options)
        memory = _memory(trace, arrays)
        machine.call(trace.routine, memory)
        origin = arrays[0].origin if arrays else None
        return map_objects(lambda r: like(_view(r, memory[r.param]), r.format, origin), trace.results, Result)

    def trace(self, *args: Any, **kwargs: Any) -> Trace:
        """The recorded kernel for these arguments."""
        return self._trace(*self._bind(args, kwargs))

    def timeline(self, *args: Any, **kwargs: Any) -> Timeline:
        """When each instruction would run on the chip; data are not looked at."""
        return time_routine(self.trace(*args, **kwargs).routine, self.chip or default_chip())

    def _bind(self, args: Any, kwargs: Any) -> tuple[dict[str, Any], list[HostArray]]:
        """Arguments by name with `HostArray` for each array, also inside lists, tuples and dicts."""
        try:
            bound = inspect.signature(self.function).bind(*args, **kwargs)
        except TypeError as error:
            raise UsageError(f"kernel {self.function.__name__!r}: {error}", code="TRN111",
                             remedy="call it with the arguments of its definition") from None  # fmt: skip
        bound.apply_defaults()
        structure = {name: _map_arrays(value) for name, value in bound.arguments.items()}
        return structure, [a for value in structure.values() for a in _found(value, HostArray)]

    def _trace(self, structure: dict[str, Any], arrays: list[HostArray]) -> Trace:
        chip = self.chip or default_chip()
        key = (chip.name, self.grid, _key(structure))
        if key not in self.traces:
            self.traces[key] = self._record(structure, chip)
        return self.traces[key]

    def _record(self, structure: dict[str, Any], chip: Chip) -> Trace:
        recorder = Recorder(self.function.__name__, chip, self.grid, tensor_type=self.tensor_type)
        inputs = {name: self._arguments(recorder, name, value) for name, value in structure.items()}
        arguments = len(recorder.hbm)
        returned: Any = None
        for program in itertools.product(*(range(g) for g in self.grid)):
            recorder.enter(program)
            with recorder.active():
                returned = self._run_function(inputs)
        results = map_objects(lambda t: self._result(recorder, t), returned, Tensor)
        return Trace(recorder.finish(), arguments, recorder.arrays, results)

    def _arguments(self, recorder: Recorder, name: str, value: Any) -> Any:
        """The argument with a tensor for each array; arrays within a structure are numbered."""
        count = itertools.count()

        def tensor(array: HostArray) -> Tensor:
            number = next(count)
            return recorder.argument(f"{name}.{number}" if number else name, array.data.shape, array.format)

        return map_objects(tensor, value, HostArray)

    def _run_function(self, inputs: dict[str, Any]) -> Any:
        signature = inspect.signature(self.function)
        bound = inspect.BoundArguments(signature, inputs)  # type: ignore[arg-type]
        return self.function(*bound.args, **bound.kwargs)

    def _result(self, recorder: Recorder, tensor: Tensor) -> Result:
        for param, known in enumerate(recorder.hbm):
            if known.storage is tensor.storage:
                return Result(param, tensor.shape, tensor.strides, tensor.offset, tensor.format)
        raise UsageError(
            f"kernel {self.function.__name__!r} returns a tensor that is not in HBM", code="TRN112", got=repr(tensor),
            limit="tensors made with buffer=nl.shared_hbm",
            remedy="copy the tile to a shared_hbm tensor with nisa.dma_copy and return that",
        )  # fmt: skip


def _memory(trace: Trace, arrays: list[HostArray]) -> list[Array]:
    """One array per parameter: the caller's, constants, and fresh poison."""
    memory = []
    for position, number in enumerate(trace.routine.params):
        buffer = trace.routine.buffers[number]
        if position < trace.arguments:
            memory.append(arrays[position].data)
        elif position in trace.arrays:
            memory.append(trace.arrays[position].copy())
        else:
            raw = np.full(buffer.nbytes, _POISON, np.uint8)
            memory.append(raw.view(buffer.dtype.numpy).reshape(buffer.shape))
    return memory


def _view(result: Result, memory: Array) -> Array:
    flat = memory.reshape(-1).view(result.format.dtype)[result.offset :]
    strides = tuple(s * flat.itemsize for s in result.strides)
    return np.ascontiguousarray(np.lib.stride_tricks.as_strided(flat, result.shape, strides))


# -- structures of arguments --------------------------------------------------------------------------------------
def map_objects(function: Callable[[Any], Any], value: Any, kind: type) -> Any:
    """The same structure with `function` of each object of `kind`."""
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(map_objects(function, v, kind) for v in value)
    if isinstance(value, dict):
        return {k: map_objects(function, v, kind) for k, v in value.items()}
    return value


def _map_arrays(value: Any) -> Any:
    if is_array(value):
        return to_host(value)
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(_map_arrays(v) for v in value)
    if isinstance(value, dict):
        return {k: _map_arrays(v) for k, v in value.items()}
    return value


def _found(value: Any, kind: type) -> Iterator[Any]:
    if isinstance(value, kind):
        yield value
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from _found(v, kind)
    elif isinstance(value, dict):
        for v in value.values():
            yield from _found(v, kind)


def _key(value: Any) -> Any:
    """A hashable stand-in for what recording depends on; objects without a value count by identity."""
    if isinstance(value, HostArray):
        return value.key
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, *(_key(v) for v in value))
    if isinstance(value, dict):
        return tuple((k, _key(v)) for k, v in value.items())
    if isinstance(value, (bool, int, float, str, bytes, type(None))):
        return (type(value).__name__, value)
    fields = getattr(value, "__dict__", None)
    if fields and not callable(value):
        return (type(value).__qualname__, _key(fields))
    return (type(value).__qualname__, repr(value), id(value))
