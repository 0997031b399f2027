# SPDX-License-Identifier: Apache-2.0
"""From what a walk met to the report: operators, memory, and what each target makes of the step."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import gcd, prod
from typing import Any

import torch

from trnlab.chips.catalog import Target
from trnlab.errors import Location
from trnlab.estimate.forecast import GraphRuns, StepWork, forecast
from trnlab.estimate.job import network_of
from trnlab.estimate.pipeline import Pipeline, forecast_pipeline
from trnlab.estimate.result import LargeTensor, OperatorReport, Report, StackTargets, TargetResult
from trnlab.estimate.text import seconds
from trnlab.findings import ERROR, WARNING
from trnlab.frontends.torch.check import ranks, reading
from trnlab.frontends.torch.check.script_trace import ScriptTrace, follow
from trnlab.frontends.torch.check.stages import TracedPipeline
from trnlab.frontends.torch.check.steps import TracedStep
from trnlab.frontends.torch.check.tensor_owners import names_of
from trnlab.frontends.torch.check.vendor import vendor_minutes
from trnlab.frontends.torch.device.types import is_narrowed
from trnlab.graph.ir import Graph
from trnlab.runtime.communication import UntimedCollective
from trnlab.runtime.executable import Executable
from trnlab.runtime.script import Script
from trnlab.runtime.session import Session, activate
from trnlab.runtime.step_cost import BACKWARD, FORWARD, UPDATE
from trnlab.stacks import Stack
from trnlab.units import format_bytes

_KINDS = {"parameter": "parameter", "buffer": "buffer", "state": "state", "batch": "batch", "outside": "batch"}
_TRAINED = ("parameter", "state")
_STATUS = {"refused": 0, "host": 1, "supported": 2}


def examine(script: Script, targets: Sequence[Target], session: Session, stacks: Sequence[Stack] = ()) -> Report:
    """Follow the script, then compile and time its step for each target under each stack; under that of the session
    where none is named."""
    started = time.perf_counter()
    mail: dict[tuple[int, int], Any] = {}
    walk = follow(script, session, mail)
    batches = (ranks.batches() or walk.all_batches) if session.communicator is not None else 0
    pipeline, found = None, None
    if walk.divided is not None:
        found = TracedPipeline(script, session, walk, work_of, _kinds)
        pipeline, walk = found.pipeline(mail), found.walk
    report = Report(str(script.path), session.precision, steps=len(walk.steps), complete=walk.complete)
    step = walk.typical or TracedStep()
    report.how = _how(step)
    report.operators = _operators(walk, step)
    report.per_step, report.counted = step.per_step, step.counted
    with activate(session):
        work = work_of(walk, step)
    work.batches = batches
    if session.communicator is not None:
        work.exchanged = walk.asked
        report.notes += ranks.notes(targets)
    report.parameters, report.learns = parameters_of(work), work.learns or not work.parts
    walk.loaders.tell(walk.survey)
    _host(walk, step)
    if pipeline is not None:
        assert session.communicator is not None
        _divided(report, pipeline, walk, batches, session.communicator.size)
    if work.parts and (pipeline is not None or found is None):
        report.stacks = _of_stacks(walk, pipeline or work, targets, session, stacks or [session.stack])
        report.targets = report.stacks[0].targets
    for result, target in zip(report.results, [*targets] * len(report.stacks)):
        reading.account(result, step.read, target, session)
        result.vendor = vendor_minutes(report.parameters)
    _nothing(walk, step)
    report.findings = walk.survey.findings
    if work.exchanged and not work.parts:
        report.notes += [_exchanged(work.exchanged, replace(session, target=target)) for target in targets]
    if step.host and not step.graphs:
        report.notes.append("no time, memory or price is told, because nothing of the step is compiled")
    if step.drawn:
        drawn = ", ".join(f"{n.removeprefix('aten::')} x{c}" for n, c in step.drawn.most_common(6))
        report.notes.append(f"random numbers are drawn by the host, and are inputs of the step: {drawn}")
    if step.how:
        report.notes.append(f"what the script saw of {step.how} was computed, on the host: nothing of it is made up")
    if walk.survey.refused and report.targets:
        report.notes.append("time and memory are without the operators that are refused")
    report.seconds = time.perf_counter() - started
    return report


def _divided(report: Report, pipeline: Pipeline, walk: ScriptTrace, batches: int, size: int) -> None:
    """What a report says of all ranks of a pipeline."""
    report.per_step = pipeline.per_step
    pipeline.batches = batches or int(len(pipeline.members) == size)
    report.parameters = sum(prod(t.shape) for m in pipeline.members for t in m.resident if t.kind == "parameter")
    if walk.compiled:
        report.notes.append("eager stages are timed as torch.compile(stage, backend='neuron') makes them")
    eager = sum((walk.typical or TracedStep()).host.values())
    if eager:
        report.notes.append(f"{eager} operators of a rank's step are outside of compiled code: no time here has them")


def _exchanged(exchanged: Sequence[UntimedCollective], session: Session) -> str:
    """What a step of which nothing is compiled exchanges with other ranks."""
    network = network_of(session)
    found = [each.timed(network) for each in exchanged]
    kinds = Counter(each.request.kind for each in found)
    named = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    return (
        f"{network.network.cluster.name}: a step exchanges {format_bytes(sum(each.buffer for each in found))} "
        f"({named}), which takes {seconds(sum(each.cost.seconds for each in found))} of the network"
    )


def _how(step: TracedStep) -> str:
    if step.captured is not None:
        return "compile_step"
    if step.inputs and len(step.inputs) == len(set(step.graphs)):
        return "recorded"
    return step.how or ("torch.compile" if step.graphs else "eager")


def _of_stacks(
    walk: ScriptTrace,
    work: StepWork | Pipeline,
    targets: Sequence[Target],
    session: Session,
    stacks: Sequence[Stack],
) -> list[StackTargets]:
    """What the targets make of the step under each stack. What two of them compile alike is compiled once."""
    found = [StackTargets(stack.text, stack.title) for stack in stacks]
    for target in targets:
        known: dict[str, Executable] = {}
        for each, stack in zip(found, stacks):
            own = replace(session, stack=stack)
            if isinstance(work, Pipeline):
                each.targets.append(forecast_pipeline(work, target, own, walk.survey.raised, known))
            else:
                each.targets.append(forecast(work, target, own, walk.survey.raised, known))
        large = next((each for each in found if not each.targets[-1].fits), None)
        if large is not None:
            _too_large(walk, large.targets[-1], f" by {large.about}" if len(found) > 1 else "")
    return found


def _too_large(walk: ScriptTrace, result: TargetResult, by: str) -> None:
    m, largest = result.memory, ", ".join(f"{t.name} {format_bytes(t.bytes)}" for t in result.memory.largest[:3])
    cores = f"at least {result.layout.cores} cores" if result.layout is not None else "no number of cores is enough"
    of = "one core"
    if result.job is not None:
        of, cores = "one rank", "divide more of it among the ranks"
    walk.survey.note(
        "TRN258",
        f"the step{by} does not fit in the HBM of {of} of {result.chip}: {format_bytes(m.total)} of "
        f"{format_bytes(result.capacity)}",
        None,
        why=f"parameters {format_bytes(m.parameters)}, gradients {format_bytes(m.gradients)}, optimizer state "
        f"{format_bytes(m.state)}, activations {format_bytes(m.activations)}, temporaries "
        f"{format_bytes(m.temporaries)}; largest: {largest}",
        do=f"a smaller batch or sequence, gradient checkpointing, or more cores: {cores}",
        subject=result.chip,
    )


def _operators(walk: ScriptTrace, step: TracedStep) -> list[OperatorReport]:
    counts: Counter[str] = Counter()
    for graph in step.graphs:
        counts.update(walk.survey.operators.get(graph, Counter()))
    refused = walk.survey.refused
    found = [OperatorReport(n, c, "supported") for n, c in (counts - refused).items()]
    found += [OperatorReport(n, c, "refused") for n, c in refused.items()]
    found += [OperatorReport(n.replace("::", "."), c, "host") for n, c in step.host.items()]
    return sorted(found, key=lambda o: (_STATUS[o.status], -o.count, o.name))


def _host(walk: ScriptTrace, step: TracedStep) -> None:
    count = sum(step.host.values())
    if not count:
        return
    names = ", ".join(f"{n.removeprefix('aten::')} x{c}" for n, c in step.host.most_common(6))
    more = f" and {len(step.host) - 6} more" if len(step.host) > 6 else ""
    apart = step.graphs and not step.inputs
    what = f"{count} operators of a step {'are outside of compiled code' if apart else 'run on the host'}"
    why = "nothing is compiled: every operator runs there, outside of the time of the chip"
    do = (
        "compile the whole step with trnlab.frontends.torch.compile_step, or put loss, clipping and "
        "optimizer.step() into functions of torch.compile(backend='neuron')"
    )
    if step.inputs:
        why = "they cannot be recorded, or the chip has no form of them: no time here has what the host takes"
        do = "write them with other operators (docs/operators.md), or compute them outside of the step"
    elif step.graphs:
        why = "each is a program of its own, or runs on the host where the chip has none for it; no time here has it"
    why += f": {names}{more}"
    places: list[Location | None] = [place for place, _ in step.host_places.most_common()]
    for place in places or [None]:
        walk.survey.note(
            "TRN250",
            what,
            place,
            why=why,
            do=do,
            severity=WARNING,
            subject="host",
        )


def _nothing(walk: ScriptTrace, step: TracedStep) -> None:
    if not walk.steps and walk.complete:
        walk.survey.note(
            "TRN259",
            "the script made no training step, and ran no compiled program",
            None,
            severity=ERROR,
            do="call a step of compile_step, or a model of torch.compile(backend='neuron')",
        )
    if walk.steps and not (step.graphs or step.inputs or step.host):
        walk.survey.note(
            "TRN288",
            "the script's steps have nothing on the chip: all of their tensors lie on the CPU",
            None,
            severity=ERROR,
            why="there is no time, memory or price of a step that the chip has no part in",
            do="move the model and its batches to the device: model.to('neuron'), x.to('neuron')",
        )


def work_of(walk: ScriptTrace, step: TracedStep) -> StepWork:
    """The programs of a step, and what lies on the device beside theirs."""
    if step.captured is not None:
        kinds = tuple(_KINDS.get(role.kind, "temporary") for role in step.captured.inputs)
        loss = next((i for i, role in enumerate(step.captured.outputs) if role.kind == "loss"), None)
        return StepWork([GraphRuns(step.captured.graph, 1, kinds, loss)], [], step.per_step)
    if step.inputs:
        return _recorded(walk, step)
    times = Counter(step.graphs)
    names = names_of()
    kept = [
        _tensor(names.get(key, name), kind, t)
        for kind, named in walk.kept.items()
        for key, (name, t) in named.items()
    ]
    learns = step.learns or any(g.name.startswith("back") for g in times)
    phase, passes = ("", 1) if learns else (FORWARD, gcd(*times.values()))
    parts = [
        # a loss that nothing but the script reads may be written last: lines of JAX and TensorFlow say more
        GraphRuns(g, n // passes, _kinds(step, g), _loss(g) if step.how and learns else None, phase, by_lines=True)
        for g, n in times.items()
    ]
    return StepWork(parts, kept, step.per_step, learns=learns, retraced=not step.how)


def _recorded(walk: ScriptTrace, step: TracedStep) -> StepWork:
    """A step of recorded programs. The memory of one that is a single program is told as that of a captured step."""
    times = Counter(step.graphs)
    back = [_goes_back(step, graph) for graph in step.graphs]
    parts = []
    for graph, n in times.items():
        found = step.inputs.get(graph)
        phase = _phase_of_part(step, graph, back) if step.learns else FORWARD
        if found is None:
            parts.append(GraphRuns(graph, n, _kinds(step, graph), phase=phase))
        else:
            loss = _loss(graph) if step.learns else None
            parts.append(GraphRuns(graph, n, found.kinds, loss, phase, found.names, by_lines=True))
    if len(step.graphs) == 1 and parts[0].by_lines:
        return StepWork(parts, [], step.per_step, learns=step.learns)
    names, kept = names_of(), dict(walk.kept)
    for owned in walk.recordings.owned.values():
        if owned.kind in ("parameter", "buffer"):
            kept[owned.kind] = {id(owned.tensor): (owned.name, owned.tensor)} | kept[owned.kind]
    tensors = [_tensor(names.get(k, name), kind, t) for kind, named in kept.items() for k, (name, t) in named.items()]
    return StepWork(parts, tensors, step.per_step, learns=step.learns)


def _goes_back(step: TracedStep, graph: Graph) -> bool:
    """Whether something of the backward pass is in a program, as its lines say, or the name of a compiled one."""
    if graph not in step.inputs:
        return graph.name.startswith(BACKWARD)
    return any(op.loc is not None and op.loc.phase == BACKWARD for op in graph.ops)


def _phase_of_part(step: TracedStep, graph: Graph, back: Sequence[bool]) -> str:
    """The phase of all of a program of a step that was cut; "" where its lines say it, or its name, as that of a
    compiled one does, or nothing of the step's does. back: see `_goes_back`, of each program.

    Without a line of the backward pass it is of the update after the last program that has one, else of a forward
    pass, unless it overwrites what is trained (an average of weights, say)."""
    places = [i for i, each in enumerate(step.graphs) if each is graph]
    if graph not in step.inputs or not any(back) or back[places[0]]:
        return ""
    kinds = _kinds(step, graph)
    if any(kinds[i] in _TRAINED for i in graph.aliases.values()) or not any(back[places[-1] :]):
        return UPDATE
    return FORWARD


def _kinds(step: TracedStep, graph: Graph) -> tuple[str, ...]:
    """What the inputs of a graph of `torch.compile` are: kept on the device between steps, or of this one."""
    if graph in step.inputs:
        return step.inputs[graph].kinds
    other = (
        "batch"
        if graph.name.startswith("forward")
        else "activation"
        if graph.name.startswith("back")
        else "temporary"
    )
    kinds = step.kinds.get(graph, {})
    return tuple(kinds.get(v.name or "", other) for v in graph.inputs)


def _loss(graph: Graph) -> int | None:
    """The output of a whole step that is its loss: the first number that is no whole one."""
    return next((i for i, v in enumerate(graph.outputs) if v.shape == () and v.dtype.is_float), None)


def _tensor(name: str, kind: str, tensor: Any) -> LargeTensor:
    """A tensor as it lies on the chip, where all may be bf16 that PyTorch calls float32."""
    kind_held = torch.bfloat16 if tensor.dtype is torch.float32 and tensor.dim() and is_narrowed() else tensor.dtype
    nbytes = tensor.numel() * kind_held.itemsize
    return LargeTensor(name, kind, tuple(tensor.shape), str(kind_held).removeprefix("torch."), nbytes)


def parameters_of(work: StepWork) -> int:
    """Parameters of the model that a step trains. What several programs call the same, as that of the gradients and
    that of the update may, is one."""
    kept = sum(prod(t.shape) for t in work.resident if t.kind == "parameter")
    read = [v for part in work.parts for v, kind in zip(part.graph.inputs, part.kinds) if kind == "parameter"]
    return kept or sum(prod(shape) for _, shape in {(v.name or v, v.shape) for v in read})
