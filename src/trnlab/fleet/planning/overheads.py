# SPDX-License-Identifier: Apache-2.0
"""What a step waits for beside its programs and collectives: saves of checkpoints, and its input."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trnlab.fleet.models.unpartitioned import UnpartitionedModel
from trnlab.fleet.planning.plan import Candidate
from trnlab.fleet.planning.question import Question
from trnlab.fleet.reliability.stores import HOST_LINK

TOKEN = 8  # bytes that come from the host: a token and its label in int32


@dataclass(frozen=True)
class Overheads:
    """Seconds of a step."""

    checkpoint: float  # that saves hold it up, spread over the steps between two of them
    input: float  # that it waits for its batch
    brought: float  # that a chip's host takes to send it, beside the step before

    def lines(self, c: Candidate) -> Iterator[tuple[str, float, str]]:
        """Name, seconds, and why."""
        kept = c.after_failures
        yield "checkpoint", self.checkpoint, f"{kept.stall:.3g} s for a save each {kept.interval:,.0f} s of work"
        yield "input", self.input, f"{self.brought:.3g} s from the host, beside the step before"


def overheads(question: Question, c: Candidate) -> Overheads:
    """Overheads of a candidate. Every rank of a group that shares sequences gets them; reading and decoding files
    is not counted, nor is it known."""
    model, training, layout = question.model, question.training, c.step.layout
    if isinstance(model, UnpartitionedModel):
        each = model.brought
    else:
        each = training.sequence * (model.patch * training.width if model.patch else TOKEN) + model.decoded * TOKEN
    brought = training.batch / layout.data * each * c.cluster.ranks_per_chip / HOST_LINK.value
    return Overheads(c.stall, max(brought - c.step.total, 0.0), brought)
