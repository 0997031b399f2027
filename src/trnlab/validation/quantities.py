# SPDX-License-Identifier: Apache-2.0
"""Quantities that anchors name, read off a predicted timeline. Times in picoseconds.

    total                   of the whole run
    active ENGINE           some data instruction of the engine was between its start and its result; "dma": data
                            moved
    span                    from the first trigger or instruction to the last result
    duration KIND           median time from start to result of the instructions of that kind
    interval KIND           median time from the start of one such instruction to the start of the next
    trigger, lead KIND      the issuing engine is busy; start of the trigger to the first byte
    transfer, tail KIND     first to last byte; last byte to semaphore
    arrival KIND            start of the trigger to the semaphore

KIND is a cost class of `isa.costs`, narrowed down by the elements per partition and the format where they are given,
as in "pe.matmul[512]:float32". "@i" behind it picks the i-th such instruction instead of the median, as in
"transfer dma.copy@0".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from trnlab.sim.timing import summarise
from trnlab.timeline import Timeline

Ints = np.ndarray[Any, np.dtype[np.int64]]
_NAME = re.compile(r"(?P<kind>[\w.]+)(\[(?P<n>\d+)\])?(:(?P<dtype>\w+))?(@(?P<index>\d+))?")


def predict(quantity: str, timeline: Timeline) -> float:
    """The quantity of a predicted timeline, in picoseconds. Raises ValueError for one that it does not have."""
    what, _, of = quantity.partition(" ")
    if what == "total":
        return float(timeline.total)
    if what == "span":
        return float(timeline.done.max() - timeline.start.min())
    if what == "active":
        return float(summarise(timeline).engine(of).active)
    if what in _OF_INSTRUCTIONS:
        return _typical(_OF_INSTRUCTIONS[what], of, timeline)
    raise ValueError(f"unknown quantity {quantity!r}")


def _typical(measure: Callable[[Timeline, Ints], Ints], name: str, timeline: Timeline) -> float:
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"not the name of an instruction: {name!r}")
    chosen = np.array([_fits(op, match) for op in timeline.ops])
    values = measure(timeline, np.flatnonzero(chosen[timeline.op]))
    if not len(values):
        raise ValueError(f"the kernel has no {name!r}")
    return float(values[int(match["index"])] if match["index"] else np.median(values))


def _fits(op: Any, match: re.Match[str]) -> bool:
    return (
        op.kind == match["kind"]
        and (match["n"] is None or op.n == int(match["n"]))
        and (match["dtype"] is None or op.dtype == match["dtype"])
    )


_OF_INSTRUCTIONS: dict[str, Callable[[Timeline, Ints], Ints]] = {
    "duration": lambda t, i: t.done[i] - t.start[i],
    "interval": lambda t, i: np.diff(t.start[i]),
    "trigger": lambda t, i: t.end[i] - t.start[i],
    "lead": lambda t, i: t.begin[i] - t.start[i],
    "transfer": lambda t, i: t.done[i] - t.completion - t.begin[i],
    "arrival": lambda t, i: t.done[i] - t.start[i],
    "tail": lambda t, i: np.full(len(i), t.completion),
}
