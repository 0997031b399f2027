# SPDX-License-Identifier: Apache-2.0
"""Some of a routine's instructions as a routine of its own, over the same tiles, parameters and slots."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from trnlab.program.routine import Routine


def part_of(routine: Routine, which: np.ndarray[Any, np.dtype[np.int64]]) -> Routine:
    """Instructions `which` of a routine, ascending, as a routine that takes the same arguments.

    Orders without memory (`Routine.after`) stay where both sides do. Raises ValueError for a routine that prints or
    leaves its order open: nobody could say what belongs where.
    """
    if routine.prints or len(routine.left_open):
        raise ValueError(f"{routine.name} prints, or leaves its order open")
    counts = np.diff(routine.first_operand)[which]
    ends = np.cumsum(counts)
    first = np.concatenate([[0], ends]).astype(routine.first_operand.dtype)
    rows = np.repeat(routine.first_operand[which] - (ends - counts), counts) + np.arange(int(first[-1]))
    place = {int(i): n for n, i in enumerate(which)}
    after = tuple((place[a], place[b]) for a, b in routine.after if a in place and b in place)
    columns = {name: getattr(routine, name)[which] for name in ("opcode", "engine", "queue", "work", "attr", "loc")}
    return replace(
        routine,
        **columns,
        first_operand=first,
        operands=routine.operands[rows],
        after=after,
        changes=(),
        spills=(),
        _memo={},
    )
