# SPDX-License-Identifier: Apache-2.0
"""What a routine is, in a few digits: the same for two that execute the same and take the same time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np

from trnlab.isa import BY_OPCODE
from trnlab.program.routine import COL, Routine

_COLUMNS = ("opcode", "engine", "queue", "work", "attr", "first_operand", "operands")


def routine_digest(routine: Routine) -> str:
    """64 hexadecimal digits over everything but names and source lines. Computed once per routine."""
    return str(_once(routine, "digest", _digest))


def written_params(routine: Routine) -> frozenset[int]:
    """Positions of the parameters that some instruction writes."""
    position = {buffer: i for i, buffer in enumerate(routine.params)}
    return frozenset(position[b] for b in written_buffers(routine) if b in position)


def written_buffers(routine: Routine) -> frozenset[int]:
    """Numbers of the parameters, and of the tiles that stay in SBUF, that some instruction writes."""
    found: frozenset[int] = _once(routine, "written buffers", _written)
    return found


def matmul_flops(routine: Routine) -> int:
    """Useful operations of the PE array."""
    count = np.bincount(routine.work, minlength=len(routine.works)) if len(routine) else ()
    return sum(w.flops * int(n) for w, n in zip(routine.works, count) if w.kind.startswith("pe.matmul"))


def _once(routine: Routine, name: str, make: Callable[[Routine], Any]) -> Any:
    if name not in routine._memo:
        routine._memo[name] = make(routine)
    return routine._memo[name]


def _digest(routine: Routine) -> str:
    digest = hashlib.sha256(routine.target.encode())
    places = [(b.memory, b.shape, b.dtype.name, b.address, b.first_partition) for b in routine.buffers]
    digest.update(repr((places, routine.params, routine.works, routine.attr_table)).encode())
    digest.update(repr((routine.sbuf_bytes, routine.scratch_bytes)).encode())
    for name in _COLUMNS:
        digest.update(np.ascontiguousarray(getattr(routine, name)).tobytes())
    return digest.hexdigest()


def _written(routine: Routine) -> frozenset[int]:
    opcode = np.repeat(routine.opcode, np.diff(routine.first_operand))
    owner, role = routine.operands[:, COL["buffer"]], routine.operands[:, COL["role"]]
    shared = np.array([b.kind in ("param", "resident") for b in routine.buffers], bool)[owner]
    used = np.unique(np.stack([opcode[shared], role[shared], owner[shared]], axis=1), axis=0)
    return frozenset(b for o, r, b in used.tolist() if BY_OPCODE[o].operands[r].role == "dst")
