# SPDX-License-Identifier: Apache-2.0
"""What the programs of a served model cost on a target: compiled, timed, and kept by what they depend on.

A program of one layer and one of two are compiled with embedding and head; each further layer takes what the second
one adds. Ranks are taken to run at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from trnlab.collectives import Groups
from trnlab.fleet.costs.store import opened
from trnlab.fleet.costs.timed import TimedPrograms
from trnlab.fleet.models.transformer import Model
from trnlab.fleet.serving.graphs import cross, decode, encode, layers_of, prefill
from trnlab.fleet.serving.layers import ServingProgram
from trnlab.graph.flops import model_flops
from trnlab.graph.ir import Graph
from trnlab.runtime.executable import Executable
from trnlab.runtime.session import Session
from trnlab.runtime.step_cost import FORWARD, StepCost

Maker = Callable[[Model, int, ServingProgram, Groups], Graph]
MAKERS: Mapping[str, Maker] = {"prefill": prefill, "decode": decode, "encode": encode, "cross": cross}


@dataclass(frozen=True)
class ServingCost:
    """Cost of one run of a program on one rank: seconds, and what of them is exposed exchange of its tensor group;
    bytes that it needs beside weights and cache; operations of its products."""

    seconds: float
    exposed: float
    working: int
    flops: float


class ServingCosts(TimedPrograms):
    """Costs on a session's target; compiled once, kept in `folder` as those of plans are."""

    def __init__(self, session: Session, folder: Path | None = None) -> None:
        super().__init__(session)
        self.store = opened(folder, session.target, session.precision, session.stack)

    def of(self, kind: str, model: Model, share: ServingProgram) -> ServingCost:
        """Costs of the whole model; kind: of MAKERS."""
        one, two = (self._kept(kind, model, layers, share) for layers in (1, 2))
        self.store.save()
        more = layers_of(kind, model) - 1
        return ServingCost(
            one.seconds + more * max(two.seconds - one.seconds, 0.0),
            one.exposed + more * max(two.exposed - one.exposed, 0.0),
            two.working,
            one.flops + more * (two.flops - one.flops),
        )

    def _kept(self, kind: str, model: Model, layers: int, share: ServingProgram) -> ServingCost:
        options = self.session.stack.inference_options
        key = repr((kind, layers, share, self.cores, options, replace(model, name="", source="")))
        if key not in self.store.programs:
            self.store.programs[key] = asdict(self._made(kind, model, layers, share))
        return ServingCost(**self.store.programs[key])

    def _made(self, kind: str, model: Model, layers: int, share: ServingProgram) -> ServingCost:
        t = share.tensor
        groups = tuple(tuple(range(i, i + t)) for i in range(0, self.ranks, t)) if t > 1 else ()
        graph = MAKERS[kind](model, layers, share, groups)
        made = self.executable(graph, kind, more=self.session.stack.inference_options)
        return _measured(made, float(model_flops(graph)))


def _measured(executable: Executable, flops: float) -> ServingCost:
    cost = StepCost(executable, [FORWARD] * len(executable.program.calls))
    return ServingCost(cost.seconds, cost.exposed_s, executable.program.arena_bytes, flops)
