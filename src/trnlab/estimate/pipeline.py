# SPDX-License-Identifier: Apache-2.0
"""A step of a pipeline of ranks: every distinct stage compiled once, its passes put in the order of the schedule."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace

from trnlab.chips.catalog import Target
from trnlab.collectives import Collective
from trnlab.errors import TrnlabError, UsageError
from trnlab.estimate import forecast, memory
from trnlab.estimate.forecast import HOST, OUTSIDE, GraphRuns, cost_of, memory_of, tracing_s
from trnlab.estimate.job import JobStep, job_of, network_of
from trnlab.estimate.result import LargeTensor, MemoryReport, TargetResult
from trnlab.estimate.schedule import ScheduleResult, StagePass, played
from trnlab.fabric.world import World
from trnlab.graph.flops import model_flops
from trnlab.precision import MODES
from trnlab.runtime import device
from trnlab.runtime.communication import UntimedCollective
from trnlab.runtime.executable import Executable
from trnlab.runtime.session import Session
from trnlab.runtime.step_cost import BACKWARD, FORWARD, UPDATE, StepPrograms, host_wait

BUBBLE = "bubble"  # what of a step the busiest rank waits for others


@dataclass
class PipelineStage:
    """A stage of the model."""

    index: int
    rank: int
    # forward, backward: graphs of one microbatch
    forward: list[GraphRuns] = field(default_factory=list)
    backward: list[GraphRuns] = field(default_factory=list)
    sends: int = 0  # bytes that go on to the next


@dataclass
class PipelineRank:
    """A rank of the pipeline."""

    rank: int
    rest: list[GraphRuns] = field(default_factory=list)  # graphs of a step that are no pass, as of the optimizer
    resident: list[LargeTensor] = field(default_factory=list)  # what lies on the device beside the programs' own
    exchanged: Sequence[UntimedCollective] = ()  # what it exchanges besides, without what goes from stage to stage


@dataclass
class Pipeline:
    """A step of all ranks of a pipeline, those in `members` in the order of their places in it."""

    schedule: str
    microbatches: int
    orders: list[list[StagePass]]  # what each of them does
    stages: list[PipelineStage]
    members: list[PipelineRank]
    per_step: int = 0  # samples or tokens of all microbatches
    batches: int = 0  # see `StepWork`


@dataclass(frozen=True)
class StageTimes:
    """Times of a stage: who has it, seconds of a microbatch's passes and to send on what it makes of one, and the
    bytes of that."""

    stage: int
    rank: int
    forward_s: float
    backward_s: float
    send_s: float
    sends: int


@dataclass(frozen=True)
class MemberMemory:
    """Memory of a rank: bytes at its fullest, microbatches whose activations it then holds, and the bytes of
    those."""

    rank: int
    bytes: int
    in_flight: int
    activations: int


class _Made:
    """The programs of a pipeline on a target."""

    def __init__(self, work: Pipeline, session: Session) -> None:
        self.work, self.session = work, session
        self.network = network_of(session)
        self._found: dict[int, Executable] = {}
        self._memory: dict[int, MemoryReport] = {}

    def of(self, part: GraphRuns) -> Executable:
        """Equal graphs have one program."""
        if id(part.graph) not in self._found:
            own = replace(self.session, compiled={})  # stages have names alike, and none is another's successor
            self._found[id(part.graph)] = device.obtain(part.graph, own)
        return self._found[id(part.graph)]

    def seconds(self, parts: Sequence[GraphRuns]) -> float:
        """Seconds of all programs."""
        return StepPrograms([(self.of(part), part.times) for part in parts]).seconds

    def host_s(self, member: PipelineRank, rest_s: float) -> float:
        """Seconds that a rank waits for its host, which traces the passes of each microbatch anew, and what takes
        `rest_s` after them."""
        stages = [stage for stage in self.work.stages if stage.rank == member.rank]
        if not any(stage.backward for stage in stages):
            return 0.0
        passes = [part for stage in stages for part in (*stage.forward, *stage.backward)]
        one, after = (sum(tracing_s(p, self.session) * p.times for p in parts) for parts in (passes, member.rest))
        return float(host_wait([(one, self.seconds(passes), self.work.microbatches), (after, rest_s, 1)]))

    def send_s(self, stage: PipelineStage) -> float:
        """To the next stage; none where that is on the same rank."""
        if stage.index + 1 == len(self.work.stages):
            return 0.0
        target = self.work.stages[stage.index + 1].rank
        if target == stage.rank or not stage.sends:
            return 0.0
        asked = Collective("collective_permute", pairs=((stage.rank, target),))
        return self.network.cost(asked, stage.sends).seconds

    def memory(self, part: GraphRuns) -> MemoryReport:
        """Memory of one execution of a part's program."""
        if id(part) not in self._memory:
            self._memory[id(part)] = memory_of(part, cost_of(part, self.of(part)))
        return self._memory[id(part)]

    def activations(self, stage: PipelineStage) -> int:
        """Bytes that a microbatch leaves for the way back."""
        return max((self.memory(part).activations for part in stage.backward), default=0)


