# SPDX-License-Identifier: Apache-2.0
"""What a degraded network does to a step: its time and that on the healthy one, and what slows down."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from trnlab.collectives import Collective
from trnlab.errors import UsageError
from trnlab.fabric.timing import CollectiveCost
from trnlab.fabric.world import World
from trnlab.program.communication import buffer_bytes, collective_of
from trnlab.program.routine import Program, Routine
from trnlab.runtime.communication import UncapturedCollective, busiest
from trnlab.sim.timing.communication import cost_of, world

if TYPE_CHECKING:  # it takes a while
    from trnlab.runtime.executable import Executable
    from trnlab.runtime.step_cost import StepPrograms

STOPPED = "TRN187"  # the error of data that would take a link that is down


@dataclass
class DegradedCollectives:
    """Collectives of a step that are alike: their number, ranks of a group, bytes of the larger buffer, seconds of
    one."""

    kind: str
    ranks: int
    bytes: int
    count: int
    healthy_s: float
    degraded_s: float | None  # None where its data would take a link that is down
    link: str  # the one that is busy longest, or that is down

    @property
    def added_s(self) -> float:
        """What all of them take longer in a step; infinite where they never end."""
        return float("inf") if self.degraded_s is None else (self.degraded_s - self.healthy_s) * self.count


@dataclass
class DegradedStep:
    """A step on a network with these faults."""

    faults: tuple[str, ...]
    healthy_s: float
    degraded_s: float | None  # None where some collective never ends
    link: str = ""  # of the degraded network the busiest one of the step, and for how many seconds
    link_s: float = 0.0
    # the gravest first; those that take as long as ever are left out
    slowed: list[DegradedCollectives] = field(default_factory=list)

    @property
    def slowdown(self) -> float | None:
        """How many times as long the step takes."""
        return None if self.degraded_s is None else self.degraded_s / self.healthy_s if self.healthy_s else 1.0

    def as_json(self) -> dict[str, Any]:
        """For the summary and the report, in which degraded seconds are called `sick_s`."""
        slowed = [_renamed(asdict(each), "degraded_s", "sick_s") for each in self.slowed]
        return _renamed(asdict(self), "degraded_s", "sick_s") | {"slowed": slowed, "slowdown": self.slowdown}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> DegradedStep:
        """What `as_json` wrote."""
        fields = {k: v for k, v in _renamed(record, "sick_s", "degraded_s").items() if k != "slowdown"}
        slowed = [DegradedCollectives(**_renamed(each, "sick_s", "degraded_s")) for each in record["slowed"]]
        return cls(**{**fields, "faults": tuple(record["faults"]), "slowed": slowed})


def _renamed(record: Mapping[str, Any], old: str, new: str) -> dict[str, Any]:
    """The record with another name for one of its keys, in its place."""
    return {new if key == old else key: value for key, value in record.items()}


@dataclass
class _Met:
    """A collective of the step; degraded: None where it never ends."""

    request: Collective
    nbytes: int
    world: World
    healthy: CollectiveCost
    degraded: CollectiveCost | None
    link: str
    count: int = 0

    def slowed(self) -> DegradedCollectives:
        """For the report, whether it is slower or not."""
        ranks = len(self.request.groups[0]) if self.request.groups else 2
        degraded_s = None if self.degraded is None else self.degraded.seconds
        return DegradedCollectives(
            self.request.kind, ranks, self.nbytes, self.count, self.healthy.seconds, degraded_s, self.link
        )


def compare(step: StepPrograms, faults: tuple[str, ...], degraded: World | None = None) -> DegradedStep:
    """A step on the healthy network and on one with these faults. degraded: that one, for what is exchanged outside
    of programs. Raises UsageError (TRN184) for a link that the network does not have."""
    calls, outside = step.calls, step.outside
    found = DegradedStep(faults, _programs_s(step, ()) + step.outside_s, None)
    met = [*_met(calls, faults), *(_met_outside(outside, degraded) if degraded is not None else ())]
    slowed = [each for each in map(_Met.slowed, met) if each.degraded_s is None or each.degraded_s > each.healthy_s]
    found.slowed = sorted(slowed, key=lambda each: (-each.added_s, each.kind, -each.bytes))
    if any(each.degraded_s is None for each in slowed):
        found.link = found.slowed[0].link
        return found
    loads: dict[World, Any] = {}
    for each in met:
        assert each.degraded is not None
        loads[each.world] = loads.get(each.world, 0) + each.degraded.loads * each.count
    assert degraded is not None or not outside
    found.degraded_s = _programs_s(step, faults)
    if degraded is not None:
        found.degraded_s += sum(degraded.cost(each.request, each.buffer).seconds for each in outside)
    found.link, _, found.link_s = busiest(loads)
    return found


def on(program: Program, faults: tuple[str, ...]) -> Program:
    """The same program on a network with these faults; without others to talk to it has none."""
    return replace(program, faults=faults) if program.ranks > 1 and program.faults != faults else program


def require_links(program: Program) -> None:
    """Raise UsageError (TRN187) where a collective of a program would take a link that is down."""
    for routine in program.routines if program.faults else ():
        request = collective_of(routine)
        if request is not None:
            cost_of(program, routine, request)


def _programs_s(step: StepPrograms, faults: tuple[str, ...]) -> float:
    """Seconds of all programs of a step."""
    return step.changed_s(lambda program: on(program, faults))


def _met(calls: Sequence[tuple[Executable, int]], faults: tuple[str, ...]) -> list[_Met]:
    """The distinct collectives of a step, on both networks."""
    found: dict[tuple[Collective, int], _Met] = {}
    for executable, times in calls:
        if executable.program.ranks == 1:
            continue
        healthy, degraded = on(executable.program, ()), on(executable.program, faults)
        for _, routine in healthy:
            request = collective_of(routine)
            if request is None:
                continue
            key = request, buffer_bytes(routine)
            if key not in found:
                found[key] = _Met(
                    *key, world(degraded), cost_of(healthy, routine, request), *_degraded(degraded, routine, request)
                )
            found[key].count += times
    return list(found.values())


def _met_outside(uncaptured: Sequence[UncapturedCollective], degraded: World) -> list[_Met]:
    """The same of what is exchanged outside of programs."""
    found: dict[tuple[Collective, int], _Met] = {}
    for each in uncaptured:
        key = each.request, each.buffer
        if key not in found:
            found[key] = _Met(
                *key, degraded, each.cost, *_on_degraded(partial(degraded.cost, each.request, each.buffer))
            )
        found[key].count += 1
    return list(found.values())


def _degraded(program: Program, routine: Routine, request: Collective) -> tuple[CollectiveCost | None, str]:
    return _on_degraded(partial(cost_of, program, routine, request))


def _on_degraded(timed: Callable[[], CollectiveCost]) -> tuple[CollectiveCost | None, str]:
    """What a collective costs on a degraded network, None where it never ends; and the link that it waits for."""
    try:
        cost = timed()
    except UsageError as error:
        if error.code != STOPPED:
            raise
        return None, str(error.got)
    return cost, cost.busiest
