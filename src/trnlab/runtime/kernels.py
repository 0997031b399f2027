# SPDX-License-Identifier: Apache-2.0
"""Kernels that a script calls by themselves, as executables of its run: counted, timed and shown as steps are."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from trnlab.chips.spec import Chip
from trnlab.program.digest import matmul_flops, routine_digest, written_params
from trnlab.program.routine import Call, Program, Routine, Tensor
from trnlab.runtime import session
from trnlab.runtime.device import Executable
from trnlab.sim.functional import RunOptions

KIND = "kernel"


def options() -> RunOptions:
    """How the kernels of this process execute: as the session says, if there is one."""
    now = session.active()
    return RunOptions() if now is None else RunOptions(now.stochastic_rounding, now.seed, now.check_nan)


def called(routine: Routine, chip: Chip, *, executed: bool = True) -> None:
    """Tell the session that a kernel, recorded as `routine`, was called; `executed`: for its numbers, not only for
    its time."""
    now = session.active()
    if now is None:
        return
    if executed:
        now.counters.instructions += len(routine)
    if now.run is not None:
        key = routine_digest(routine)
        now.run.executed(now.run.executables.get(key) or _executable(routine, chip, key))


def _executable(routine: Routine, chip: Chip, key: str) -> Executable:
    """The program that is one call of a routine."""
    written = written_params(routine)
    tensors = []
    for position, number in enumerate(routine.params):
        b = routine.buffers[number]
        kind = "output" if position in written else "input"
        tensors.append(Tensor(position, b.name, b.shape, b.dtype, b.nbytes, kind))
    everything = tuple(range(len(tensors)))
    outputs = tuple(t.id for t in tensors if t.kind == "output")
    call = Call(0, everything, label=routine.name)
    program = Program(routine.name, chip.name, (routine,), tuple(tensors), (call,), everything, outputs)
    return Executable(program, "", _metadata(routine, program, key), chip, "off", 0.0)


def _metadata(routine: Routine, program: Program, key: str) -> dict[str, Any]:
    return {
        "key": key,
        "kind": KIND,
        "name": routine.name,
        "target": program.target,
        "options": {},
        "parts": {},
        "inputs": [list(program.tensors[i].shape) for i in program.inputs],
        "outputs": [list(program.tensors[i].shape) for i in program.outputs],
        "aliases": [],
        "model_flops": matmul_flops(routine),
        "compile_seconds": 0.0,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "script": "",
    }
