# SPDX-License-Identifier: Apache-2.0
"""What the programs of a served model cost on a target: compiled, timed, and kept by what they depend on.

A program of one layer and one of two are compiled with embedding and head; each further layer takes what the second
one adds. Ranks are taken to run at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from trnlab import compiler
from trnlab.collectives import Groups
from trnlab.fabric.cluster import CORES_PER_RANK, parse
from trnlab.fleet.costs.store import opened
from trnlab.fleet.models.transformer import Model
from trnlab.fleet.serving.graphs import Program, decode, prefill
from trnlab.graph.flops import model_flops
from trnlab.graph.ir import Graph
from trnlab.porting import memory
from trnlab.porting.forecast import shares
from trnlab.porting.job import Unheard
from trnlab.runtime import device
from trnlab.runtime.communication import communication
from trnlab.runtime.executable import Executable
from trnlab.runtime.session import Session
from trnlab.units import PS_PER_S

Maker = Callable[[Model, int, Program, Groups], Graph]
MAKERS: Mapping[str, Maker] = {"prefill": prefill, "decode": decode}


@dataclass(frozen=True)
class Cost:
    """Cost of one run of a program on one rank: seconds, and what of them is exposed exchange of its tensor group;
    bytes that it needs beside weights and cache; operations of its products."""

    seconds: float
    exposed: float
    working: int
    flops: float


class Costs:
    """Costs on a session's target; compiled once, kept in `folder` as those of plans are."""

    def __init__(self, session: Session, folder: Path | None = None) -> None:
        self.session, self.ranks = session, parse(session.target.name).ranks
        session.communicator = Unheard(0, self.ranks) if self.ranks > 1 else None
        self.cores = CORES_PER_RANK.get(session.chip.name, 1) if self.ranks > 1 else 1  # that share a rank's work
        self.store = opened(folder, session.target, session.precision)
        self.compiled = 0

    def of(self, kind: str, model: Model, share: Program) -> Cost:
        """Costs of the whole model; kind: of MAKERS."""
        one, two = (self._kept(kind, model, layers, share) for layers in (1, 2))
        self.store.save()
        more = model.layers - 1
        return Cost(
            one.seconds + more * max(two.seconds - one.seconds, 0.0),
            one.exposed + more * max(two.exposed - one.exposed, 0.0),
            two.working,
            one.flops + more * (two.flops - one.flops),
        )

    def _kept(self, kind: str, model: Model, layers: int, share: Program) -> Cost:
        key = repr((kind, layers, share, self.cores, replace(model, name="", source="")))
        if key not in self.store.programs:
            self.compiled += 1
            self.store.programs[key] = asdict(self._made(kind, model, layers, share))
        return Cost(**self.store.programs[key])

    def _made(self, kind: str, model: Model, layers: int, share: Program) -> Cost:
        t = share.tensor
        groups = tuple(tuple(range(i, i + t)) for i in range(0, self.ranks, t)) if t > 1 else ()
        graph = MAKERS[kind](model, layers, share, groups)
        program = compiler.compile(graph, self.session.chip, device.options_of(graph, self.session))
        about = {"key": kind, "name": graph.name}
        made = Executable(program, "", about, self.session.chip, "off", 0.0, cores=self.cores)
        return _measured(made, float(model_flops(graph)))


def _measured(executable: Executable, flops: float) -> Cost:
    program = executable.program
    seconds = sum(shares(executable)) / PS_PER_S
    phase = memory.phases(program, program.outputs[-1], ())
    live = memory.temporaries(program, phase, {})
    scratch = max((routine.scratch_bytes for routine in program.routines), default=0)
    talk = communication([(executable, 1)], seconds)
    exposed = sum(kind["exposed_s"] for kind in talk["kinds"].values()) if talk is not None else 0.0
    return Cost(seconds, exposed, live.peak + scratch, flops)
