# SPDX-License-Identifier: Apache-2.0
"""What of the steps of many layouts no program changes: what is exchanged, and how much of it there is. A search
makes it once for a cluster, and holds costs of programs against it again and again.

N in shapes counts layouts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from trnlab.fleet.arrays import Bools, Floats, Ints, distinct, rows_of
from trnlab.fleet.costs.exchange import Exchange
from trnlab.fleet.models.transformer import Model
from trnlab.fleet.search.communication import communication_of, summed
from trnlab.fleet.search.layout import Layouts, divided
from trnlab.fleet.search.overlap import PrefetchOverlap, streams_of
from trnlab.fleet.search.pipeline_times import (
    SUM,
    CommunicationSeconds,
    PipelineShape,
    counts_of,
    parameters_of,
    part_of,
)
from trnlab.fleet.search.shard_costs import ShardKey, Training, shard_keys_of


@dataclass(frozen=True)
class LayoutTerms:
    """Terms of N layouts."""

    training: Training
    layouts: Layouts
    communication: CommunicationSeconds
    # spread, given: [N] seconds of gradients added up and of new weights given back at the end of a step, without
    # ZeRO-3
    spread: Floats
    given: Floats
    prefetch: PrefetchOverlap
    updated: Floats  # [N] parameters that the fullest rank's optimizer has
    normed: Floats  # [N] seconds in which all ranks add up what each knows of the norm of gradients

    def take(self, which: Bools | Ints) -> LayoutTerms:
        """The same of some of the layouts."""
        return LayoutTerms(
            self.training,
            self.layouts.take(which),
            self.communication.take(which),
            self.spread[which],
            self.given[which],
            self.prefetch.take(which),
            self.updated[which],
            self.normed[which],
        )

    @cached_property
    def shard_keys(self) -> tuple[list[ShardKey], Ints]:
        """See `pieces_of`."""
        return shard_keys_of(self.layouts)

    @cached_property
    def shapes(self) -> list[PipelineShape]:
        """Layouts with the same stages together."""
        kinds, which = distinct(self.layouts["pipeline"], self.layouts["interleave"])
        return [
            PipelineShape(self.training, self.layouts.take(rows), rows, p, v, self.communication.take(rows))
            for (p, v), rows in zip(kinds.tolist(), rows_of(which))
        ]


def terms_of(exchange: Exchange, training: Training, x: Layouts) -> LayoutTerms:
    """Terms of layouts that have no obstacle."""
    model = training.model
    common, experts = _fullest(model, x)
    spread = summed(exchange, x, "all_reduce", 0, SUM, common, experts)
    spread += summed(exchange, x, "reduce_scatter", 1, SUM, common, experts)
    given = summed(exchange, x, "all_gather", 1, training.width, common, experts)
    part = part_of(x, common[:, None], experts[:, None])[:, 0]
    updated = np.ceil(np.where(x["zero"] > 0, part, common + experts))
    return LayoutTerms(
        training,
        x,
        communication_of(exchange, training, x),
        spread,
        given,
        streams_of(exchange, training, x),
        updated,
        _normed(exchange, x),
    )


def _normed(exchange: Exchange, x: Layouts) -> Floats:
    """[N] seconds of adding up one number for each rank; none where every rank has all gradients."""
    parted = (x["zero"] > 0) | (x["tensor"] * x["pipeline"] > 1)
    ranks = np.where(parted, x["tensor"] * x["pipeline"] * x["context"] * x["data"], 1)
    return exchange.seconds("all_reduce", np.ones_like(ranks), ranks, np.full(len(x), float(SUM)))


def _fullest(model: Model, x: Layouts) -> tuple[Floats, Floats]:
    """[N] parameters of the pipeline's rank with most, without experts, and of experts."""
    found = np.zeros((2, len(x)))
    kinds, which = distinct(x["pipeline"], x["interleave"])
    for (p, v), rows in zip(kinds.tolist(), rows_of(which)):
        found[:, rows] = np.array([most.max() for most in parameters_of(model, counts_of(model, p, v), p)])[:, None]
    tensor = divided(model, x)
    return found[0] / tensor, found[1] / (tensor * x["expert"])
