# SPDX-License-Identifier: Apache-2.0
"""The programs that a script's steps need, found by following it without values."""

from __future__ import annotations

from trnlab.frontends.torch.check.walk import follow
from trnlab.graph.ir import Graph
from trnlab.porting.result import ERROR
from trnlab.runtime.script import Script
from trnlab.runtime.session import Session


def graphs_of(script: Script, session: Session) -> tuple[list[Graph], list[str]]:
    """The graphs of the first steps, in the order in which they ran, and what is in the script's way, a line each.

    Operators outside of compiled code are programs, too, or run on the host; they are not among the graphs.
    """
    walk = follow(script, session)
    graphs = [g for step in walk.steps for g in step.graphs]
    graphs += [step.captured.graph for step in walk.steps if step.captured is not None]
    problems = [f"{f.code}: {f.what}" for f in walk.survey.findings if f.severity == ERROR]
    return graphs, problems
