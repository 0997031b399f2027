# SPDX-License-Identifier: Apache-2.0
"""A captured step on every rank of a cluster, divided by data alone: replicas that add up their gradients (DDP),
divide the optimizer's state (ZeRO-1), or weights and gradients as well (FSDP).

What a rank takes for its batch is what `trnlab estimate` says of it; what ranks send each other is timed on the
fabric.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trnlab.errors import TrnlabError
from trnlab.fabric.cluster import Cluster
from trnlab.fleet.arrays import Floats
from trnlab.fleet.captured import Captured
from trnlab.fleet.exchange import Exchange
from trnlab.fleet.layout import SHORT, ZERO, Layout, Layouts, columns_of
from trnlab.fleet.pipes import SUM
from trnlab.fleet.search import TOO_LARGE, Found
from trnlab.fleet.steps import CAUSES, CLASSES, Steps
from trnlab.porting.forecast import forecast
from trnlab.porting.job import Unheard
from trnlab.porting.memory import BACKWARD, FORWARD, UPDATE
from trnlab.porting.result import TargetResult
from trnlab.precision import MODES
from trnlab.runtime.session import Session

ALONE = "only its data is divided, since it is not recognised as a stack of equal blocks"
DIVIDES = ("tensor", "pipeline", "context", "expert", "microbatch", "recompute")  # columns of layouts, more than data
UNEVEN = "the batch is not divided by data parallel ranks and microbatches"
SINGLE = "there are no other ranks to divide anything among"


@dataclass
class Replicas:
    """A captured step on ranks of a target. alone: what one of them takes."""

    step: Captured
    session: Session
    exchange: Exchange
    alone: TargetResult

    def search(self, cluster: Cluster, batch: int, fixed: Mapping[str, int] | None = None) -> Found:
        """Every way to divide a step of so many samples by data. fixed: as in `search.search`."""
        layouts = [
            Layout(data=cluster.ranks, microbatch=self.step.samples, zero=zero, overlap=overlap)
            for zero in ZERO for overlap in (True, False)
        ]  # fmt: skip
        found = Found(looked_at=len(layouts), refused=Counter())
        why = [self._obstacle(x, batch, fixed or {}) for x in layouts]
        found.refused.update(reason for reason in why if reason is not None)
        kept = [x for x, reason in zip(layouts, why) if reason is None]
        if not kept:
            return found
        steps = self.steps(cluster, columns_of(kept), batch)
        fits = steps.memory <= steps.room
        if not fits.all():
            found.refused[TOO_LARGE] += int((~fits).sum())
        if fits.any():
            found.steps = steps.take(fits)
        else:
            found.nearest = steps.step(int(steps.memory.argmin()))
        return found

    def _obstacle(self, layout: Layout, batch: int, fixed: Mapping[str, int]) -> str | None:
        """Why a layout is none, in the words of `layout.obstacles` where they are the same."""
        given = columns_of([layout])
        for name, value in fixed.items():
            if int(given[name][0]) != value:
                return ALONE if name in DIVIDES else f"{_short(name)} is given"
        if batch % (layout.data * layout.microbatch):
            return UNEVEN
        return SINGLE if layout.data == 1 and (layout.zero or not layout.overlap) else None

    def steps(self, cluster: Cluster, layouts: Layouts, batch: int) -> Steps:
        """The steps of such layouts."""
        count = layouts.microbatches(batch).astype(np.float64)
        parts, n = self.alone.parts, len(layouts)
        update = parts.get(UPDATE, 0.0)
        one = (self.alone.step_s or 0.0) - update  # with what a program takes to start
        seconds = {cause: np.zeros(n) for cause in CAUSES}
        seconds["compute"] = one * count
        seconds["optimizer"] = update / np.where(layouts["zero"] > 0, layouts["data"], 1)
        seconds |= self._exchanged(layouts, count)
        samples = batch * self.step.units
        flops = np.full(n, self.step.flops * batch / self.step.samples)
        peak = (
            cluster.target.cores * cluster.instances * cluster.target.chip.peak_flops(MODES[self.session.precision])
        )
        return Steps(
            layouts, seconds, self._bytes(layouts, count), flops, np.ones(n, np.bool_), self.alone.capacity, peak,
            samples,
        )  # fmt: skip

    def _exchanged(self, x: Layouts, microbatches: Floats) -> dict[str, Floats]:
        """Exposed seconds of gradients and weights: in units of a layer, beside the work on the others."""
        units, stride, data, zero = self.step.layers, x["tensor"], x["data"], x["zero"]
        forward, backward = (self.alone.parts.get(name, 0.0) / units for name in (FORWARD, BACKWARD))
        memory, each = self.alone.memory, self.step.count * SUM / units

        def time(kind: str, only: int, nbytes: float) -> Floats:
            return self.exchange.seconds(kind, stride, np.where(zero == only, data, 1), np.full(len(x), nbytes))

        summed = time("all_reduce", 0, each) + time("reduce_scatter", 1, each)
        given = time("all_gather", 1, memory.parameters / units)
        asked, spread = time("all_gather", 3, self._gathered / units), time("reduce_scatter", 3, each)
        rest, streams, open_ = units - 1, 2 * units, x["overlap"] > 0
        late = np.where(open_, np.maximum(summed * units - backward * rest, summed), summed * units)
        new = np.where(open_, np.maximum(given * units - forward * rest, given), given * units)
        there = asked + np.maximum(asked - forward, 0.0) * rest + np.maximum(asked - backward, 0.0) * units
        back = spread + np.maximum(spread - np.maximum(backward - asked, 0.0), 0.0) * rest
        return {
            "gradients": late + np.where(open_, back, spread * units) * microbatches,
            "weights": new + np.where(open_, there, asked * streams) * microbatches,
        }

    @property
    def _gathered(self) -> float:
        """Bytes of weights as products read them."""
        return float(self.alone.memory.copies or self.alone.memory.parameters)

    def _bytes(self, x: Layouts, microbatches: Floats) -> dict[str, Floats]:
        """By class. Sums of gradients in float32 are kept where there are several microbatches, or others to add."""
        memory, data, zero = self.alone.memory, x["data"], x["zero"]
        sums = np.where(
            (microbatches > 1) | (data > 1), max(self.step.count * SUM, memory.gradients), memory.gradients
        )
        whole, parted = np.where(zero == 3, data, 1), np.where(zero > 0, data, 1)
        units = min(2, self.step.layers) / self.step.layers  # one that is used, and the next
        found = {name: np.zeros(len(x)) for name in CLASSES}
        found["weights"] = (memory.parameters + memory.copies) / whole
        found["gradients"] = sums / whole
        found["optimizer"] = memory.state / parted
        found["activations"] = np.full(len(x), float(memory.activations))
        found["working"] = memory.batch + memory.temporaries + np.where(zero == 3, units * self._gathered, 0.0)
        return found


def replicas(step: Captured, session: Session, exchange: Exchange) -> Replicas:
    """Compile a captured step for ranks of the session's target. Raises what the compiler refuses."""
    target = session.target
    session.communicator = Unheard(0, max(Cluster(target, 1).ranks, 2))
    refused: list[TrnlabError] = []
    alone = forecast(step.work, target, session, refused.append)
    if refused:
        raise refused[0]
    return Replicas(step, session, exchange, alone)


def _short(name: str) -> str:
    return next(short for short, long in SHORT.items() if long == name)
