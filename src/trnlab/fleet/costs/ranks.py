# SPDX-License-Identifier: Apache-2.0
"""What one rank takes for a step, alone: the figures that a division by data is made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import MutableMapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trnlab.compiler.analysis.roles import find_updates
from trnlab.errors import TrnlabError
from trnlab.estimate.forecast import HOST, forecast
from trnlab.estimate.job import NullCommunicator
from trnlab.fabric.cluster import Cluster
from trnlab.fleet.costs.networks import step
from trnlab.fleet.models.captured import CapturedWork
from trnlab.fleet.models.unpartitioned import UnpartitionedModel
from trnlab.runtime.session import Session
from trnlab.runtime.step_cost import BACKWARD, FORWARD, UPDATE


@dataclass(frozen=True)
class RankCost:
    """What a step costs one rank: seconds of each pass, and bytes by class."""

    samples: int  # of its batch, of `units` each
    units: int
    count: int  # parameters of `layers` units of exchange
    layers: int
    # of its products. Seconds of each pass
    flops: float
    forward: float
    backward: float
    update: float
    # what a program takes to start and what no pass is known of. Bytes of parameters, copies of them, gradients,
    # the optimizer's state, activations, and all else.
    others: float
    parameters: int
    copies: int
    gradients: int
    state: int
    activations: int
    working: int
    capacity: int
    # bytes of its buffers, those of one format together
    buffers: Sequence[int] = ()
    # operators that a host may trace: of its passes, and of the update
    operators: tuple[int, int] = (0, 0)

    @property
    def gathered(self) -> float:
        """Bytes of weights as products read them: copies in another format, where most of them are copied."""
        return float(self.copies if 4 * self.copies > self.parameters else self.parameters)


@dataclass
class Ranks:
    """Ranks of a session's target, compiled when they are asked for."""

    source: CapturedWork | UnpartitionedModel  # a captured step, or a model that says what it computes
    session: Session
    cache: MutableMapping[str, Any]  # its ranks by what was asked
    form: str = "bfloat16"  # that it is kept in
    compiled: int = 0

    @property
    def microbatches(self) -> tuple[int, ...]:
        """Samples of a rank's batch that there may be, the largest first."""
        if isinstance(self.source, CapturedWork):
            return (self.source.samples,)
        assert self.source.network is not None
        return tuple(1 << k for k in reversed(range(self.source.network.most.bit_length())))

    @property
    def again(self) -> tuple[bool, ...]:
        """Whether activations are made again: what is possible, the quickest first."""
        return (False,) if isinstance(self.source, CapturedWork) else (False, True)

    def rank(self, microbatch: int, again: bool) -> RankCost:
        """That takes so many samples. Raises what the compiler refuses."""
        if isinstance(self.source, CapturedWork):
            return self._compiled(self.source)
        key = f"rank, operators apart {self.source.network!r} {microbatch} {again} {self.form}"
        if key not in self.cache:
            self.cache[key] = asdict(self._compiled(step(self.source, microbatch, again, self.form)))
        return RankCost(**self.cache[key])

    def _compiled(self, made: CapturedWork) -> RankCost:
        target, refused = self.session.target, list[TrnlabError]()
        self.session.communicator = NullCommunicator(0, max(Cluster(target, 1).ranks, 2))
        alone = forecast(made.work, target, self.session, refused.append)
        if refused:
            raise refused[0]
        self.compiled += len(made.work.parts)
        memory, parts = alone.memory, alone.parts
        forward, backward, update = (parts.get(name, 0.0) for name in (FORWARD, BACKWARD, UPDATE))
        return RankCost(
            made.samples,
            made.units,
            made.count,
            made.layers,
            made.flops,
            forward,
            backward,
            update,
            (alone.step_s or 0.0) - forward - backward - update - parts.get(HOST, 0.0),
            memory.parameters,
            memory.copies,
            memory.gradients,
            memory.state,
            memory.activations,
            memory.batch + memory.temporaries,
            alone.capacity,
            _buffers(made),
            _operators(made),
        )


def _operators(made: CapturedWork) -> tuple[int, int]:
    """Operators of a step's passes, and of its update."""
    every = sum(len(part.graph.ops) * part.times for part in made.work.parts)
    update = sum(len(find_updates(part.graph)) * part.times for part in made.work.parts)
    return every - update, update


def _buffers(made: CapturedWork) -> list[int]:
    """Bytes of a step's buffers, such as the averages of norms, by format."""
    found = Counter[str]()
    for part in made.work.parts:
        for value, kind in zip(part.graph.inputs, part.kinds):
            found[value.dtype.name] += value.type.nbytes if kind == "buffer" else 0
    return [size for size in found.values() if size]
