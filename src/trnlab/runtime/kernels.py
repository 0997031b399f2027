# SPDX-License-Identifier: Apache-2.0
"""Kernels that a script calls by themselves, as executables of its run: counted, timed and shown as steps are."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from trnlab.chips.spec import Chip
from trnlab.policy import Policy
from trnlab.program.access import Buffer
from trnlab.program.digest import matmul_flops, routine_digest, written_params
from trnlab.program.gang import Gang, Member
from trnlab.program.routine import Call, Program, Tensor
from trnlab.runtime import session
from trnlab.runtime.executable import Executable
from trnlab.sim.functional import RunOptions

KIND = "kernel"


def options() -> RunOptions:
    """How the kernels of this process execute: as the session says, if there is one."""
    now = session.active()
    return RunOptions() if now is None else RunOptions(now.rounds_stochastically, now.seed, now.check_nan)


def called(
    members: Sequence[Member], tensors: Sequence[Buffer], gang: Gang | None, chip: Chip, policy: Policy, *,
    executed: bool = True,
) -> None:  # fmt: skip
    """Tell the session that a kernel was called. executed: for its numbers, not only for its time.

    members: the stream of each core. tensors: what they call their tensors' numbers. gang: several cores together.
    policy: what the hardware's compiler is taken to make of it.
    """
    now = session.active()
    if now is None:
        return
    if executed:
        now.counters.instructions += sum(len(m.routine) for m in members)
    if now.run is not None:
        key = _key(members, policy)
        now.run.executed(now.run.executables.get(key) or _executable(members, tensors, gang, chip, policy, key))


def timed_otherwise(
    members: Sequence[Member], policy: Policy, times: Callable[[], dict[tuple[str, str], int]]
) -> None:
    """Where the session asks for bands: keep the times of a kernel that was called under alternatives of its policy.

    times: makes them, by option and value, in picoseconds; called once a kernel.
    """
    now = session.active()
    if now is not None and now.band and now.run is not None:
        executable = now.run.executables.get(_key(members, policy))
        if executable is not None and not executable.alternatives:
            executable.alternatives.update(times())


def _key(members: Sequence[Member], policy: Policy) -> str:
    same = [policy.name, *(routine_digest(m.routine) for m in members)]
    return hashlib.sha256("".join(same).encode()).hexdigest()


def _executable(
    members: Sequence[Member], tensors: Sequence[Buffer], gang: Gang | None, chip: Chip, policy: Policy, key: str
) -> Executable:
    """The program that is one call of each core's stream."""
    name = members[0].routine.name
    written = {m.tensors[p] for m in members for p in written_params(m.routine)}
    held = tuple(
        Tensor(i, b.name, b.shape, b.dtype, b.nbytes, "output" if i in written else "input")
        for i, b in enumerate(tensors)
    )
    calls = tuple(
        Call(i, m.tensors, label=name if gang is None else f"{name}, core {i}") for i, m in enumerate(members)
    )
    outputs = tuple(t.id for t in held if t.kind == "output")
    routines = tuple(m.routine for m in members)
    program = Program(name, chip.name, routines, held, calls, tuple(range(len(held))), outputs)
    return Executable(program, "", _metadata(program, key), chip, "off", 0.0, gang, policy)


def _metadata(program: Program, key: str) -> dict[str, Any]:
    return {
        "key": key,
        "kind": KIND,
        "name": program.name,
        "target": program.target,
        "options": {},
        "parts": {},
        "inputs": [list(program.tensors[i].shape) for i in program.inputs],
        "outputs": [list(program.tensors[i].shape) for i in program.outputs],
        "aliases": [],
        "model_flops": sum(matmul_flops(r) for r in program.routines),
        "compile_seconds": 0.0,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "script": "",
    }
