# SPDX-License-Identifier: Apache-2.0
"""The part of a walk that hears of recorded programs: which step each is of, what cuts it, passes without a step."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from trnlab.errors import Location
from trnlab.findings import WARNING
from trnlab.frontends.torch.check.live_objects import alive
from trnlab.frontends.torch.check.loaders import Loaders
from trnlab.frontends.torch.check.recorded import Recordings, cuts, passes_of
from trnlab.frontends.torch.check.running import StopTracing
from trnlab.frontends.torch.check.steps import TracedStep
from trnlab.frontends.torch.findings.locations import here, parse
from trnlab.frontends.torch.findings.survey import Survey
from trnlab.frontends.torch.recording.passes import RecordingPart, learns, passes
from trnlab.frontends.torch.recording.programs import NumberedRecording, RecordedProgram
from trnlab.frontends.torch.recording.recorder import RecordedOperator

LEAST, PATIENCE = 6, 10.0  # passes of a script that makes no step, and seconds after the first, that are enough


class TracedRecordings:
    """See `ScriptTrace`."""

    def __init__(self, survey: Survey) -> None:
        self.survey, self.steps, self.now = survey, list[TracedStep](), TracedStep()
        self.recordings, self.loaders = Recordings(), Loaders()
        self._ending: TracedStep | None = None  # whose optimizer has stepped, and is recorded still
        self._met: float | None = None  # when the first program was recorded
        self._patience = 1
        self._waits = False  # whether an update by the script itself is recorded still
        self._learning = self._backward = self._hidden = False

    def _begins(self) -> None:
        """See `ScriptTrace`, as the next two."""

    def _done(self, step: TracedStep) -> None:
        """All programs of a step have run."""

    def ended(self) -> None:
        """The script came to its end by itself."""

    def parts(self, nodes: list[RecordedOperator]) -> list[RecordingPart]:
        """See `RecordingObserver`."""
        if not learns(nodes):
            self.recordings.mark(nodes)
        return passes(nodes, any(node.grad for node in nodes) and bool(alive(torch.optim.Optimizer)))

    def program(self, program: RecordedProgram, reading: NumberedRecording) -> None:
        """A recorded program runs."""
        if self._hidden:
            return
        self._begins()
        self._waits = False
        graph, step = program.imported.graph, self._ending or self.now
        self.recordings.met(program, reading)
        self._met = self._met or time.perf_counter()
        if not self.steps and self._ending is None:
            self.recordings.sequence.append(graph)
        if self._learning or self._ending is not None or any(node.grad or node.updates for node in reading.nodes):
            step.graphs.append(graph)
            step.inputs[graph] = self.recordings.inputs[graph]
            place = None if self._backward else parse(here(sys._getframe(2)) or "")
            step.cuts.append((graph, place))
        self._only_forward()

    def given_up(self, nodes: Sequence[RecordedOperator]) -> None:
        """The host computes what was recorded."""
        for node in nodes:
            self._by_host(self._ending or self.now, node.about.name, parse(node.where or ""))

    def no_form(self, node: RecordedOperator, error: Exception) -> None:
        """The chip has no form of a recorded operator."""
        name = node.about.name.replace("::", ".")
        said = str(getattr(error, "what", error)).splitlines()
        reason = next((line.strip() for line in said if name in line), said[0])
        self.survey.note(
            "TRN250",
            f"{name}: the chip has no form of this; the host computes it",
            parse(node.where or ""),
            why=f"it cuts the step into programs before and after it; {reason}",
            do=str(getattr(error, "remedy", None) or "write it with other operators: docs/operators.md has them"),
            severity=WARNING,
            subject=name,
            whatever=True,
        )

    def random(self, name: str, tensor: Tensor) -> None:
        """Random numbers were drawn that a program reads."""
        self.recordings.computed(tensor)
        self.now.drawn[name] += 1

    def settled(self) -> None:
        """What an optimizer's step had recorded was computed."""
        if self._ending is not None:
            step, self._ending = self._ending, None
            self._done(step)

    def _only_forward(self) -> None:
        """Scripts that have no optimizer make no step: their passes are enough."""
        if self.steps or self._learning or self._met is None or len(self.recordings.sequence) < LEAST:
            return
        if time.perf_counter() - self._met > PATIENCE * self._patience and not alive(torch.optim.Optimizer):
            self.ended()
            raise StopTracing
        if time.perf_counter() - self._met > PATIENCE * self._patience:
            self._patience *= 2

    @staticmethod
    def _by_host(step: TracedStep, name: str, place: Location | None) -> None:
        step.host[name] += 1
        if place is not None:
            step.host_places[place] += 1

    def _tell(self, step: TracedStep) -> None:
        """What a step learned from, and what cut it."""
        counted = self.recordings.taken()
        if counted[0] and not step.per_step:
            step.per_step, step.counted = counted
        if not step.learns or not self.steps:  # before the first step there is much that is done once
            return
        for place in cuts(step.cuts):
            if place in step.host_places:  # which is told by itself
                continue
            self.survey.note(
                "TRN256",
                "a value is asked for in the middle of a step, which cuts it into two programs",
                place,
                why="what is recorded until then is computed; what the rest needs of it goes through HBM",
                do="ask for it after optimizer.step(): the step is one program then",
                severity=WARNING,
                subject=f"cut {place}",
            )

    def _passed(self) -> None:
        """The script has only computed forward: what it did again and again is a pass."""
        graphs, count = passes_of(self.recordings.sequence)
        now, read, counted = self.now, self.loaders.taken(), self.recordings.counted
        inputs = self.recordings.inputs
        now.graphs, now.inputs = list(graphs), {g: inputs[g] for g in graphs if g in inputs}
        if not now.per_step:
            now.per_step, now.counted = next((counted[g] for g in graphs if counted.get(g, (0, ""))[0]), (0, ""))
        now.host = Counter({name: n // count for name, n in now.host.items() if n >= count})
        now.read = Counter({loader: -(-n // count) for loader, n in read.items()})
        self.steps += [now] * count
