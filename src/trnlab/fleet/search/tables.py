# SPDX-License-Identifier: Apache-2.0
"""Steps of a recommendation model: tables divided by rows among all ranks, networks on each.

A rank sends the ids of its samples to the ranks that have the rows, which read them by DMA and send them back; the
networks take them with rows of its own short tables; gradients of rows go the same way back, and are added to the
rows where they lie. Gradients of what every rank has are added up. Nothing of that overlaps. Ids are taken to be even
over the rows of a table.

Letters: b samples of a rank, F tables, L of them divided, C columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

import numpy as np

from trnlab.estimate.job import room
from trnlab.fabric.cluster import Cluster
from trnlab.fleet.costs.exchange import Exchange
from trnlab.fleet.costs.programs import MicrobatchCost, Programs
from trnlab.fleet.costs.stages import Stage, differentiated
from trnlab.fleet.layers.shares import ShardSpec
from trnlab.fleet.layers.training import TrainingLayers
from trnlab.fleet.models.recommend import Recommender
from trnlab.fleet.search.candidates import TOO_LARGE, SearchResult
from trnlab.fleet.search.layout import SHORT as NAMES
from trnlab.fleet.search.layout import Layout, columns_of
from trnlab.fleet.search.steps import CAUSES, CLASSES, PlannedSteps
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph
from trnlab.numerics.dtypes import DType, dtype, float32, int32
from trnlab.precision import MODES

ROW, GRADIENT, ID = 4, 4, 4  # bytes: of a number of a table, of a gradient that is added up, of an id
RATE = 0.1  # of the update; what it is does not matter to its time
FEW, TABLE = 128, 2**16  # rows that are added to so small a table: what more of them take is what adding takes
UNEVEN = "the batch is not divided by the ranks"
WHOLE = "tables are divided among all ranks, and networks are on each"


@dataclass
class Tables:
    """Steps on a cluster. form: that networks and what is sent are kept in."""

    cluster: Cluster
    programs: Programs
    exchange: Exchange
    form: str = "bfloat16"

    def search(self, model: Recommender, batch: int, fixed: Mapping[str, int] | None = None) -> SearchResult:
        """The one way that a step of so many samples is divided."""
        found = SearchResult(looked_at=1, refused=Counter())
        layout = self.layout(batch)
        reason = self._obstacle(layout, batch, fixed or {})
        if reason is not None:
            found.refused[reason] += 1
            return found
        if sum(self.held(model).values()) > room(self.cluster.target):
            found.refused[TOO_LARGE] += 1
            found.nearest = self._uncompiled(model, layout, batch).step(0)
            return found
        steps = self.steps(model, layout, batch)
        if int(steps.memory[0]) > steps.room:
            found.refused[TOO_LARGE] += 1
            found.nearest = steps.step(0)
        else:
            found.steps = steps
        return found

    def layout(self, batch: int) -> Layout:
        """All ranks, each with its samples at once."""
        return Layout(data=self.cluster.ranks, microbatch=max(batch // self.cluster.ranks, 1), zero=0, overlap=False)

    def _obstacle(self, layout: Layout, batch: int, fixed: Mapping[str, int]) -> str | None:
        given = columns_of([layout])
        if any(int(given[name][0]) != value for name, value in fixed.items() if name in NAMES.values()):
            return WHOLE
        return UNEVEN if batch % self.cluster.ranks else None

    def held(self, model: Recommender) -> dict[str, float]:
        """Bytes of a rank by class, whatever its samples are."""
        wide = dtype(self.form).itemsize
        return {
            "tables": float(self.rows(model) * model.width * ROW),
            "weights": float(model.everywhere * wide),
            "gradients": float(model.everywhere * GRADIENT),
        }

    def rows(self, model: Recommender) -> int:
        """Rows of divided tables, that a rank has."""
        return sum(ceil(rows / self.cluster.ranks) for rows in model.divided)

    def steps(self, model: Recommender, layout: Layout, batch: int) -> PlannedSteps:
        """The compiled step of a layout."""
        b, looked, wide = layout.microbatch, layout.microbatch * len(model.divided), dtype(self.form)
        networks = self.programs.kept(f"networks {model!r} {b} {wide}", lambda: network(model, b, wide))
        update = self.programs.kept(f"sgd {model.everywhere} {wide}", lambda: Stage(sgd(model.everywhere, wide), 0))
        sent = looked * model.width * wide.itemsize
        seconds = {
            "compute": networks.forward + networks.backward,
            "lookups": sum(self.looked_up(model, looked)),
            "rows": self._exchanged("all_to_all", looked * ID) + 2 * self._exchanged("all_to_all", sent),
            "gradients": self._exchanged("all_reduce", model.everywhere * GRADIENT),
            "optimizer": update.forward + update.backward,
        }
        sizes = self.held(model) | {
            "activations": float(networks.saved),
            "working": float(networks.working + looked * ID + 2 * sent),
        }
        return self._of(model, layout, batch, seconds, sizes)

    def looked_up(self, model: Recommender, count: int) -> tuple[float, float]:
        """Seconds to read so many rows of divided tables, and to add what was learnt to as many where they lie."""
        kept, rows, width, wide = self.programs.kept, self.rows(model), model.width, dtype(self.form)
        read = kept(f"rows {rows} {count} {width} {wide}", lambda: Stage(lookup(rows, width, count, wide), 0))
        added, few = self._added(width, FEW + count), self._added(width, FEW)
        return read.forward, max(added.forward - few.forward, 0.0)

    def _added(self, width: int, count: int) -> MicrobatchCost:
        wide = dtype(self.form)
        return self.programs.kept(f"added {count} {width} {wide}", lambda: Stage(addition(width, count, wide), 0))

    def _exchanged(self, kind: str, nbytes: int) -> float:
        one, ranks, size = np.ones(1, np.int64), np.array([self.cluster.ranks]), np.array([float(nbytes)])
        return float(self.exchange.seconds(kind, one, ranks, size)[0])

    def _uncompiled(self, model: Recommender, layout: Layout, batch: int) -> PlannedSteps:
        """What is known of a step that has no room for its tables."""
        return self._of(model, layout, batch, {"compute": float("inf")}, self.held(model))

    def _of(
        self, model: Recommender, layout: Layout, batch: int, seconds: Mapping[str, float], sizes: Mapping[str, float]
    ) -> PlannedSteps:
        target, precision = self.cluster.target, self.programs.session.precision
        peak = target.cores * self.cluster.instances * target.chip.peak_flops(MODES[precision])
        return PlannedSteps(
            columns_of([layout]),
            {cause: np.array([seconds.get(cause, 0.0)]) for cause in CAUSES},
            {name: np.array([sizes.get(name, 0.0)]) for name in CLASSES},
            np.array([model.flops_per_token(1) * batch]),
            np.ones(1, np.bool_),
            room(target),
            peak,
            batch,
        )


def lookup(rows: int, width: int, count: int, form: DType) -> Graph:
    """So many rows of a table [rows, C] of a rank, as they are sent."""
    b = GraphBuilder("lookup")
    table, ids = b.input("table", (rows, width), float32), b.input("ids", (count,), int32)
    b.output(b.convert(b.take_rows(table, ids), form))
    return b.build()


def addition(width: int, count: int, form: DType) -> Graph:
    """What is learnt of so many rows, added to those of a small table of zeros by transfers that add."""
    b = GraphBuilder("addition")
    ids = b.input("ids", (count,), int32)
    learnt = b.multiply(b.convert(b.input("gradients", (count, width), form), float32), -RATE)
    b.output(b.scatter_add_rows(ids, learnt, TABLE))
    return b.build()


def sgd(parameters: int, form: DType) -> Graph:
    """The update of so many parameters in one buffer."""
    b, shape = GraphBuilder("sgd"), (128, ceil(parameters / 128))
    weights, gradients = b.input("weights", shape, form), b.input("gradients", shape, float32)
    b.output(b.convert(b.subtract(b.convert(weights, float32), b.multiply(gradients, RATE)), form), alias_of=weights)
    return b.build()


def network(model: Recommender, samples: int, form: DType) -> Stage:
    """Forward and backward of both networks and of short tables, on rows of divided ones that come and go."""
    layers = TrainingLayers("recommender", ShardSpec(samples, 1, form=form.name))
    return differentiated(layers, model.loss(layers), None, summed=False)
