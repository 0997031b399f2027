# SPDX-License-Identifier: Apache-2.0
"""Kernels that can run: recorded once per shapes, formats and constants, then executed and timed.

kernel = Kernel(function)
result = kernel(x, y)            # numbers
kernel[4](x, y)                  # on a launch grid
kernel.timeline(x, y).total      # time, in picoseconds
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from trnlab import guards
from trnlab.chips.spec import Chip
from trnlab.errors import CapacityError, UsageError
from trnlab.isa.meeting import Place
from trnlab.kernel_hooks import LAUNCHERS, NOT_HANDLED, TRACERS
from trnlab.lang.assignment import assign
from trnlab.lang.hbm import Hbm
from trnlab.lang.recorder import Recorder, recording
from trnlab.lang.tensor import Tensor, assigns
from trnlab.nki import checking, explain, typing
from trnlab.nki.arguments import map_objects, objects_of, on_host
from trnlab.nki.arrays import HostArray, is_array, like, origin_of, to_host
from trnlab.nki.interleave import InterleavedRecording
from trnlab.nki.launch import ONE_CORE, Launch, one_per_core
from trnlab.nki.live import Copies, Shadow, content_of
from trnlab.nki.target import default_chip, release, static_dma
from trnlab.nki.traces import CallSignature, Recording, Result, Trace, TraceCache, memory_of, result_of, tensors_of
from trnlab.policy import Policy, alternatives, chosen, use
from trnlab.program.gang import Member, gang_of, joined, program_of
from trnlab.runtime import kernels
from trnlab.sim.functional import Machine, RunOptions, run_program
from trnlab.sim.timing import time_program
from trnlab.snapshot import Is, Leaf
from trnlab.timeline import Timeline

Array = np.ndarray[Any, Any]
assigns(assign)


@dataclass(frozen=True)
class Seat:
    """A core while it is recorded: its programs of the launch grid, and the arguments as its tensors."""

    place: Place
    recorder: Recorder
    shadow: Shadow
    programs: tuple[tuple[int, ...], ...]
    inputs: dict[str, Any]


class Kernel:
    """What @nki.jit makes of a function."""

    tensor_type: type[Tensor] = Tensor
    dialect = "nki"

    def __init__(
        self, function: Callable[..., Any], grid: Launch = ONE_CORE, traces: TraceCache | None = None,
        chip: Chip | None = None, options: RunOptions | None = None,
    ) -> None:  # fmt: skip
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

    def launch(self, grid: Any) -> Launch:
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
        trace, arrays = self.recorded(*args, **kwargs)
        explain.called(self, trace.routine, args, kwargs)
        memory = self.run(trace, arrays)
        kernels.timed_otherwise(trace.program, self.here, lambda: self.alternatives(*args, **kwargs))
        for position in trace.written:
            arrays[position].store(memory[position])
        return result_of(trace, memory, origin_of(arrays))

    def run(self, trace: Trace, arrays: list[HostArray]) -> list[Array]:
        """Execute a recorded call; returns the contents of the routine's parameters afterwards."""
        chip = self.chip or default_chip()
        memory = memory_of(trace, arrays)
        machine = Machine(chip, self.options or kernels.options(), sbuf_bytes=trace.program.sbuf_bytes)
        run_program(trace.program, dict(enumerate(memory)), chip, machine=machine)
        kernels.called(trace.program, chip, self.policy(chip))
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
            lambda r: like(np.zeros(r.shape, r.format.dtype), r.format, origin), trace.results, Result
        )
        return CallSignature(results, tuple(trace.tensors[t].name for t in trace.written))

    def timeline(self, *args: Any, **kwargs: Any) -> Timeline:
        """When each instruction would run on the chip; data are not looked at."""
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
            raise UsageError(f"kernel {self.function.__name__!r}: {error}", code="TRN111",
                             remedy="call it with the arguments of its definition") from None  # fmt: skip
        bound.apply_defaults()
        structure = {name: on_host(value) for name, value in bound.arguments.items()}
        typing.check(self.function, {n: a.data.shape for n, a in structure.items() if isinstance(a, HostArray)})
        return structure, [a for value in structure.values() for a in objects_of(value, HostArray)]

    def _trace(self, structure: dict[str, Any], arrays: list[HostArray]) -> Trace:
        chip = self.chip or default_chip()
        read, depends = self.traces.key(structure)
        key = (Is(chip), self.grid, static_dma(self.flags), release(), self.policy(chip).recording, read)
        known = self.traces.get(key)
        if known is None or (known.content is not None and known.content != content_of(arrays)):
            known = self.record([(structure, arrays)], chip).traces[0]
            if depends.stable:
                self.traces.keep(key, known)
        guards.depend(depends)
        checking.tell(known.findings)
        return known

    @property
    def here(self) -> Policy:
        """The policy under which it is recorded and timed here and now."""
        return self.policy(self.chip or default_chip())

    def policy(self, chip: Chip) -> Policy:
        """What the hardware's compiler is taken to make of the kernel, here and now."""
        return chosen(chip.name, self.dialect)

    def record(self, calls: Sequence[tuple[dict[str, Any], list[HostArray]]], chip: Chip) -> Recording:
        """Record the kernel for the arguments of each rank, with all cores of all ranks."""
        with collector_paused():
            return self._record(calls, chip)

    def _record(self, calls: Sequence[tuple[dict[str, Any], list[HostArray]]], chip: Chip) -> Recording:
        self.grid.check(chip)
        ranks = [self._rank(rank, structure, arrays, chip) for rank, (structure, arrays) in enumerate(calls)]
        seats = [seat for rank in ranks for seat in rank]
        interleaved = InterleavedRecording([seat.place for seat in seats], [seat.shadow for seat in seats])
        returned = interleaved.record([functools.partial(self._run_programs, seat) for seat in seats])
        depends = any(seat.recorder.depends for seat in seats)
        traces, cores = [], len(self.grid.cores)
        for rank, (_, arrays) in enumerate(calls):
            mine = slice(rank * cores, (rank + 1) * cores)
            traces.append(self._seen(seats[mine], returned[mine], arrays, depends, chip))
        program = joined([trace.program for trace in traces])
        gang_of(program, program.calls)  # they meet, or it says who does not
        return Recording(tuple(traces), program)

    def _rank(self, rank: int, structure: dict[str, Any], arrays: list[HostArray], chip: Chip) -> list[Seat]:
        """The cores of one rank, which share its HBM."""
        memory, cores = Hbm(), len(self.grid.cores)
        hbm = Copies(dict(enumerate(arrays)))
        seats = []
        for core, programs in enumerate(self.grid.cores):
            recorder = Recorder(
                self.function.__name__, chip, self.grid.sizes, tensor_type=self.tensor_type, rank=rank, cores=cores,
                memory=memory, static_dma=static_dma(self.flags), policy=self.policy(chip),
            )  # fmt: skip
            inputs = {name: self._arguments(recorder, name, value) for name, value in structure.items()}
            seats.append(Seat(Place(rank, core), recorder, Shadow(recorder, hbm, self.options), programs, inputs))
        return seats

    def _seen(
        self, seats: Sequence[Seat], returned: Sequence[Any], arrays: list[HostArray], depends: bool, chip: Chip
    ) -> Trace:  # fmt: skip
        """What was recorded on the cores of one rank, and what the checks say about it."""
        members: list[Member] = []
        constants: dict[int, Array] = {}
        found = [*checking.refused(self.function, chip)]
        for seat, result in zip(seats, returned):
            recorder = seat.recorder
            recorder.order(self.schedule)
            members.append(Member(seat.place, recorder.finish(), tuple(recorder.numbers)))
            seen = objects_of(result, Tensor)
            assert recorder.written is not None
            found += checking.findings(recorder, recorder.written, len(arrays), seen, len(seats) == 1)
            constants |= {recorder.numbers[p]: array for p, array in recorder.arrays.items()}
        results = map_objects(lambda t: self._result(seats[0].recorder, t), returned[0], Tensor)
        content = content_of(arrays) if depends else None
        content = b"" if any(seat.recorder.watched for seat in seats) else content
        program = program_of(self.function.__name__, members, tensors_of(members))
        return Trace(program, len(arrays), constants, results, content, findings=tuple(found))

    def _run_programs(self, seat: Seat) -> Any:
        """Record the programs of one core; returns what the last returned."""
        returned: Any = None
        for program in seat.programs:
            seat.recorder.enter(program)
            with seat.recorder.active():
                returned = self._run_function(seat.inputs)
        return returned

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
        with checking.explained(self.function, self.chip or default_chip()):
            return self.function(*bound.args, **bound.kwargs)

    def _result(self, recorder: Recorder, tensor: Tensor) -> Result:
        for number, known in zip(recorder.numbers, recorder.hbm):
            if known.storage is tensor.storage:
                return Result(number, tensor.shape, tensor.strides, tensor.offset, tensor.format)
        raise UsageError(
            f"kernel {self.function.__name__!r} returns a tensor that is not in HBM", code="TRN112", got=repr(tensor),
            limit="tensors made with buffer=nl.shared_hbm",
            remedy="copy the tile to a shared_hbm tensor with nisa.dma_copy and return that",
        )  # fmt: skip


@contextmanager
def collector_paused() -> Iterator[None]:
    """Within the block, Python does not look for cycles among its objects, again and again through all there are.

    Recording makes many objects and hardly any cycles: reference counts free what is not needed any more.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def stand_in(value: Any) -> Any:
    """What a trace depends on of an array argument, of an array in a closure or global, and of another kernel."""
    if isinstance(value, HostArray):
        return Leaf(HostArray, value.key)
    if isinstance(value, Kernel):
        return (type(value), value.function, Leaf(Launch, value.grid), Is(value.chip), value.schedule)
    if is_array(value) and not isinstance(value, np.ndarray):
        with suppress(KeyError, TypeError):  # what is none of numbers is an object as others
            return to_host(value).data
    return value
