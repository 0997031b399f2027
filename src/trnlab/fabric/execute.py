# SPDX-License-Identifier: Apache-2.0
"""One rank's part of a schedule: what it sends, receives and reduces, over a transport that carries bytes.

`values` runs a schedule for all ranks of a world in one process; here each rank runs its own part, in its own thread
or process. The order in which values are reduced is the schedule's, whatever arrives first, so the results of both
are equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trnlab.collectives import Collective
from trnlab.fabric import values
from trnlab.fabric.schedule import Ints, Moves, Phase, Schedule

Array = npt.NDArray[Any]


class Transport(Protocol):
    """Carries bytes between the ranks of a schedule."""

    def exchange(self, sends: Mapping[int, Array], receives: Mapping[int, Array]) -> None:
        """Send each array to the rank that is its key, and fill each array of `receives` from its key's rank.

        Arrays are contiguous, of bytes (uint8), none is empty. Between two ranks, messages arrive in the order in
        which they were sent. Returns when all is sent and received; raises whatever the transport has for a partner
        that is gone.
        """
        ...


@dataclass(frozen=True, eq=False)
class PhaseStep:
    """What one rank does in one repetition of a phase."""

    # sends, receives: the slots that go to each partner, and how many come from it, in the order in which they
    # lie in the one message between the two; slots that follow each other are a slice, and need no copy
    sends: Mapping[int, Ints | slice]
    receives: Mapping[int, int]
    local: Ints
    # what is written then, in order: from whom (the rank itself for local copies), which piece of its message,
    # into which slot, and whether it is added there
    rows: tuple[tuple[int, int, int, bool], ...]


@dataclass(frozen=True, eq=False)
class RankSchedule:
    """One rank's part of a schedule, looked up once and executed as often as one likes."""

    schedule: Schedule
    rank: int
    steps: tuple[PhaseStep, ...]

    def run(self, buffer: Array, transport: Transport, reduction: str = "sum") -> Array:
        """The rank's result. `buffer`: its input, of any shape, read as flat; see `values.run` for what it means.

        All ranks give buffers of one length and format. `reduction`: one of `values.REDUCTIONS`. The result is a new
        array (of one dimension).
        """
        flat = buffer.reshape(-1)
        state = values.laid(self.schedule, self.rank, flat)
        reduce = values.REDUCTIONS[reduction]
        if flat.size:
            for step in self.steps:
                _run(step, self.rank, state, transport, reduce)
            if self.schedule.folds:
                state[0] = values.fold(state[None], reduce)[0]
        return values.result(state, self.schedule, self.rank, flat.size)


def part(schedule: Schedule, rank: int) -> RankSchedule:
    """What `rank` does in `schedule`."""
    steps = (step for phase in schedule.phases for step in _steps(phase, rank))
    return RankSchedule(schedule, rank, tuple(step for step in steps if step.sends or step.rows))


def execute(schedule: Schedule, rank: int, buffer: Array, transport: Transport, reduction: str = "sum") -> Array:
    """The result of `rank` of a collective; see `RankSchedule.run`."""
    return part(schedule, rank).run(buffer, transport, reduction)


def exchanged(request: Collective, rank: int, source: Array, transport: Transport) -> Array:
    """The result of `rank` of an all-to-all whose parts differ: straight from each rank to each. source: flat."""
    group = request.group_of(rank)
    result = np.zeros(request.count(source.size), source.dtype)
    parts = _named(group, source, request.gives)
    places = _named(group, result, request.takes)
    if rank in places:
        places[rank][...] = parts[rank]
    transport.exchange(
        {peer: _bytes(part) for peer, part in parts.items() if peer != rank},
        {peer: _bytes(place) for peer, place in places.items() if peer != rank},
    )
    return result


def _named(group: Sequence[int], flat: Array, sizes: Sequence[int]) -> dict[int, Array]:
    """The parts of a buffer that have elements, by rank."""
    ends = np.cumsum([0, *sizes])
    return {peer: flat[ends[p] : ends[p + 1]] for p, peer in enumerate(group) if sizes[p]}


def _run(step: PhaseStep, rank: int, state: Array, transport: Transport, reduce: values.Reduce) -> None:
    """Read everything, exchange, then write in order."""
    each = state.shape[1]
    arrived = {peer: np.empty((count, each), state.dtype) for peer, count in step.receives.items()}
    transport.exchange(
        {peer: _bytes(state[slots]) for peer, slots in step.sends.items()},
        {peer: _bytes(pieces) for peer, pieces in arrived.items()},
    )
    if len(step.local):
        arrived[rank] = state[step.local]
    for peer, piece, slot, adds in step.rows:
        new = arrived[peer][piece]
        state[slot] = values.reduced(state[slot], new, reduce) if adds else new


def _bytes(array: Array) -> npt.NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)


def _steps(phase: Phase, rank: int) -> Iterator[PhaseStep]:
    """The repetitions of a phase, for one rank."""
    places = [(int(group), int(position)) for group, position in np.argwhere(phase.members == rank)]
    slots = phase.slots() if places else None
    for repetition in range(phase.times if places else 0):
        assert slots is not None
        yield _step(phase.members, slots, phase.moves(repetition), places, rank)


def _step(members: Ints, slots: Ints, moves: Moves, places: list[tuple[int, int]], rank: int) -> PhaseStep:
    sends: dict[int, list[Ints]] = {}
    counts: dict[int, int] = {}
    local: list[Ints] = []
    rows: list[tuple[int, int, int, bool]] = []
    for group, position in places:
        for row in np.flatnonzero((moves.src == position) | (moves.dst == position)):
            source, target = int(members[group, moves.src[row]]), int(members[group, moves.dst[row]])
            read, write = slots[group, moves.src_unit[row]], slots[group, moves.dst_unit[row]]
            if source == rank:
                (local if target == rank else sends.setdefault(target, [])).append(read)
            if target == rank:
                first = counts.get(source, 0)
                counts[source] = first + len(write)
                rows += [(source, first + k, int(slot), bool(moves.add[row])) for k, slot in enumerate(write)]
    counts.pop(rank, None)
    joined = {peer: values.span(np.concatenate(pieces)) for peer, pieces in sends.items()}
    return PhaseStep(joined, counts, np.concatenate(local) if local else np.zeros(0, np.int64), tuple(rows))
