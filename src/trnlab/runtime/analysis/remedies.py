# SPDX-License-Identifier: Apache-2.0
"""What would make a step of several ranks faster: the same step, timed again with one thing otherwise.

Programs are timed on another network as they are; other buckets and policies of overlap are compiled, with the
routines that are there, and not kept: they differ from the step in the order of its calls, and would take as much
room in the cache again. Gains do not add up. What cannot be timed here is named, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from trnlab.chips import TARGETS, Target
from trnlab.errors import TrnlabError
from trnlab.fabric.cluster import Cluster
from trnlab.fabric.world import DEALT, FASTER_CARDS, world_of
from trnlab.program.communication import collective_calls
from trnlab.program.routine import Program
from trnlab.runtime import device
from trnlab.runtime.executable import Executable
from trnlab.runtime.session import Session
from trnlab.runtime.step_cost import StepPrograms
from trnlab.units import MIB

if TYPE_CHECKING:
    from trnlab.graph.ir import Graph

BUCKETS_MIB = (5, 25, 100, 400)
SHIFTS = ("shift:1", "shift:2")
COUNTS = 1e-4  # share of the step from which a change is one
Change = Callable[[Program], Program]


@dataclass(frozen=True)
class Remedy:
    """A change, the step's seconds with it, its gain as a share of the step, and what it costs.

    step_s is None, and `why` says why, where it cannot be timed.
    """

    what: str
    costs: str
    step_s: float | None = None
    gain: float | None = None
    why: str = ""

    def as_json(self) -> dict[str, Any]:
        """For the summary and the report."""
        return asdict(self)


@dataclass(frozen=True)
class RankStep:
    """A step of a rank: its programs, and by key the graphs that they are of, as far as they are known."""

    step: StepPrograms
    graphs: dict[str, Graph]
    session: Session

    @property
    def cluster(self) -> Cluster:
        """Where the ranks are."""
        return Cluster(self.session.target, self.session.instances)

    @property
    def ranks(self) -> int:
        """How many there are."""
        assert self.session.communicator is not None
        return self.session.communicator.size


def remedies(job: RankStep) -> list[dict[str, Any]]:
    """What was tried, the largest gain first, then what could not be timed; empty where ranks exchange nothing. Gains
    are those of the whole step, as `StepPrograms.seconds` has it."""
    if job.session.communicator is None:
        return []
    step_s = job.step.seconds
    for executable, _ in job.step.calls:
        if executable.program.ranks > 1 and executable.key in job.graphs:
            device.know(job.graphs[executable.key], executable, job.session)
    found = [_judged(each, step_s) for each in (*_policies(job), *_networks(job)) if _counts(each, step_s)]
    return [each.as_json() for each in sorted(found, key=lambda each: (each.gain is None, -(each.gain or 0.0)))]


def _counts(each: Remedy, step_s: float) -> bool:
    """Whether there is something to say of it."""
    return each.step_s is None or abs(each.step_s - step_s) > COUNTS * step_s


def _judged(each: Remedy, step_s: float) -> Remedy:
    return replace(each, gain=None if each.step_s is None else 1 - each.step_s / step_s)


# -- when collectives start, and how large they are -----------------------------------------------------------------


def _policies(job: RankStep) -> Iterator[Remedy]:
    """Other buckets and other policies of overlap, of programs with several collectives."""
    several = [(e, n) for e, n in job.step.calls if len(collective_calls(e.program)) > 1]
    reduced = max((_reduced(job, e) for e, _ in job.step.calls), default=0)
    now = job.session.bucket_mib
    for size in BUCKETS_MIB if reduced else ():
        if min(size * MIB, reduced) != min(now * MIB, reduced):
            costs = "collectives start later, and fewer of them" if size > now else "more collectives, sooner"
            yield _compiled(
                job, f"buckets of {size} MiB (now {now}): TRNLAB_BUCKET_MIB={size}", costs, bucket_mib=size
            )
    for policy in SHIFTS if several else ():
        if policy != job.session.overlap:
            costs = "results lie in HBM for longer"
            yield _compiled(job, f"overlap {policy}: TRNLAB_OVERLAP={policy}", costs, overlap=policy)


def _reduced(job: RankStep, executable: Executable) -> int:
    """Bytes that the reductions of a program's graph add up, where there are several."""
    graph = job.graphs.get(executable.key)
    ops = [op for op in graph.ops if op.name == "all_reduce"] if graph is not None else []
    operands = [v for op in ops for v in op.operands]
    return sum(v.type.nbytes for v in operands) if len(operands) > 1 else 0


