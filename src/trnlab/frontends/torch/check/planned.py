# SPDX-License-Identifier: Apache-2.0
"""A script's training step as a plan takes it: its graphs, its batch, its parameters by name."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from trnlab.errors import UsageError
from trnlab.findings import ERROR
from trnlab.fleet.models.captured import CapturedWork
from trnlab.frontends.torch.check.report import work_of
from trnlab.frontends.torch.check.script_trace import ScriptTrace, follow
from trnlab.frontends.torch.check.steps import TracedStep
from trnlab.frontends.torch.check.tensor_owners import names_of
from trnlab.runtime.script import Script
from trnlab.runtime.session import Session, activate


def captured(script: Script, session: Session) -> CapturedWork:
    """Follow a script to its second step. Raises UsageError (TRN193) where it makes none, or something refuses."""
    walk = follow(script, session)
    step = walk.typical
    errors = [f"{f.code}: {f.what}" for f in walk.survey.findings if f.severity == ERROR]
    if step is None or errors or not step.graphs or not step.per_step:
        raise UsageError(
            f"no training step of {str(script.path)!r} could be captured",
            code="TRN193",
            got="; ".join(errors[:3]) or "no compiled step that counts what it trains on",
            limit="a script that `trnlab check` finds nothing wrong with",
            remedy=f"trnlab check {script.path}",
        )
    with activate(session):
        work = work_of(walk, step)
    samples = _samples(step, walk.recordings.unit)
    units = step.per_step // samples if step.counted == "tokens" else 1
    return CapturedWork(script.file.stem, work, samples, units, _parameters(walk, step), str(script.path))


def _samples(step: TracedStep, unit: int) -> int:
    """Sequences or images of a batch: the first size of what it comes in. unit: tokens of a recorded one."""
    if step.captured is not None:
        shapes = [
            v.shape for v, role in zip(step.captured.graph.inputs, step.captured.inputs) if role.kind == "batch"
        ]
    elif step.inputs:
        return step.per_step // (unit if step.counted == "tokens" else 1)
    else:
        forward = next((g for g in step.graphs if g.name.startswith("forward")), step.graphs[0])
        known = step.kinds.get(forward, {})
        shapes = [v.shape for v in forward.inputs if (v.name or "") not in known]
    first = next((shape[0] for shape in shapes if shape), 1)
    return int(first) if step.per_step % first == 0 else 1


def _parameters(walk: ScriptTrace, step: TracedStep) -> dict[str, tuple[int, ...]]:
    if step.captured is not None:
        pairs = zip(step.captured.graph.inputs, step.captured.inputs)
        return {role.name: v.shape for v, role in pairs if role.kind == "parameter"}
    if step.inputs:
        owned = walk.recordings.owned.values()
        return _named((each.name, each.tensor) for each in owned if each.kind == "parameter")
    names = names_of()
    found: dict[int, tuple[str, torch.Tensor]] = walk.kept["parameter"]
    return _named((names.get(key, name), tensor) for key, (name, tensor) in found.items())


def _named(tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, tuple[int, ...]]:
    """Shapes by name; where names are equal, as those of no module are, the later ones have a number after it."""
    found: dict[str, tuple[int, ...]] = {}
    for name, tensor in tensors:
        found[name if name not in found else f"{name} {len(found)}"] = tuple(tensor.shape)
    return found
