# SPDX-License-Identifier: Apache-2.0
"""Kernels that can run: recorded once per shapes, formats and constants, then executed and timed.

kernel = Kernel(function)
result = kernel(x, y)            # numbers
kernel[4](x, y)                  # on a launch grid
kernel.timeline(x, y).total      # time, in picoseconds

What records, executes and times a kernel is imported when that is first asked for: many a program names kernels and
runs none.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from trnlab import checks
from trnlab.chips.spec import Chip
from trnlab.errors import CapacityError, UsageError
from trnlab.guards.collected import depend
from trnlab.guards.snapshot import IdentitySnapshot, ValueSnapshot
from trnlab.kernel_hooks import LAUNCHERS, NOT_HANDLED, TRACERS
from trnlab.lang.assignment import assign
from trnlab.lang.recorder import recording
from trnlab.lang.tensor import Tensor, assigns
from trnlab.nki import explain, typing
from trnlab.nki.target import default_chip, release, static_dma
from trnlab.nki.tracing.arguments import map_objects, objects_of, on_host
from trnlab.nki.tracing.arrays import Array, HostArray, is_array, like, origin_of, to_host
from trnlab.nki.tracing.launch import ONE_CORE, LaunchGrid, one_per_core
from trnlab.nki.tracing.traces import (
    CallSignature,
    KernelResult,
    MultiRankTrace,
    Trace,
    TraceCache,
    content_of,
    memory_of,
    result_of,
)
from trnlab.policy import Policy, alternatives, chosen, use
from trnlab.timeline import Timeline

if TYPE_CHECKING:
    from trnlab.sim.functional import RunOptions

assigns(assign)


class Kernel:
    """What @nki.jit makes of a function."""

    tensor_type: type[Tensor] = Tensor
    dialect = "nki"

    def __init__(
        self,
        function: Callable[..., Any],
        grid: LaunchGrid = ONE_CORE,
        traces: TraceCache | None = None,
        chip: Chip | None = None,
        options: RunOptions | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        self.function, self.grid, self.chip, self.options = function, grid, chip, options
        self.traces = TraceCache(function, stand_in) if traces is None else traces
        self.schedule: tuple[tuple[str, str], ...] = ()
        self.flags = ""  # of the hardware's compiler, see `static_dma`

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __getitem__(self, grid: Any) -> Kernel:
        """The kernel on a number of cores, kernel[2](x); in the old dialect a grid of programs, kernel[4, 8](x)."""
        for launch in LAUNCHERS.values():
            launched = launch(self, grid)
            if launched is not NOT_HANDLED:
                return launched  # type: ignore[no-any-return]
        made = type(self)(self.function, self.launch(grid), self.traces, self.chip, self.options)
        made.schedule, made.flags = self.schedule, self.flags
        return made

    def with_schedule(self, schedule: Sequence[tuple[str, str | Sequence[str]]]) -> Kernel:
        """The kernel with dependencies between instructions it named: (later, earlier) or (later, [earlier, ...]).

        Source: nki/guides/how-to-scheduling-apis.rst of aws-neuron/aws-neuron-sdk.
        """
        made = type(self)(self.function, self.grid, None, self.chip, self.options)
        made.flags = self.flags
        made.schedule = tuple(
            (later, name)
            for later, earlier in schedule
            for name in ([earlier] if isinstance(earlier, str) else earlier)
        )
        return made

    @property
    def func(self) -> Callable[..., Any]:
        """The function, under the name by which harnesses ask for it."""
        return self.function

    def launch(self, grid: Any) -> LaunchGrid:
        """What a launch grid means. Raises UsageError for one that cannot be."""
        return one_per_core(grid)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on arrays. Inside another kernel it is an ordinary function, inside a traced model an operation."""
        if recording():
            return self.function(*args, **kwargs)
        for tracer in TRACERS.values():
            traced = tracer(self, args, kwargs)
            if traced is not NOT_HANDLED:
                return traced
        from trnlab.runtime.kernels import timed_otherwise

        trace, arrays = self.recorded(*args, **kwargs)
        explain.called(self, trace.routine, args, kwargs)
        memory = self.run(trace, arrays)
        timed_otherwise(trace.program, self.here, lambda: self.alternatives(*args, **kwargs))
        for position in trace.written:
            arrays[position].store(memory[position])
        return result_of(trace, memory, origin_of(arrays))

    def run(self, trace: Trace, arrays: list[HostArray]) -> list[Array]:
        """Execute a recorded call; returns the contents of the routine's parameters afterwards."""
        from trnlab.nki.tracing.execution import execute

        chip, memory = self.chip or default_chip(), memory_of(trace, arrays)
        execute(trace.program, memory, chip, self.policy(chip), self.options)
        return memory

    def trace(self, *args: Any, **kwargs: Any) -> Trace:
        """The recorded kernel for these arguments."""
        return self.recorded(*args, **kwargs)[0]

    def recorded(self, *args: Any, **kwargs: Any) -> tuple[Trace, list[HostArray]]:
        """The recorded kernel for these arguments, and the arrays among them in its order."""
        structure, arrays = self.bind(args, kwargs)
        return self._trace(structure, arrays), arrays

    def results_of(self, *args: Any, **kwargs: Any) -> CallSignature:
        """What calling with these arguments would give; the kernel is recorded, not executed."""
        trace, arrays = self.recorded(*args, **kwargs)
        origin = origin_of(arrays)
        results = map_objects(
            lambda r: like(np.zeros(r.shape, r.format.dtype), r.format, origin), trace.results, KernelResult
        )
        return CallSignature(results, tuple(trace.tensors[t].name for t in trace.written))

    def timeline(self, *args: Any, **kwargs: Any) -> Timeline:
        """When each instruction would run on the chip; data are not looked at."""
        from trnlab.sim.timing import time_program

        trace, chip = self.trace(*args, **kwargs), self.chip or default_chip()
        return time_program(trace.program, chip, policy=self.policy(chip))

    def alternatives(self, *args: Any, **kwargs: Any) -> dict[tuple[str, str], int]:
        """Its time in picoseconds with each value of an option of the policy that the evidence does not exclude
        either, by option and value; without those under which it does not fit."""
        found = {}
        for option, other in alternatives(self.here).items():
            with contextlib.suppress(CapacityError), use(other):
                found[option] = self.timeline(*args, **kwargs).total
        return found

    def bind(self, args: Any, kwargs: Any) -> tuple[dict[str, Any], list[HostArray]]:
        """Arguments by name with `HostArray` for each array, also inside lists, tuples and dicts."""
        try:
            bound = inspect.signature(self.function).bind(*args, **kwargs)
        except TypeError as error:
            raise UsageError(
                f"kernel {self.function.__name__!r}: {error}",
                code="TRN111",
                remedy="call it with the arguments of its definition",
            ) from None
        bound.apply_defaults()
        structure = {name: on_host(value) for name, value in bound.arguments.items()}
        typing.check(self.function, {n: a.data.shape for n, a in structure.items() if isinstance(a, HostArray)})
        return structure, [a for value in structure.values() for a in objects_of(value, HostArray)]

    def _trace(self, structure: dict[str, Any], arrays: list[HostArray]) -> Trace:
        chip = self.chip or default_chip()
        read, depends = self.traces.key(structure)
        key = (
            IdentitySnapshot(chip),
            self.grid,
            static_dma(self.flags),
            release(),
            self.policy(chip).recording,
            read,
        )
        known = self.traces.get(key)
        if known is None or (known.content is not None and known.content != content_of(arrays)):
            known = self.record([(structure, arrays)], chip).traces[0]
            if depends.stable:
                self.traces.keep(key, known)
        depend(depends)
        for finding in known.findings:
            checks.report(finding.check, finding.error, finding.harmless)
        return known

    @property
    def here(self) -> Policy:
        """The policy under which it is recorded and timed here and now."""
        return self.policy(self.chip or default_chip())

    def policy(self, chip: Chip) -> Policy:
        """What the hardware's compiler is taken to make of the kernel, here and now."""
        return chosen(chip.name, self.dialect)

    def record(self, calls: Sequence[tuple[dict[str, Any], list[HostArray]]], chip: Chip) -> MultiRankTrace:
        """Record the kernel for the arguments of each rank, with all cores of all ranks."""
        from trnlab.nki.tracing.recording import record

        return record(self, calls, chip)

    def evaluate(self, inputs: dict[str, Any]) -> Any:
        """What the function returns for arguments that are tensors, while it is recorded."""
        bound = inspect.BoundArguments(inspect.signature(self.function), inputs)  # type: ignore[arg-type]
        return self.function(*bound.args, **bound.kwargs)


def stand_in(value: Any) -> Any:
    """What a trace depends on of an array argument, of an array in a closure or global, and of another kernel."""
    if isinstance(value, HostArray):
        return ValueSnapshot(HostArray, value.key)
    if isinstance(value, Kernel):
        return (
            type(value),
            value.function,
            ValueSnapshot(LaunchGrid, value.grid),
            IdentitySnapshot(value.chip),
            value.schedule,
        )
    if is_array(value) and not isinstance(value, np.ndarray):
        with suppress(KeyError, TypeError):  # what is none of numbers is an object as others
            return to_host(value).data
    return value
