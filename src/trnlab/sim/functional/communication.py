# SPDX-License-Identifier: Apache-2.0
"""Execution of calls that are collectives: buffers in HBM, what the ranks make of them, and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnlab.collectives import Communicator, perform
from trnlab.errors import Location, RunError
from trnlab.program.communication import buffers_of, collective_of
from trnlab.program.routine import Routine
from trnlab.sim.functional.meaning import array_at

Array = np.ndarray[Any, Any]


def execute_collective(
    routine: Routine, addresses: Array, ranks: Communicator | None, where: Location | None
) -> None:
    """One call, its parameters at `addresses`. Raises RunError (TRN264) where the other ranks are not there."""
    asked = collective_of(routine)
    assert asked is not None
    if ranks is None:
        raise RunError(
            f"{asked.kind} waits for ranks that are not there",
            code="TRN264",
            where=where,
            limit=f"{asked.ranks} ranks",
            got="one",
            remedy="run the program on all of them at once",
        )
    pairs = buffers_of(routine)
    sources = [_flat(routine, read, addresses) for read, _ in pairs]
    for result, (_, written) in zip(perform(ranks, asked, sources), pairs):
        _flat(routine, written, addresses)[...] = result


def _flat(routine: Routine, position: int, addresses: Array) -> Array:
    """The memory of a parameter as a flat array in its format."""
    buffer = routine.buffers[routine.params[position]]
    count = buffer.nbytes // buffer.dtype.itemsize
    return array_at(int(addresses[position]), (count,), (buffer.dtype.itemsize,), buffer.dtype.numpy)
