# SPDX-License-Identifier: Apache-2.0
"""What one execution of a compiled program costs: seconds by phase, exposed communication, bytes alive at each call.

Runs, estimates, plans and plans of serving read their figures from it, so that they cannot differ about a program.
What a step of several programs takes is their sum (`StepPrograms`). The call that writes the loss ends the forward
pass; those that write parameters, after the gradients, are of the update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

import numpy as np

from trnlab.program.digest import written_params
from trnlab.program.routine import Call, Program, ProgramTensor
from trnlab.runtime.communication import THRESHOLD, UncapturedCollective, communication
from trnlab.runtime.executable import Executable
from trnlab.units import PS_PER_S

if TYPE_CHECKING:
    from trnlab.fabric.world import World

FORWARD, BACKWARD, UPDATE = PHASES = "forward", "backward", "update"
Life = tuple[int, int, int]  # first call, last call, bytes


@dataclass(frozen=True)
class StepPrograms:
    """A step as the executables that it runs, each with how often, and collectives that the host waits for between
    them. tracing: seconds in which the host traces each before it runs, see `host_wait`; none by default."""

    calls: Sequence[tuple[Executable, int]]
    outside: Sequence[UncapturedCollective] = ()
    tracing: Sequence[float] = ()

    @property
    def outside_s(self) -> float:
        """Seconds that the host waits for the network between programs."""
        return sum(each.cost.seconds for each in self.outside)

    @property
    def host_s(self) -> float:
        """Seconds that the device waits for its host."""
        return self._host_s([e.total_ps for e, _ in self.calls])

    @property
    def seconds(self) -> float:
        """Seconds of the step: of all programs one after the other, of what is between them, and of the host."""
        return self._programs_s([e.total_ps for e, _ in self.calls]) + self.outside_s

    def changed_s(self, change: Callable[[Program], Program]) -> float:
        """Seconds of the programs and of the host, without exchanges between them, where each is as `change` makes
        it."""
        changed = [(e, change(e.program)) for e, _ in self.calls]
        return self._programs_s([e.total_ps if p is e.program else e.outlined(p).total for e, p in changed])

    def _programs_s(self, totals: Sequence[int]) -> float:
        """The same where the programs take so many picoseconds."""
        return sum(ps * times for ps, (_, times) in zip(totals, self.calls)) / PS_PER_S + self._host_s(totals)

    def _host_s(self, totals: Sequence[int]) -> float:
        traced = zip(self.tracing, totals, self.calls)
        return float(host_wait((each, ps / PS_PER_S, times) for each, ps, (_, times) in traced))

    def communication(self, network: World | None = None, threshold: float = THRESHOLD) -> dict[str, Any] | None:
        """See `runtime.communication.communication`."""
        return communication(self.calls, self.seconds, self.outside, network, threshold)

    @property
    def exposed_s(self) -> float:
        """Seconds of collectives that no engine's work hides."""
        found = self.communication()
        return float(found["exposed_s"]) if found is not None else 0.0


@dataclass(frozen=True)
class StepCost:
    """What one execution of a program costs. phase: of each call, one of `PHASES`."""

    executable: Executable
    phase: Sequence[str]

    @property
    def program(self) -> Program:
        """The program that is executed."""
        return self.executable.program

    @cached_property
    def call_ps(self) -> list[int]:
        """Picoseconds of each call, see `shares`. They add up to when the last call ends."""
        return shares(self.executable.outline.starts, self.executable.outline.ends)

    @cached_property
    def phase_ps(self) -> dict[str, int]:
        """Picoseconds of each phase."""
        spent = dict.fromkeys(PHASES, 0)
        for name, ps in zip(self.phase, self.call_ps):
            spent[name] += ps
        return spent

    @property
    def seconds(self) -> float:
        """Seconds of one execution, by its calls."""
        return sum(self.call_ps) / PS_PER_S

    @cached_property
    def exposed_s(self) -> float:
        """Seconds of collectives that no engine's work hides."""
        return StepPrograms([(self.executable, 1)]).exposed_s

    @cached_property
    def lives(self) -> tuple[dict[int, int], dict[int, int]]:
        """The first and the last call of each tensor, by its number."""
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for i, call in enumerate(self.program.calls):
            for id in call.args:
                first.setdefault(id, i)
                last[id] = i
        return first, last

    @cached_property
    def temporaries(self) -> list[ProgramTensor]:
        """Temporary tensors that some call uses."""
        return [t for t in self.program.tensors if t.kind == "temp" and t.id in self.lives[0]]

    @cached_property
    def temporary_bytes(self) -> list[int]:
        """Bytes of temporary tensors that are alive at each call."""
        first, last = self.lives
        return self.alive((first[t.id], last[t.id], t.nbytes) for t in self.temporaries)

    def alive(self, lives: Iterable[Life]) -> list[int]:
        """Bytes that are alive at each call, of tensors that live from one call to another, both included."""
        change = [0] * (len(self.program.calls) + 1)
        for begin, end, size in lives:
            change[begin] += size
            change[end + 1] -= size
        total, found = 0, []
        for by in change[:-1]:
            total += by
            found.append(total)
        return found


