# SPDX-License-Identifier: Apache-2.0
"""What each target makes of a step: its programs compiled and timed, its memory, the smallest layout, the price."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from trnlab.chips.catalog import Target
from trnlab.errors import TrnlabError
from trnlab.estimate import layout, memory
from trnlab.estimate.job import job_of, network_of, room
from trnlab.estimate.result import LargeTensor, MemoryReport, TargetResult
from trnlab.fabric.cluster import CORES_PER_RANK
from trnlab.graph.flops import model_flops
from trnlab.graph.ir import Graph
from trnlab.precision import MODES
from trnlab.runtime import device
from trnlab.runtime.analysis.limits import limit_of_step
from trnlab.runtime.analysis.performance import MILLION
from trnlab.runtime.communication import UntimedCollective
from trnlab.runtime.executable import Executable
from trnlab.runtime.faults import compare
from trnlab.runtime.session import Session
from trnlab.runtime.step_cost import (
    BACKWARD,
    FORWARD,
    UPDATE,
    StepCost,
    StepPrograms,
    phases,
    phases_by_lines,
)
from trnlab.sim.timing import on_both
from trnlab.units import PS_PER_S

MODULES = 12
OUTSIDE = "exchanged"  # what of a step is collectives outside of programs
HOST = "host"  # and what the device waits for its host


@dataclass(frozen=True)
class GraphRuns:
    """A graph of the step, and how often it runs in one."""

    graph: Graph
    times: int = 1
    kinds: tuple[str, ...] = ()  # "parameter", "state", "batch" and so on for each input
    loss: int | None = None  # the output that is the loss, in a graph of a whole step; None in a graph of one phase
    phase: str = ""  # which one, "" where its name says it
    names: tuple[str, ...] = ()  # of inputs, for people
    by_lines: bool = False  # whether the lines of its ops say which of them are of the backward pass


@dataclass
class StepWork:
    """A step as tracing found it."""

    parts: list[GraphRuns] = field(default_factory=list)
    # what lies on the device beside the programs' own, of `torch.compile`
    resident: list[LargeTensor] = field(default_factory=list)
    per_step: int = 0
    batches: int = 0  # how many batches like this one all ranks of a job have together, 0 where that is not known
    # what the rank exchanges with others outside of the programs; the host waits for it, nothing hides it
    exchanged: Sequence[UntimedCollective] = ()
    # whether it has a backward pass, so that there are gradients; a forward pass alone exchanges nothing with
    # other batches
    learns: bool = True
    # whether a host may trace its operators anew in each step, as PyTorch/XLA does; jax.jit traces once
    retraced: bool = True


def forecast(
    work: StepWork,
    target: Target,
    session: Session,
    refused: Callable[[TrnlabError], object],
    known: dict[str, Executable] | None = None,
) -> TargetResult:
    """Compile and time the step for a target. An error of the compiler is handed to `refused`, and told in `why`.
    known: programs of other stacks for this target, by key, to which what is compiled here is added."""
    started = time.perf_counter()
    result, many = begun(target, session), session.communicator is not None
    try:
        own = session_for(target, session, known)
        made = [(part, cost_of(part, device.obtain(part.graph, own))) for part in work.parts]
    except TrnlabError as error:
        refused(error)
        result.why = str(error)
        result.memory = _least(work)
        _lay_out(result, target, many, work.learns)
        return result
    result.memory = memory_of_step(work, made)
    result.compiling_s = sum(cost.executable.metadata["compile_seconds"] for _, cost in made)
    step = _step_of(work, made, own)
    _time(result, made, step, own)
    _lay_out(result, target, many, work.learns)
    if many:
        graphs = {cost.executable.key: part.graph for part, cost in made}
        result.job = job_of(step, step.seconds, work.per_step, work.batches, own, graphs)
        if session.faults:
            result.job.degraded = compare(step, session.faults, network_of(own, session.faults))
    else:
        _price(result, work, target)
    result.compiled_s = time.perf_counter() - started
    return result


def begun(target: Target, session: Session) -> TargetResult:
    """What is known of a target without the step."""
    result = TargetResult(target.name, target.chip.name, target.cores, target.chip.hbm.capacity_bytes)
    if target.price is not None:
        result.usd_per_hour, result.price = target.price.usd_per_hour, target.price.origin
    if session.communicator is not None:
        result.capacity = room(target)
    return result


def session_for(target: Target, session: Session, known: dict[str, Executable] | None = None) -> Session:
    """The session in which a step is compiled for a target. known: see `forecast`."""
    return replace(
        session,
        target=target,
        executables={} if known is None else known,
        compiled={},
        core=None,
        faults=(),
        pairs=session.communicator is not None and CORES_PER_RANK.get(target.chip.name, 1) > 1,
    )


def _step_of(work: StepWork, made: Sequence[tuple[GraphRuns, StepCost]], session: Session) -> StepPrograms:
    """The step with all that its device waits for: what is exchanged outside of programs, timed on the healthy
    network, and a host that traces its operators."""
    runs = [(cost.executable, part.times) for part, cost in made]
    many = session.communicator is not None and work.exchanged
    outside = [each.timed(network_of(session)) for each in work.exchanged] if many else []
    retraced = work.learns and work.retraced
    return StepPrograms(runs, outside, [tracing_s(p, session) for p, _ in made] if retraced else ())


def tracing_s(part: GraphRuns, session: Session) -> float:
    """Seconds in which the host traces one execution of a part, where its stack traces each anew."""
    return len(part.graph.ops) * session.stack.tracing_us / MILLION


def _least(work: StepWork) -> MemoryReport:
    """What is known of memory without programs: inputs, of the part that has most of them. What lies on the device
    beside the programs is counted there, and once."""
    lying = {t.kind for t in work.resident}
    parts = [
        [
            LargeTensor(v.name or "", kind, v.shape, v.dtype.name, v.type.nbytes)
            for v, kind in zip(part.graph.inputs, part.kinds)
            if kind not in lying
        ]
        for part in work.parts
    ]
    most = max(parts, key=lambda tensors: sum(t.bytes for t in tensors), default=[])
    return memory.total((*work.resident, *most))


def memory_of_step(work: StepWork, made: Sequence[tuple[GraphRuns, StepCost]]) -> MemoryReport:
    """That of the program with the largest need; what lies on the device beside it is added. Where nobody says what
    lies there, parameters and state of another program do meanwhile: as many as the one with most of them has."""
    gradients = [t for t in work.resident if t.kind == "gradient"]
    each = [memory_of(part, cost, gradients if part.times == 1 else ()) for part, cost in made]
    if work.resident:
        return memory.with_kept(work.resident, each)
    most = max(each, key=lambda m: m.total, default=MemoryReport())
    parameters = max((m.parameters for m in each), default=0)
    state = max((m.state for m in each), default=0)
    return replace(most, parameters=parameters, state=state)


def memory_of(part: GraphRuns, cost: StepCost, lying: Sequence[LargeTensor] = ()) -> MemoryReport:
    """Memory of one execution of a part's program. lying: see `memory.of_program`."""
    names = {id: name for id, name in zip(cost.program.inputs, part.names) if name}
    return memory.of_program(cost, dict(zip(cost.program.inputs, part.kinds)), names, lying)


