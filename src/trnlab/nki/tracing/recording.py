# SPDX-License-Identifier: Apache-2.0
"""Recording a kernel: its function is called for each core of each rank; what it asks for is checked and joined."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from trnlab.chips.spec import Chip
from trnlab.collector import collector_paused
from trnlab.errors import UsageError
from trnlab.isa.collectives.meeting import CorePlace
from trnlab.lang.hbm import HbmTensors
from trnlab.lang.recorder import Recorder
from trnlab.lang.tensor import Tensor
from trnlab.nki.target import static_dma
from trnlab.nki.tracing import checking
from trnlab.nki.tracing.arguments import map_objects, objects_of
from trnlab.nki.tracing.arrays import Array, HostArray
from trnlab.nki.tracing.interleave import InterleavedRecording
from trnlab.nki.tracing.launch import LaunchGrid
from trnlab.nki.tracing.live import Copies, Shadow
from trnlab.nki.tracing.traces import KernelResult, MultiRankTrace, Trace, content_of, tensors_of
from trnlab.policy import Policy
from trnlab.program.gang import GangMember, gang_of, joined, program_of
from trnlab.sim.functional import RunOptions

Call = tuple[dict[str, Any], list[HostArray]]  # arguments by name, and the arrays among them in their order


class Recordable(Protocol):
    """A kernel, see `trnlab.nki.kernel`."""

    function: Callable[..., Any]
    grid: LaunchGrid
    options: RunOptions | None
    schedule: tuple[tuple[str, str], ...]
    flags: str
    tensor_type: type[Tensor]

    def policy(self, chip: Chip) -> Policy:
        """What the hardware's compiler is taken to make of it."""
        ...

    def evaluate(self, inputs: dict[str, Any]) -> Any:
        """What the function returns for arguments that are tensors."""
        ...


@dataclass(frozen=True)
class RecordedCore:
    """A core while it is recorded: its programs of the launch grid, and the arguments as its tensors."""

    place: CorePlace
    recorder: Recorder
    shadow: Shadow
    programs: tuple[tuple[int, ...], ...]
    inputs: dict[str, Any]


def record(kernel: Recordable, calls: Sequence[Call], chip: Chip) -> MultiRankTrace:
    """Record a kernel for the arguments of each rank, with all cores of all ranks.

    Raises what its function raises, and UsageError for a grid that the chip has not, for cores that wait for others
    in vain and for results outside of HBM.
    """
    with collector_paused():
        kernel.grid.check(chip)
        ranks = [_rank(kernel, rank, call, chip) for rank, call in enumerate(calls)]
        seats = [seat for rank in ranks for seat in rank]
        interleaved = InterleavedRecording([seat.place for seat in seats], [seat.shadow for seat in seats])
        returned = interleaved.record([functools.partial(_run_programs, kernel, seat, chip) for seat in seats])
        depends = any(seat.recorder.depends for seat in seats)
        traces, cores = [], len(kernel.grid.cores)
        for rank, (_, arrays) in enumerate(calls):
            mine = slice(rank * cores, (rank + 1) * cores)
            traces.append(_seen(kernel, seats[mine], returned[mine], arrays, depends, chip))
        program = joined([trace.program for trace in traces])
        gang_of(program, program.calls)  # they meet, or it says who does not
        return MultiRankTrace(tuple(traces), program)


def _rank(kernel: Recordable, rank: int, call: Call, chip: Chip) -> list[RecordedCore]:
    """The cores of one rank, which share its HBM."""
    structure, arrays = call
    memory, cores = HbmTensors(), len(kernel.grid.cores)
    hbm = Copies(dict(enumerate(arrays)))
    seats = []
    for core, programs in enumerate(kernel.grid.cores):
        recorder = Recorder(
            kernel.function.__name__,
            chip,
            kernel.grid.sizes,
            tensor_type=kernel.tensor_type,
            rank=rank,
            cores=cores,
            memory=memory,
            static_dma=static_dma(kernel.flags),
            policy=kernel.policy(chip),
        )
        inputs = {name: _arguments(recorder, name, value) for name, value in structure.items()}
        seats.append(
            RecordedCore(CorePlace(rank, core), recorder, Shadow(recorder, hbm, kernel.options), programs, inputs)
        )
    return seats


def _arguments(recorder: Recorder, name: str, value: Any) -> Any:
    """The argument with a tensor for each array; arrays within a structure are numbered."""
    count = itertools.count()

    def tensor(array: HostArray) -> Tensor:
        number = next(count)
        return recorder.argument(f"{name}.{number}" if number else name, array.data.shape, array.format)

    return map_objects(tensor, value, HostArray)


def _run_programs(kernel: Recordable, seat: RecordedCore, chip: Chip) -> Any:
    """Record the programs of one core; returns what the last returned."""
    returned: Any = None
    for program in seat.programs:
        seat.recorder.enter(program)
        with seat.recorder.active(), checking.explained(kernel.function, chip):
            returned = kernel.evaluate(seat.inputs)
    return returned


def _seen(
    kernel: Recordable,
    seats: Sequence[RecordedCore],
    returned: Sequence[Any],
    arrays: list[HostArray],
    depends: bool,
    chip: Chip,
) -> Trace:
    """What was recorded on the cores of one rank, and what the checks say about it."""
    members: list[GangMember] = []
    constants: dict[int, Array] = {}
    found = [*checking.refused(kernel.function, chip)]
    for seat, result in zip(seats, returned):
        recorder = seat.recorder
        recorder.order(kernel.schedule)
        members.append(GangMember(seat.place, recorder.finish(), tuple(recorder.numbers)))
        seen = objects_of(result, Tensor)
        assert recorder.written is not None
        found += checking.findings(recorder, recorder.written, len(arrays), seen, len(seats) == 1)
        constants |= {recorder.numbers[p]: array for p, array in recorder.arrays.items()}
    name = kernel.function.__name__
    results = map_objects(lambda t: _result(name, seats[0].recorder, t), returned[0], Tensor)
    content = content_of(arrays) if depends else None
    content = b"" if any(seat.recorder.watched for seat in seats) else content
    program = program_of(name, members, tensors_of(members))
    return Trace(program, len(arrays), constants, results, content, findings=tuple(found))


def _result(name: str, recorder: Recorder, tensor: Tensor) -> KernelResult:
    for number, known in zip(recorder.numbers, recorder.hbm):
        if known.storage is tensor.storage:
            return KernelResult(number, tensor.shape, tensor.strides, tensor.offset, tensor.format)
    raise UsageError(
        f"kernel {name!r} returns a tensor that is not in HBM",
        code="TRN112",
        got=repr(tensor),
        limit="tensors made with buffer=nl.shared_hbm",
        remedy="copy the tile to a shared_hbm tensor with nisa.dma_copy and return that",
    )
