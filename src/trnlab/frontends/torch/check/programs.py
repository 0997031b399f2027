# SPDX-License-Identifier: Apache-2.0
"""The programs that a script's steps need, found by following it without values."""

from __future__ import annotations

from dataclasses import dataclass, field

from trnlab.findings import ERROR
from trnlab.frontends.torch.check.report import parameters_of, work_of
from trnlab.frontends.torch.check.script_trace import ScriptTrace, follow
from trnlab.frontends.torch.check.steps import TracedStep
from trnlab.graph.ir import Graph
from trnlab.runtime.script import Script
from trnlab.runtime.session import Session


@dataclass
class RequiredPrograms:
    """The programs that a script's first steps need."""

    graphs: list[Graph] = field(default_factory=list)  # of the first steps, in the order in which they ran
    problems: list[str] = field(default_factory=list)  # what is in the script's way, a line each
    parameters: int = 0  # of the model


def graphs_of(script: Script, session: Session) -> RequiredPrograms:
    """What a script's first steps need.

    Operators outside of compiled code are programs, too, or run on the host; they are not among the graphs.
    """
    walk = follow(script, session)
    graphs = [g for step in walk.steps for g in step.graphs]
    graphs += [step.captured.graph for step in walk.steps if step.captured is not None]
    graphs += [g for g in walk.recordings.inputs if g not in graphs]  # of evaluations between the steps
    problems = [f"{f.code}: {f.what}" for f in walk.survey.findings if f.severity == ERROR]
    return RequiredPrograms(graphs, problems, _parameters(walk))


def _parameters(walk: ScriptTrace) -> int:
    return parameters_of(work_of(walk, walk.typical or TracedStep()))