def _compiled(job: RankStep, what: str, costs: str, **settings: Any) -> Remedy:
    own = replace(job.session, executables={}, compiled={}, run=None, emit=None, core=None, cache=None, **settings)
    found = []
    try:
        for executable, times in job.step.calls:
            graph = job.graphs.get(executable.key)
            if executable.program.ranks > 1 and graph is None:
                return Remedy(what, costs, why="its graph is not at hand")
            made = executable if graph is None or executable.program.ranks == 1 else device.obtain(graph, own)
            found.append((made, times))
        return Remedy(what, costs, replace(job.step, calls=found).seconds)
    except TrnlabError as error:
        return Remedy(what, costs, why=error.what)


# -- other networks -------------------------------------------------------------------------------------------------


def _networks(job: RankStep) -> Iterator[Remedy]:
    cluster, name = job.cluster, job.cluster.name
    if cluster.instances > 1:
        yield _on(job, "EFA of twice the rate", "no instance of the catalogue has it", changes=(FASTER_CARDS,))
        yield _on(
            job,
            "ranks dealt out over the instances, not one instance after the other",
            "another order of ranks when the job is started",
            changes=(DEALT,),
        )
    for other in _instances(job):
        where = Cluster(other, job.ranks // _each(job, other)).name
        if where != name:
            yield _on(job, f"on {where}", _price(job, other), cluster=where)
    for chip in dict.fromkeys(t.chip.name for t in TARGETS.values()):
        if chip != job.session.chip.name:
            names = ", ".join(t.name for t in TARGETS.values() if t.chip.name == chip)
            yield Remedy(f"on {chip}", "", why=f"other programs: trnlab estimate --target {names}")


def _instances(job: RankStep) -> Iterator[Target]:
    """The types with the same chips that hold the ranks, equally many on each."""
    for other in TARGETS.values():
        if other.chip.name == job.session.chip.name and _each(job, other):
            yield other


def _each(job: RankStep, target: Target) -> int:
    """Ranks on each instance: as many as it holds where that divides the job's, 0 where it does not."""
    room = Cluster(target, 1).ranks
    each = min(room, job.ranks)
    return each if job.ranks % each == 0 else 0


def _price(job: RankStep, target: Target) -> str:
    def usd(which: Target, instances: int) -> str:
        price = which.price
        return f"${price.usd(instances):,.2f}/h" if price is not None else "no known price"

    return (
        f"{usd(target, job.ranks // _each(job, target))} instead of {usd(job.session.target, job.session.instances)}"
    )


def _on(job: RankStep, what: str, costs: str, **network: Any) -> Remedy:
    """The same programs on another network."""
    try:
        own = job.step.changed_s(lambda program: replace(program, **network) if program.ranks > 1 else program)
        return Remedy(what, costs, own + _outside_s(job, **network))
    except TrnlabError as error:
        return Remedy(what, costs, why=error.what)


def _outside_s(job: RankStep, **network: Any) -> float:
    """Seconds of what is asked for outside of programs, on another network."""
    if not job.step.outside:
        return 0.0
    given = {"cluster": job.cluster.name, "size": job.ranks, "faults": job.session.faults, **network}
    world = world_of(**given)
    return sum(world.cost(each.request, each.buffer).seconds for each in job.step.outside)
