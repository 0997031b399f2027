# SPDX-License-Identifier: Apache-2.0
"""All ranks of a pipeline, followed one after the other in one process: what each stage runs, as a step of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from trnlab.errors import UsageError
from trnlab.estimate.forecast import GraphRuns, StepWork
from trnlab.estimate.job import NullCommunicator
from trnlab.estimate.pipeline import Pipeline, PipelineRank, PipelineStage
from trnlab.findings import ERROR
from trnlab.frontends.torch.check import ranks
from trnlab.frontends.torch.check.script_trace import ScriptTrace, follow
from trnlab.frontends.torch.check.steps import TracedStep
from trnlab.graph.ir import Graph
from trnlab.runtime.script import Script
from trnlab.runtime.session import Session, activate

WorkOf = Callable[[ScriptTrace, TracedStep], StepWork]
KindsOf = Callable[[TracedStep, Graph], tuple[str, ...]]


class TracedPipeline:
    """The ranks of a pipeline that have been followed. `walk`: of the rank that the report is of."""

    def __init__(
        self, script: Script, session: Session, walk: ScriptTrace, work_of: WorkOf, kinds_of: KindsOf
    ) -> None:
        assert session.communicator is not None
        assert walk.divided is not None
        self.script, self.session, self.walk, self.divided = script, session, walk, walk.divided
        self._work_of, self._kinds_of = work_of, kinds_of
        self.first = session.communicator.rank
        self.members: dict[int, PipelineRank] = {}
        self.stages: dict[int, PipelineStage] = {}
        self.per_step = 0

    def pipeline(self, mail: dict[tuple[int, int], Any]) -> Pipeline | None:
        """Follow the others; None where one of them, or this one, is in trouble, which the survey has then.

        Raises UsageError (TRN198) where every rank waits for what another one says first.
        """
        self._met(self.first, self.walk)
        while waiting := [rank for rank in self.divided.ranks if rank not in self.members]:
            known = len(mail)
            for rank in waiting:
                other = self._follow(rank, mail)
                if any(f.severity == ERROR for f in other.survey.findings):
                    self.walk.survey.add(other.survey)
                    return None
            if len(mail) == known and all(rank not in self.members for rank in waiting):
                raise _stuck(waiting)
        d = self.divided
        stages = [self.stages[number] for number in range(d.stages)]
        members = [self.members[rank] for rank in d.ranks]
        return Pipeline(d.schedule, d.microbatches, d.orders, stages, members, self.per_step)

    def _follow(self, rank: int, mail: dict[tuple[int, int], Any]) -> ScriptTrace:
        others = self.session.communicator
        assert others is not None
        ranks.become(rank)
        walk = follow(self.script, replace(self.session, communicator=NullCommunicator(rank, others.size)), mail)
        if rank == self.first:
            self.walk = walk
        self._met(rank, walk)
        return walk

    def _met(self, rank: int, walk: ScriptTrace) -> None:
        """Keep what a rank does in a step, unless it has to be followed again."""
        step = walk.typical
        if walk.early or step is None or walk.divided is None:
            return
        with activate(self.session):
            work = self._work_of(walk, step)
        rest = Counter(step.graphs)
        for (number, backward), ran in step.passes.items():
            rest -= ran.graphs
            stage = self.stages.setdefault(
                number, PipelineStage(number, rank, sends=walk.divided.sends.get(number, 0))
            )
            parts = [
                GraphRuns(g, -(-count // max(ran.passes, 1)), self._kinds_of(step, g))
                for g, count in ran.graphs.items()
            ]
            if backward:
                stage.backward = parts
            else:
                stage.forward = parts
        if (0, False) in step.passes:
            self.per_step = step.per_step * walk.divided.microbatches
        parts = [GraphRuns(g, count, self._kinds_of(step, g)) for g, count in rest.items()]
        asked = [each for each in walk.asked if each.purpose != "pipeline"]
        self.members[rank] = PipelineRank(rank, parts, work.resident, asked)


def _stuck(waiting: list[int]) -> UsageError:
    return UsageError(
        "every rank of the pipeline waits for the shapes of another one's stage",
        code="TRN198",
        got=f"ranks {', '.join(map(str, waiting))}",
        limit="a first stage that knows its own input",
        remedy="give PipelineStage its input_args and output_args",
    )
