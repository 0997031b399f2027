# SPDX-License-Identifier: Apache-2.0
"""Kernels that a script calls by themselves, as executables of its run: counted, timed and shown as steps are."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from trnlab.chips.spec import Chip
from trnlab.policy import Policy
from trnlab.program.digest import matmul_flops, routine_digest
from trnlab.program.routine import Program
from trnlab.runtime import session
from trnlab.runtime.executable import Executable
from trnlab.sim.functional import RunOptions

KIND = "kernel"


def options() -> RunOptions:
    """How the kernels of this process execute: as the session says, if there is one."""
    now = session.active()
    return RunOptions() if now is None else RunOptions(now.rounds_stochastically, now.seed, now.check_nan)


def called(program: Program, chip: Chip, policy: Policy, *, executed: bool = True) -> None:
    """Tell the session that a kernel was called. executed: for its numbers, not only for its time.

    program: a call of each core's stream. policy: what the hardware's compiler is taken to make of it.
    """
    now = session.active()
    if now is None:
        return
    if executed:
        now.counters.instructions += program.num_instructions
    if now.run is not None:
        key = _key(program, policy)
        executable = now.run.executables.get(key) or kernel_executable(program, chip, policy, key)
        now.run.executed(executable, executable.other_hbm_bytes())


def timed_otherwise(program: Program, policy: Policy, times: Callable[[], dict[tuple[str, str], int]]) -> None:
    """Where the session asks for bands: keep the times of a kernel that was called under alternatives of its policy.

    times: makes them, by option and value, in picoseconds; called once a kernel.
    """
    now = session.active()
    if now is not None and now.band and now.run is not None:
        executable = now.run.executables.get(_key(program, policy))
        if executable is not None and not executable.alternatives:
            executable.alternatives.update(times())


def _key(program: Program, policy: Policy) -> str:
    same = [policy.name, *(routine_digest(routine) for routine in program.routines)]
    return hashlib.sha256("".join(same).encode()).hexdigest()


def kernel_executable(program: Program, chip: Chip, policy: Policy, key: str = "") -> Executable:
    """A kernel's program as an executable. key: "" makes one of what it executes."""
    key = key or _key(program, policy)
    return Executable(program, "", _metadata(program, key), chip, "off", 0.0, policy)


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