def shares(starts: Sequence[int], ends: Sequence[int]) -> list[int]:
    """How much of the time until the last call ends is each call's: while several run, it is that of the one that
    ends first, so that one which others cover has what they leave uncovered. While none runs, all wait for that one,
    too."""
    coming = sorted(range(len(ends)), key=lambda i: starts[i], reverse=True)
    running: list[tuple[int, int]] = []
    found, now = [0] * len(ends), 0
    for end, i in sorted((end, i) for i, end in enumerate(ends)):
        while now < end:
            while coming and starts[coming[-1]] <= now:
                heappush(running, (ends[coming[-1]], coming.pop()))
            while running and running[0][0] <= now:
                heappop(running)
            first, mine = running[0] if running else (end, i)
            until = min(first, starts[coming[-1]]) if coming else first
            found[mine] += until - now
            now = until
    return found


def host_wait(runs: Iterable[tuple[Any, Any, Any]]) -> Any:
    """Seconds of a step in which its device waits for the host, which traces each execution anew (see
    `stacks.Stack.tracing_us`) while the device is at those before it, and begins when the step does.

    runs: in order, seconds of tracing, seconds on the device, and how often; numbers, or arrays of many steps alike.
    """
    traced = ended = busy = 0.0
    for trace, device, times in runs:
        ended = np.maximum(ended, traced + trace) + times * device
        ended = np.maximum(ended, traced + times * trace + device)
        traced, busy = traced + times * trace, busy + times * device
    return ended - busy


def phases(program: Program, loss: int | None, updated: Sequence[int]) -> list[str]:
    """For each call, whether it is of the forward pass, the backward pass or the update.

    loss: the tensor of the loss; None where the program is of one phase, which its name begins with. updated: tensors
    of inputs that the program overwrites. A matmul that uses its gradient for an update at once is of the way back.
    """
    if loss is None:
        start = next((p for p in (FORWARD, BACKWARD) if program.name.startswith(p)), UPDATE)
        return [start] * len(program.calls)
    written = [_written(call, program) for call in program.calls]
    end = max((i for i, w in enumerate(written) if loss in w), default=-1)
    changed = frozenset(updated)
    late = [bool(w & changed) and call.label.startswith("rows") for w, call in zip(written, program.calls)]
    return [FORWARD if i <= end else UPDATE if late[i] else BACKWARD for i in range(len(written))]


def phases_by_lines(program: Program, updated: Sequence[int]) -> list[str] | None:
    """`phases`, where the calls' lines say what is of the backward pass; None where none does. What is computed of
    gradients is of the update, unless the backward pass goes on from it."""
    back = [call.loc is not None and call.loc.phase == BACKWARD for call in program.calls]
    if not any(back):
        return None
    written = [_written(call, program) for call in program.calls]
    end = max(i for i, is_back in enumerate(back) if is_back)
    changed = frozenset(updated)
    late = [bool(w & changed) and c.label.startswith("rows") for w, c in zip(written, program.calls)]
    after, gone_on = _reached(program, written, back)
    found = []
    for i, is_back in enumerate(back):
        update = late[i] or i > end or (after[i] and not is_back and not gone_on[i])
        found.append(UPDATE if update else BACKWARD if is_back or after[i] else FORWARD)
    return found


def _reached(
    program: Program, written: Sequence[frozenset[int]], back: Sequence[bool]
) -> tuple[list[bool], list[bool]]:
    """Whether each call reads what some call of `back` leads to, and whether one of those reads what it leads to."""
    made, wanted = set[int](), set[int]()
    after, before = [], []
    for call, own, is_back in zip(program.calls, written, back):
        after.append(not made.isdisjoint(call.args))
        if is_back or after[-1]:
            made |= own
    for call, own, is_back in reversed(list(zip(program.calls, written, back))):
        before.append(not wanted.isdisjoint(own))
        if is_back or before[-1]:
            wanted |= set(call.args) - own
    return after, before[::-1]


def _written(call: Call, program: Program) -> frozenset[int]:
    return frozenset(call.args[i] for i in written_params(program.routines[call.routine]))
