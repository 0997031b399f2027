# SPDX-License-Identifier: Apache-2.0
"""Graphs of one rank as programs that are timed and never run: those of training stages and those of serving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from trnlab import compiler
from trnlab.chips.spec import Chip
from trnlab.compiler.prepared import prepare
from trnlab.estimate.job import NullCommunicator
from trnlab.fabric.cluster import CORES_PER_RANK, parse
from trnlab.graph.ir import Graph
from trnlab.program.routine import Routine
from trnlab.runtime import device
from trnlab.runtime.executable import Executable
from trnlab.runtime.session import Session

Routines = dict[Any, Routine]  # by what they do


@dataclass
class SharedRoutines:
    """Routines that programs of several stacks have in common. A stack decides which operations are a routine, and
    the key of one says how it was made; they are of one chip and one precision."""

    _known: dict[tuple[Chip, str], Routines] = field(default_factory=dict)

    def of(self, session: Session) -> Routines:
        """Those of a session's chip and precision, which are added to."""
        return self._known.setdefault((session.chip, session.precision), {})


class TimedPrograms:
    """Programs for the ranks of a session's target. cores: that share a rank's work; compiled: how many were made.
    routines: that others made, which are added to."""

    def __init__(self, session: Session, routines: Routines | None = None) -> None:
        self.session, self.ranks = session, parse(session.target.name).ranks
        session.communicator = NullCommunicator(0, self.ranks) if self.ranks > 1 else None
        self.cores = CORES_PER_RANK.get(session.chip.name, 1) if self.ranks > 1 else 1
        self.compiled = 0
        self._routines: Routines = {} if routines is None else routines

    def executable(
        self,
        graph: Graph,
        key: str,
        session: Session | None = None,
        frozen: Sequence[int] = (),
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> Executable:
        """Compiled for timing. What two graphs have in common, such as a block of one share, is recorded once.
        session: of a cluster, whose ranks are more than the target's own. frozen: inputs that are the same in each
        run; what hangs on them alone is no part of the time. more: options of `compile`, beside the session's."""
        self.compiled += 1
        options = {**device.options_of(graph, session or self.session), **more}
        prepared = prepare(graph, frozen, options)
        graph = graph if prepared is None else prepared.each
        program = compiler.compile(graph, self.session.chip, options, self._routines)
        about = {"key": key, "name": graph.name}
        return Executable(program, "", about, self.session.chip, "off", 0.0, cores=self.cores)
