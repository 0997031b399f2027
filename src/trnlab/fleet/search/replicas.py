# SPDX-License-Identifier: Apache-2.0
"""A captured step on every rank of a cluster, divided by data alone: replicas that add up their gradients (DDP),
divide the optimizer's state (ZeRO-1), or weights and gradients as well (FSDP).

What a rank takes for its batch is what `trnlab estimate` says of it; what ranks send each other is timed on the
fabric. Of a model by name there are many batches: the largest that fits is compiled, the smaller ones are not, since
they do the same work in more pieces; and activations are made again only where nothing fits that keeps them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trnlab.fabric.cluster import Cluster
from trnlab.fleet.arrays import Floats
from trnlab.fleet.costs.exchange import Exchange
from trnlab.fleet.costs.ranks import RankCost, Ranks
from trnlab.fleet.search.candidates import TOO_LARGE, SearchResult
from trnlab.fleet.search.layout import RECOMPUTE, SHORT, ZERO, Layout, Layouts, columns_of
from trnlab.fleet.search.pipeline_times import SUM
from trnlab.fleet.search.steps import CAUSES, CLASSES, PlannedSteps
from trnlab.precision import MODES
from trnlab.runtime.analysis.performance import MILLION
from trnlab.runtime.step_cost import host_wait

ALONE = "only its data is divided, since it is not recognised as a stack of equal blocks"
DIVIDES = ("tensor", "pipeline", "interleave", "context", "expert")  # columns of layouts, more than data
UNEVEN = "the batch is not divided by data parallel ranks and microbatches"
SINGLE = "there are no other ranks to divide anything among"
LARGER = "a larger microbatch fits"
KEEPS = "a layout fits that keeps its activations"


@dataclass
class Replicas:
    """Captured steps on ranks of a target."""

    ranks: Ranks
    exchange: Exchange

    def search(self, cluster: Cluster, batch: int, fixed: Mapping[str, int] | None = None) -> SearchResult:
        """Every way to divide a step of so many samples by data. fixed: as in `search.search`."""
        found, reason = SearchResult(refused=Counter()), ""
        for again in self.ranks.again:
            for microbatch in self.ranks.microbatches:
                kept = self._possible(found, cluster, batch, fixed or {}, microbatch, again)
                if reason:
                    found.refused[reason] += len(kept)
                elif kept:
                    self._settle(found, self.steps(cluster, columns_of(kept), batch))
                    reason = LARGER if found.steps is not None else ""
            reason = KEEPS if reason else ""
        if found.steps is not None:
            found.nearest = None
        found.refused += Counter()
        return found

    def _possible(
        self,
        found: SearchResult,
        cluster: Cluster,
        batch: int,
        fixed: Mapping[str, int],
        microbatch: int,
        again: bool,
    ) -> list[Layout]:
        """Layouts of a microbatch without an obstacle; the others are counted."""
        layouts = [
            Layout(
                data=cluster.ranks,
                microbatch=microbatch,
                zero=zero,
                overlap=overlap,
                recompute=RECOMPUTE[-1 if again else 0],
            )
            for zero in ZERO
            for overlap in (True, False)
        ]
        why = [self._obstacle(x, batch, fixed) for x in layouts]
        found.looked_at += len(layouts)
        found.refused.update(reason for reason in why if reason is not None)
        return [x for x, reason in zip(layouts, why) if reason is None]

    def _settle(self, found: SearchResult, steps: PlannedSteps) -> None:
        """Take what fits; remember what lacks least."""
        fits = steps.memory <= steps.room
        found.refused[TOO_LARGE] += int((~fits).sum())
        if fits.any():
            found.steps = steps.take(fits)
            return
        least = steps.step(int(steps.memory.argmin()))
        if found.nearest is None or sum(least.bytes.values()) < sum(found.nearest.bytes.values()):
            found.nearest = least

    def _obstacle(self, layout: Layout, batch: int, fixed: Mapping[str, int]) -> str | None:
        """Why a layout is none, in the words of `layout.obstacles` where they are the same."""
        given = columns_of([layout])
        for name, value in fixed.items():
            if int(given[name][0]) != value:
                return ALONE if name in DIVIDES else f"{_short(name)} is given"
        if batch % (layout.data * layout.microbatch):
            return UNEVEN
        return SINGLE if layout.data == 1 and (layout.zero or not layout.overlap) else None

    def _traced(self, rank: RankCost, count: Floats) -> Floats:
        """[N] seconds that ranks wait for their host, which traces each of so many microbatches, and then the update,
        whose own seconds stand elsewhere."""
        passes, update = (n * self.ranks.session.stack.tracing_us / MILLION for n in rank.operators)
        busy = rank.forward + rank.backward + rank.others
        return np.asarray(host_wait([(passes, busy, count), (update, 0.0, 1)]))

    def steps(self, cluster: Cluster, layouts: Layouts, batch: int) -> PlannedSteps:
        """The steps of such layouts, which have one microbatch and one way to treat activations."""
        rank = self.ranks.rank(int(layouts["microbatch"][0]), bool(layouts["recompute"][0]))
        count = layouts.microbatches(batch).astype(np.float64)
        n = len(layouts)
        seconds = {cause: np.zeros(n) for cause in CAUSES}
        seconds["compute"] = (
            rank.forward + rank.backward + rank.others
        ) * count  # with what a program takes to start
        seconds["optimizer"] = rank.update / np.where(layouts["zero"] > 0, layouts["data"], 1)
        seconds["host"] = self._traced(rank, count)
        seconds |= self._exchanged(rank, layouts, count)
        flops = np.full(n, rank.flops * batch / rank.samples)
        target, precision = cluster.target, self.ranks.session.precision
        peak = target.cores * cluster.instances * target.chip.peak_flops(MODES[precision])
        return PlannedSteps(
            layouts,
            seconds,
            _bytes(rank, layouts, count),
            flops,
            np.ones(n, np.bool_),
            rank.capacity,
            peak,
            batch * rank.units,
        )

    def _exchanged(self, rank: RankCost, x: Layouts, microbatches: Floats) -> dict[str, Floats]:
        """Exposed seconds of gradients and weights: in units of a layer, beside the work on the others. Replicas
        have rank 0's buffers before each forward pass, as `DistributedDataParallel` sends them: one broadcast of each
        format, which a program makes as a gather of all ranks' own."""
        units, stride, data, zero = rank.layers, x["tensor"], x["data"], x["zero"]
        forward, backward, each = rank.forward / units, rank.backward / units, rank.count * SUM / units

        def time(kind: str, only: int, nbytes: float | Floats) -> Floats:
            return self.exchange.seconds(
                kind, stride, np.where(zero == only, data, 1), np.broadcast_to(nbytes, len(x))
            )

        summed = time("all_reduce", 0, each) + time("reduce_scatter", 1, each)
        given = time("all_gather", 1, rank.parameters / units)
        asked, spread = time("all_gather", 3, rank.gathered / units), time("reduce_scatter", 3, each)
        ways = data.astype(np.float64)
        sent = sum((time("all_gather", 0, ways * size) for size in rank.buffers), np.zeros(len(x)))
        rest, streams, open_ = units - 1, 2 * units, x["overlap"] > 0
        late = np.where(open_, np.maximum(summed * units - backward * rest, summed), summed * units)
        new = np.where(open_, np.maximum(given * units - forward * rest, given), given * units)
        there = asked + np.maximum(asked - forward, 0.0) * rest + np.maximum(asked - backward, 0.0) * units
        back = spread + np.maximum(spread - np.maximum(backward - asked, 0.0), 0.0) * rest
        return {
            "gradients": late + np.where(open_, back, spread * units) * microbatches,
            "weights": new + (sent + np.where(open_, there, asked * streams)) * microbatches,
        }


def _bytes(rank: RankCost, x: Layouts, microbatches: Floats) -> dict[str, Floats]:
    """By class. Sums of gradients in float32 are kept where there are several microbatches, or others to add."""
    data, zero = x["data"], x["zero"]
    sums = np.where((microbatches > 1) | (data > 1), max(rank.count * SUM, rank.gradients), rank.gradients)
    whole, parted = np.where(zero == 3, data, 1), np.where(zero > 0, data, 1)
    units = min(2, rank.layers) / rank.layers  # one that is used, and the next
    found = {name: np.zeros(len(x)) for name in CLASSES}
    found["weights"] = (rank.parameters + rank.copies) / whole
    found["gradients"] = sums / whole
    found["optimizer"] = rank.state / parted
    found["activations"] = np.full(len(x), float(rank.activations))
    found["working"] = rank.working + np.where(zero == 3, units * rank.gathered, 0.0)
    return found


def _short(name: str) -> str:
    return next(short for short, long in SHORT.items() if long == name)