def forecast_pipeline(
    work: Pipeline,
    target: Target,
    session: Session,
    refused: Callable[[TrnlabError], object],
    known: dict[str, Executable] | None = None,
) -> TargetResult:
    """As `forecast`, of a pipeline."""
    started = time.perf_counter()
    result = forecast.begun(target, session)
    own = forecast.session_for(target, session, known)
    made = _Made(work, own)
    try:
        times = [
            StageTimes(s.index, s.rank, made.seconds(s.forward), made.seconds(s.backward), made.send_s(s), s.sends)
            for s in work.stages
        ]
        run = _played(work, times, [made.activations(s) for s in work.stages])
        rest = [made.seconds(member.rest) for member in work.members]
    except TrnlabError as error:
        refused(error)
        result.why = str(error)
        return result
    outside = [_seconds(member.exchanged, made.network) for member in work.members]
    host = max(made.host_s(member, seconds) for member, seconds in zip(work.members, rest))
    result.step_s = run.total + max(a + b for a, b in zip(rest, outside)) + host
    _parts(result, work, times, run, {UPDATE: max(rest), HOST: host, OUTSIDE: max(outside)})
    members = _members(result, made, run)
    result.fits = result.memory.total <= result.capacity
    result.mfu = _mfu(made, result.step_s)
    result.job = _job(made, result.step_s, session)
    result.job.pipeline = {
        "schedule": work.schedule,
        "microbatches": work.microbatches,
        "bubble": run.bubble,
        "stages": [asdict(each) for each in times],
        "ranks": [asdict(each) for each in members],
    }
    result.compiled_s = time.perf_counter() - started
    return result


def _played(work: Pipeline, times: Sequence[StageTimes], activations: Sequence[int]) -> ScheduleResult:
    seconds = {(False, t.stage): t.forward_s for t in times} | {(True, t.stage): t.backward_s for t in times}
    run = played(work.orders, seconds, [t.send_s for t in times[:-1]], activations)
    if run is None:
        raise UsageError(
            f"the ranks of this pipeline wait for each other in {work.schedule}",
            code="TRN198",
            limit="an order in which every pass comes after what it needs",
            got=work.schedule,
            remedy="use a schedule of torch.distributed.pipelining as it is",
        )
    return run


def _seconds(exchanged: Sequence[UntimedCollective], network: World) -> float:
    return sum(each.timed(network).cost.seconds for each in exchanged)


def _parts(
    result: TargetResult,
    work: Pipeline,
    times: Sequence[StageTimes],
    run: ScheduleResult,
    rest: dict[str, float],
) -> None:
    """Where the step goes, as the busiest rank has it. rest: what comes besides the passes."""
    busiest = max(range(len(run.busy)), key=run.busy.__getitem__)
    spent = {False: 0.0, True: 0.0}
    for each in work.orders[busiest]:
        spent[each.backward] += times[each.stage].backward_s if each.backward else times[each.stage].forward_s
    found = {FORWARD: spent[False], BACKWARD: spent[True], BUBBLE: run.total - run.busy[busiest], **rest}
    result.parts = {name: value for name, value in found.items() if value}


def _members(result: TargetResult, made: _Made, run: ScheduleResult) -> list[MemberMemory]:
    """The memory of each rank; the result has that of the fullest."""
    found = []
    for place, member in enumerate(made.work.members):
        parts = [p for s in made.work.stages if s.rank == member.rank for p in (*s.forward, *s.backward)]
        each = [made.memory(part) for part in (*parts, *member.rest)]
        whole = memory.with_kept(member.resident, each, run.activation_bytes[place])
        found.append(MemberMemory(member.rank, whole.total, run.held[place], run.activation_bytes[place]))
        if whole.total > result.memory.total:
            result.memory = whole
    return found


def _mfu(made: _Made, step_s: float) -> float | None:
    """Model FLOPs utilization of all ranks of the pipeline."""
    work, session = made.work, made.session
    each = sum(model_flops(p.graph) * p.times for s in work.stages for p in (*s.forward, *s.backward))
    cores = (2 if session.pairs else 1) * len(work.members)
    peak = session.chip.peak_flops(MODES[session.precision])
    return each * work.microbatches / (step_s * cores * peak) if step_s else None


def _job(made: _Made, step_s: float, session: Session) -> JobStep:
    """The job, with the collectives of the rank that is followed."""
    work, others = made.work, session.communicator
    assert others is not None
    stages = [s for s in work.stages if s.rank == others.rank]
    parts = [replace(p, times=p.times * work.microbatches) for s in stages for p in (*s.forward, *s.backward)]
    mine = [member for member in work.members if member.rank == others.rank]
    rest = [part for member in mine for part in member.rest]
    outside = [each.timed(made.network) for member in mine for each in member.exchanged]
    runs = [(made.of(part), part.times) for part in (*parts, *rest)]
    step = StepPrograms(runs, outside)
    return job_of(step, step_s, work.per_step, work.batches, made.session, {}, retimes=False)
