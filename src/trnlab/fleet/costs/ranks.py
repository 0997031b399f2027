# SPDX-License-Identifier: Apache-2.0
"""What one rank takes for a captured step, alone: the figures that a division by data is made of."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from trnlab.errors import TrnlabError
from trnlab.fabric.cluster import Cluster
from trnlab.fleet.models.captured import Captured
from trnlab.fleet.models.unpartitioned import Whole
from trnlab.porting.forecast import forecast
from trnlab.porting.job import Unheard
from trnlab.runtime.session import Session
from trnlab.runtime.step_cost import BACKWARD, FORWARD, UPDATE


class Source(Protocol):
    """Where the steps of a model come from that has a recipe."""

    model: Whole

    def step(self, microbatch: int, again: bool) -> Captured:
        """The step of so many samples, with activations made again or kept."""
        ...


@dataclass(frozen=True)
class Rank:
    """samples: of its batch, of `units` each. count: parameters of `layers` units of exchange. flops: of its
    products. Seconds of each pass; others: what a program takes to start and what no pass is known of. Bytes of
    parameters, copies of them, gradients, the optimizer's state, activations, and all else."""

    samples: int
    units: int
    count: int
    layers: int
    flops: float
    forward: float
    backward: float
    update: float
    others: float
    parameters: int
    copies: int
    gradients: int
    state: int
    activations: int
    working: int
    capacity: int

    @property
    def gathered(self) -> float:
        """Bytes of weights as products read them: copies in another format, where most of them are copied."""
        return float(self.copies if 4 * self.copies > self.parameters else self.parameters)


@dataclass
class Ranks:
    """Ranks of a session's target, compiled when they are asked for. kept: those of recipes, by what was asked."""

    source: Captured | Source
    session: Session
    kept: MutableMapping[str, Any]
    compiled: int = 0

    @property
    def microbatches(self) -> tuple[int, ...]:
        """Samples of a rank's batch that there may be, the largest first."""
        if isinstance(self.source, Captured):
            return (self.source.samples,)
        recipe = self.source.model.recipe
        return recipe.microbatches if recipe is not None else ()

    @property
    def again(self) -> tuple[bool, ...]:
        """Whether activations are made again: what is possible, the quickest first."""
        if isinstance(self.source, Captured):
            return (False,)
        recipe = self.source.model.recipe
        return (False, True) if recipe is not None and recipe.again else (False,)

    def rank(self, microbatch: int, again: bool) -> Rank:
        """That takes so many samples. Raises what the compiler refuses."""
        if isinstance(self.source, Captured):
            return self._compiled(self.source)
        model = self.source.model
        words = model.recipe.words(microbatch, again, self.session.precision) if model.recipe is not None else []
        key = f"rank {model.recipe.script if model.recipe is not None else model.name} {' '.join(words)}"
        if key not in self.kept:
            self.kept[key] = asdict(self._compiled(self.source.step(microbatch, again)))
        return Rank(**self.kept[key])

    def _compiled(self, step: Captured) -> Rank:
        target, refused = self.session.target, list[TrnlabError]()
        self.session.communicator = Unheard(0, max(Cluster(target, 1).ranks, 2))
        alone = forecast(step.work, target, self.session, refused.append)
        if refused:
            raise refused[0]
        self.compiled += len(step.work.parts)
        memory, parts = alone.memory, alone.parts
        forward, backward, update = (parts.get(name, 0.0) for name in (FORWARD, BACKWARD, UPDATE))
        return Rank(
            step.samples,
            step.units,
            step.count,
            step.layers,
            step.flops,
            forward,
            backward,
            update,
            (alone.step_s or 0.0) - forward - backward - update,
            memory.parameters,
            memory.copies,
            memory.gradients,
            memory.state,
            memory.activations,
            memory.batch + memory.temporaries,
            alone.capacity,
        )
