# SPDX-License-Identifier: Apache-2.0
"""What a step takes of a job of many ranks: one rank's programs with the collectives in them, and what that means for
all of them.

All ranks are taken to do what the followed one does, at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trnlab.chips.catalog import Target
from trnlab.collectives import Array, Collective
from trnlab.errors import UsageError
from trnlab.fabric.cluster import CORES_PER_RANK, Cluster
from trnlab.fabric.world import World, world_of
from trnlab.runtime.analysis.performance import MILLION
from trnlab.runtime.analysis.remedies import RankStep, remedies
from trnlab.runtime.communication import communication, judged
from trnlab.runtime.faults import DegradedStep
from trnlab.runtime.session import Session
from trnlab.runtime.step_cost import StepPrograms

if TYPE_CHECKING:  # it takes a while
    from trnlab.graph.ir import Graph


@dataclass
class JobStep:
    """A step of all ranks. Times in seconds."""

    cluster: str = ""
    ranks: int = 1
    rank: int = 0  # the one that was followed
    # how many batches of the rank's size a step has altogether, 0 where that is not known; rates and prices are
    # of all of them
    batches: int = 0
    step_s: float = 0.0
    communication: dict[str, Any] | None = None  # as in docs/summary.md; None without collectives
    per_s: float = 0.0
    usd_per_hour: float = 0.0
    usd_per_step: float = 0.0
    usd_per_million: float = 0.0
    # what the faults that were asked for do to it; all else is of the healthy network
    degraded: DegradedStep | None = None
    # schedule, stages and ranks, see docs/check.md; None where the model is not divided so
    pipeline: dict[str, Any] | None = None
    input_s: float = 0.0  # that a step waits for its data, on top of `step_s`; rates and prices have it

    def rate(self, batches: int, per_step: int) -> None:
        """Set how many batches a step has, of so many samples or tokens each, and what follows from it."""
        self.batches, samples = batches, per_step * batches
        self.per_s = samples / (self.step_s + self.input_s) if self.step_s else 0.0
        self.usd_per_million = self.usd_per_step / samples * MILLION if samples else 0.0

    def judge(self, threshold: float) -> None:
        """Set from which share of the step on the exchange of gradients is worth a warning."""
        if self.communication is not None:
            self.communication = judged(self.communication, self.step_s, threshold)


RANKS_WANTED = "TRN575"  # a script of several ranks was followed as one without others


@dataclass(frozen=True)
class NullCommunicator:
    """The connection of a rank that is followed alone: programs know of the others, and nothing arrives."""

    rank: int
    size: int

    def perform(self, request: Collective, source: Array) -> Array:
        """Nobody answers. Raises UsageError (TRN190)."""
        raise UsageError(
            "a rank that is followed alone has no others to talk to",
            code="TRN190",
            got=request.kind,
            limit="what is followed has no values",
            remedy="run the script with torchrun for values",
        )


def job_of(
    step: StepPrograms,
    step_s: float,
    per_step: int,
    batches: int,
    session: Session,
    graphs: dict[str, Graph],
    retimes: bool = True,
) -> JobStep:
    """The job that a session's programs are part of.

    step_s: seconds of its step, which are the programs' own but for a pipeline's. graphs: that they are of, by key.
    per_step: what one rank's batch has. batches: see `JobStep`. retimes: whether the step is timed again with what
    would help.
    """
    others, target = session.communicator, session.target
    assert others is not None
    name = target.name if session.instances == 1 else f"{session.instances}x{target.name}"
    job = JobStep(name, others.size, others.rank, batches, step_s)
    job.communication = communication(step.calls, step_s, step.outside, network_of(session))
    if job.communication is not None and not session.faults and retimes:
        job.communication["remedies"] = remedies(RankStep(step, graphs, session))
    if target.price is not None:
        job.usd_per_hour = target.price.usd(session.instances)
        job.usd_per_step = target.price.usd_of(step_s, session.instances)
    job.rate(batches, per_step)
    return job


def network_of(session: Session, faults: tuple[str, ...] = ()) -> World:
    """The network of the job that a session is a rank of, with these faults."""
    assert session.communicator is not None
    return world_of(Cluster(session.target, session.instances).name, session.communicator.size, faults)


def room(target: Target) -> int:
    """Bytes of HBM that a rank has: of its core, or of both cores of a logical one."""
    return target.chip.hbm.capacity_bytes * CORES_PER_RANK.get(target.chip.name, 1)
