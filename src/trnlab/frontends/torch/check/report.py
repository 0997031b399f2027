# SPDX-License-Identifier: Apache-2.0
"""From what a walk met to the report: operators, memory, and what each target makes of the step."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import Any

from torch import nn

from trnlab.chips.catalog import Target
from trnlab.errors import Location
from trnlab.frontends.torch.check.walk import Step, Walked, follow
from trnlab.graph.ir import Graph
from trnlab.porting.forecast import Part, Work, forecast
from trnlab.porting.result import ERROR, WARNING, Operator, Report, TargetResult, Tensor
from trnlab.runtime.script import Script
from trnlab.runtime.session import Session
from trnlab.units import format_bytes

_KINDS = {"parameter": "parameter", "buffer": "buffer", "state": "state", "batch": "batch", "outside": "batch"}
_STATUS = {"refused": 0, "host": 1, "supported": 2}


def examine(script: Script, targets: Sequence[Target], session: Session) -> Report:
    """Follow the script, then compile and time its step for each target."""
    started = time.perf_counter()
    walk = follow(script, session)
    report = Report(str(script.path), session.precision, steps=len(walk.steps), complete=walk.complete)
    step = walk.typical or Step()
    report.how = _how(step)
    report.operators = _operators(walk, step)
    report.per_step, report.counted = step.per_step, step.counted
    work = _work(walk, step)
    report.parameters = _parameters(work)
    walk.loaders.tell(walk.survey)
    _host(walk, step)
    for target in targets if work.parts else ():
        report.targets.append(_of_target(walk, work, target, session))
    _nothing(walk, step)
    report.findings = walk.survey.findings
    if step.host and not step.graphs:
        report.notes.append("no time, memory or price is told, because nothing of the step is compiled")
    if walk.survey.refused and report.targets:
        report.notes.append("time and memory are without the operators that are refused")
    report.seconds = time.perf_counter() - started
    return report


def _how(step: Step) -> str:
    if step.captured is not None:
        return "compile_step"
    return "torch.compile" if step.graphs else "eager"


def _of_target(walk: Walked, work: Work, target: Target, session: Session) -> TargetResult:
    result = forecast(work, target, session, walk.survey.raised)
    if not result.fits:
        _too_large(walk, result)
    return result


def _too_large(walk: Walked, result: TargetResult) -> None:
    m, largest = result.memory, ", ".join(f"{t.name} {format_bytes(t.bytes)}" for t in result.memory.largest[:3])
    cores = f"at least {result.layout.cores} cores" if result.layout is not None else "no number of cores is enough"
    walk.survey.note(
        "TRN258", f"the step does not fit in the HBM of one core of {result.chip}: {format_bytes(m.total)} of "
        f"{format_bytes(result.capacity)}", None,
        why=f"parameters {format_bytes(m.parameters)}, gradients {format_bytes(m.gradients)}, optimizer state "
        f"{format_bytes(m.state)}, activations {format_bytes(m.activations)}, temporaries "
        f"{format_bytes(m.temporaries)}; largest: {largest}",
        do=f"a smaller batch or sequence, gradient checkpointing, or more cores: {cores}", subject=result.chip,
    )  # fmt: skip


def _operators(walk: Walked, step: Step) -> list[Operator]:
    counts: Counter[str] = Counter()
    for graph in step.graphs:
        counts.update(walk.survey.operators.get(graph, Counter()))
    refused = walk.survey.refused
    found = [Operator(n, c, "supported") for n, c in (counts - refused).items()]
    found += [Operator(n, c, "refused") for n, c in refused.items()]
    found += [Operator(n.replace("::", "."), c, "host") for n, c in step.host.items()]
    return sorted(found, key=lambda o: (_STATUS[o.status], -o.count, o.name))


def _host(walk: Walked, step: Step) -> None:
    count = sum(step.host.values())
    if not count:
        return
    names = ", ".join(f"{n.removeprefix('aten::')} x{c}" for n, c in step.host.most_common(6))
    more = f" and {len(step.host) - 6} more" if len(step.host) > 6 else ""
    what = f"{count} operators of a step {'are outside of compiled code' if step.graphs else 'run on the host'}"
    why = "nothing is compiled: every operator runs there, outside of the time of the chip"
    if step.graphs:
        why = "each is a program of its own, or runs on the host where the chip has none for it; no time here has it"
    why += f": {names}{more}"
    places: list[Location | None] = [place for place, _ in step.host_places.most_common()]
    for place in places or [None]:
        walk.survey.note(
        "TRN250", what, place, why=why,
        do="compile the whole step with trnlab.frontends.torch.compile_step, or put loss, clipping and "
        "optimizer.step() into functions of torch.compile(backend='neuron')", severity=WARNING, subject="host",
    )  # fmt: skip


def _nothing(walk: Walked, step: Step) -> None:
    if not walk.steps and walk.complete:
        walk.survey.note(
            "TRN259", "the script made no training step, and ran no compiled program", None, severity=ERROR,
            do="call a step of compile_step, or a model of torch.compile(backend='neuron')",
        )  # fmt: skip


def _work(walk: Walked, step: Step) -> Work:
    if step.captured is not None:
        kinds = tuple(_KINDS.get(role.kind, "temporary") for role in step.captured.inputs)
        loss = next((i for i, role in enumerate(step.captured.outputs) if role.kind == "loss"), None)
        return Work([Part(step.captured.graph, 1, kinds, loss)], [], step.per_step)
    times = Counter(step.graphs)
    names = _names()
    kept = [
        _tensor(names.get(key, name), kind, t)
        for kind, named in walk.kept.items()
        for key, (name, t) in named.items()
    ]
    return Work([Part(g, n, _kinds(step, g)) for g, n in times.items()], kept, step.per_step)


def _kinds(step: Step, graph: Graph) -> tuple[str, ...]:
    """What the inputs of a graph of `torch.compile` are: kept on the device between steps, or of this one."""
    other = (
        "batch"
        if graph.name.startswith("forward")
        else "activation"
        if graph.name.startswith("back")
        else "temporary"
    )
    kinds = step.kinds.get(graph, {})
    return tuple(kinds.get(v.name or "", other) for v in graph.inputs)


def _names() -> dict[int, str]:
    """The longest path of every parameter in a model."""
    found: dict[int, str] = {}
    for module in gc.get_objects():
        if issubclass(type(module), nn.Module):
            for name, p in module.named_parameters():
                found[id(p)] = max(found.get(id(p), ""), name, key=len)
    return found


def _tensor(name: str, kind: str, tensor: Any) -> Tensor:
    nbytes = tensor.numel() * tensor.element_size()
    return Tensor(name, kind, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), nbytes)


def _parameters(work: Work) -> int:
    named = [(p.graph.inputs, p.kinds) for p in work.parts]
    captured = sum(prod(v.shape) for values, kinds in named for v, k in zip(values, kinds) if k == "parameter")
    return captured or sum(prod(t.shape) for t in work.kept if t.kind == "parameter")
