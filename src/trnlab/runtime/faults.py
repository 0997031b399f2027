# SPDX-License-Identifier: Apache-2.0
"""What a sick network does to a step: its time beside that on the healthy one, and the collectives that slow down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

STOPPED = "TRN187"  # the error of data that would take a link that is down


@dataclass
class DegradedCollectives:
    """Collectives of a step that are alike: how many, ranks of a group, bytes of the larger buffer, seconds of one.

    sick_s: None where its data would take a link that is down. link: the one that is busy longest, or that is down.
    """

    kind: str
    ranks: int
    bytes: int
    count: int
    healthy_s: float
    sick_s: float | None
    link: str

    @property
    def added_s(self) -> float:
        """What all of them take longer in a step; infinite where they never end."""
        return float("inf") if self.sick_s is None else (self.sick_s - self.healthy_s) * self.count


@dataclass
class DegradedStep:
    """A step on a network with these faults. sick_s: None where some collective never ends.

    link: of the sick network the busiest one of the step, and for how many seconds. slowed: the gravest first; those
    that take as long as ever are left out.
    """

    faults: tuple[str, ...]
    healthy_s: float
    sick_s: float | None
    link: str = ""
    link_s: float = 0.0
    slowed: list[DegradedCollectives] = field(default_factory=list)

    @property
    def slowdown(self) -> float | None:
        """How many times as long the step takes."""
        return None if self.sick_s is None else self.sick_s / self.healthy_s if self.healthy_s else 1.0

    def as_json(self) -> dict[str, Any]:
        """For the summary and the report."""
        return asdict(self) | {"slowdown": self.slowdown}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> DegradedStep:
        """What `as_json` wrote."""
        fields = {k: v for k, v in record.items() if k != "slowdown"}
        slowed = [DegradedCollectives(**each) for each in record["slowed"]]
        return cls(**{**fields, "faults": tuple(record["faults"]), "slowed": slowed})


@dataclass
class _Met:
    """A collective of the step. sick: None where it never ends."""

    asked: Collective
    nbytes: int
    world: World
    healthy: CollectiveCost
    sick: CollectiveCost | None
    link: str
    count: int = 0

    def slowed(self) -> DegradedCollectives:
        """For the report, whether it is slower or not."""
        ranks = len(self.asked.groups[0]) if self.asked.groups else 2
        sick = None if self.sick is None else self.sick.seconds
        return DegradedCollectives(
            self.asked.kind, ranks, self.nbytes, self.count, self.healthy.seconds, sick, self.link
        )


def compare(
    calls: Sequence[tuple[Executable, int]],
    faults: tuple[str, ...],
    outside: Sequence[UncapturedCollective] = (),
    sick: World | None = None,
) -> DegradedStep:
    """A step's executables, each with how often it runs, on the healthy network and on one with these faults.

    outside: what is exchanged besides, as the healthy network times it; `sick`: the one with faults.
    Raises UsageError (TRN184) for a link that the network does not have.
    """
    found = DegradedStep(faults, _step(calls, ()) + sum(each.cost.seconds for each in outside), None)
    met = [*_met(calls, faults), *(_met_outside(outside, sick) if sick is not None else ())]
    slowed = [each for each in map(_Met.slowed, met) if each.sick_s is None or each.sick_s > each.healthy_s]
    found.slowed = sorted(slowed, key=lambda each: (-each.added_s, each.kind, -each.bytes))
    if any(each.sick_s is None for each in slowed):
        found.link = found.slowed[0].link
        return found
    loads: dict[World, Any] = {}
    for each in met:
        assert each.sick is not None
        loads[each.world] = loads.get(each.world, 0) + each.sick.loads * each.count
    assert sick is not None or not outside
    found.sick_s = _step(calls, faults)
    if sick is not None:
        found.sick_s += sum(sick.cost(each.asked, each.buffer).seconds for each in outside)
    found.link, _, found.link_s = busiest(loads)
    return found


def on(program: Program, faults: tuple[str, ...]) -> Program:
    """The same program on a network with these faults; without others to talk to it has none."""
    return replace(program, faults=faults) if program.ranks > 1 and program.faults != faults else program


def require_links(program: Program) -> None:
    """Raise UsageError (TRN187) where a collective of a program would take a link that is down."""
    for routine in program.routines if program.faults else ():
        asked = collective_of(routine)
        if asked is not None:
            cost_of(program, routine, asked)


def _step(calls: Sequence[tuple[Executable, int]], faults: tuple[str, ...]) -> float:
    """Seconds of all executables."""
    from trnlab.runtime.step_cost import StepPrograms  # it takes a while

    return StepPrograms(calls).changed_s(lambda program: on(program, faults))


def _met(calls: Sequence[tuple[Executable, int]], faults: tuple[str, ...]) -> list[_Met]:
    """The distinct collectives of a step, on both networks."""
    found: dict[tuple[Collective, int], _Met] = {}
    for executable, times in calls:
        if executable.program.ranks == 1:
            continue
        well, sick = on(executable.program, ()), on(executable.program, faults)
        for _, routine in well:
            asked = collective_of(routine)
            if asked is None:
                continue
            key = asked, buffer_bytes(routine)
            if key not in found:
                found[key] = _Met(*key, world(sick), cost_of(well, routine, asked), *_sick(sick, routine, asked))
            found[key].count += times
    return list(found.values())


def _met_outside(outside: Sequence[UncapturedCollective], sick: World) -> list[_Met]:
    """The same of what is exchanged outside of programs."""
    found: dict[tuple[Collective, int], _Met] = {}
    for each in outside:
        key = each.asked, each.buffer
        if key not in found:
            found[key] = _Met(*key, sick, each.cost, *_on_sick(partial(sick.cost, each.asked, each.buffer)))
        found[key].count += 1
    return list(found.values())


def _sick(program: Program, routine: Routine, asked: Collective) -> tuple[CollectiveCost | None, str]:
    return _on_sick(partial(cost_of, program, routine, asked))


def _on_sick(timed: Callable[[], CollectiveCost]) -> tuple[CollectiveCost | None, str]:
    """What a collective costs on a sick network, None where it never ends; and the link that it waits for."""
    try:
        cost = timed()
    except UsageError as error:
        if error.code != STOPPED:
            raise
        return None, str(error.got)
    return cost, cost.busiest