def cost_of(part: GraphRuns, executable: Executable) -> StepCost:
    """What one execution of a part's program costs."""
    program = executable.program
    if part.phase:
        return StepCost(executable, [part.phase] * len(program.calls))
    loss = program.outputs[part.loss] if part.loss is not None else None
    updated = [program.inputs[source] for source in part.graph.aliases.values()]
    told = phases_by_lines(program, updated) if part.by_lines else None
    return StepCost(executable, told or phases(program, loss, updated))


def _time(
    result: TargetResult, made: Sequence[tuple[GraphRuns, StepCost]], step: StepPrograms, session: Session
) -> None:
    flops = 0
    parts: Counter[str] = Counter()
    modules: Counter[str] = Counter()
    for part, cost in made:
        flops += model_flops(part.graph) * part.times
        for call, phase, ps in zip(cost.program.calls, cost.phase, cost.call_ps):
            parts[phase] += ps * part.times
            modules[_module(call.loc.layer if call.loc is not None else "", phase)] += ps * part.times
    result.step_s = step.seconds
    cores = 2 if session.pairs else 1
    result.mfu = (
        flops / (result.step_s * cores * session.chip.peak_flops(MODES[session.precision])) if result.step_s else None
    )
    limit = limit_of_step(step.calls, MODES[session.precision])
    result.limit = {"seconds": limit.seconds, "by": limit.by} if limit is not None else {}
    if session.pairs:
        result.on_both = _on_both(made)
    seconds = {name: parts[name] / PS_PER_S for name in (FORWARD, BACKWARD, UPDATE)}
    seconds |= {HOST: step.host_s, OUTSIDE: step.outside_s}
    result.parts = {name: each for name, each in seconds.items() if each}
    result.modules = [(name, ps / PS_PER_S) for name, ps in modules.most_common(MODULES)]


def _on_both(made: Sequence[tuple[GraphRuns, StepCost]]) -> float:
    """The share of the step's time, without collectives, of calls that both cores of a logical core execute."""
    both = whole = 0
    for part, cost in made:
        split = on_both(cost.program, cost.executable.chip, cost.executable.policy)
        for ps, on in zip(cost.call_ps, split):
            whole += ps * part.times * (on is not None)
            both += ps * part.times * bool(on)
    return both / max(whole, 1)


def _module(layer: str, phase: str) -> str:
    """A module with its like: "model.blocks.3.attention" is one of "model.blocks.*.attention"."""
    if phase == UPDATE:
        return "optimizer"
    return re.sub(r"\.\d+(?=\.|$)", ".*", layer) or "outside of modules"


def _lay_out(result: TargetResult, target: Target, many: bool, learns: bool) -> None:
    """Whether the step fits; where nobody laid it out over ranks, on how few cores it would."""
    result.fits = result.memory.total <= result.capacity
    if not many:
        result.layout = layout.smallest(result.memory, result.step_s, target, learns, result.parts.get(HOST, 0.0))


def _price(result: TargetResult, work: StepWork, target: Target) -> None:
    """Rate and price with all cores of the instance at work, each group of cores on batches of its own, where the
    layout fits into one instance; of the layout alone elsewhere. Both are of the same cores."""
    found = result.layout
    if found is None or not result.step_s:
        return
    step = found.time_s[1]
    groups = max(target.cores // found.cores, 1)
    if found.cores == 1 and work.learns:
        step += layout.exchanged(result.memory, target.cores, target)
    batches = groups * found.cores // found.tensor
    result.per_s = work.per_step * batches / step
    result.per_s_of_core = work.per_step / result.step_s if found.cores == 1 else None
    if target.price is None:
        return
    instances = -(-found.cores // target.cores)
    usd = target.price.usd_of(step, instances)
    result.usd_per_step = usd / batches
    if work.per_step:
        result.usd_per_million = usd / (work.per_step * batches) * MILLION
