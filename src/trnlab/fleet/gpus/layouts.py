# SPDX-License-Identifier: Apache-2.0
"""The fastest layout of a model over GPUs that fits their memory, by rooflines."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from trnlab.fleet.gpus.catalogue import Instance
from trnlab.fleet.gpus.costs import TrainingWork
from trnlab.fleet.gpus.roofline import Roofline, step
from trnlab.fleet.models.transformer import Model
from trnlab.fleet.search.layout import Layout

MICROBATCHES = (1, 2, 4, 8, 16, 32)
USABLE = 0.92  # of the memory: the rest is the driver's, the library's and the allocator's; assumed


@dataclass(frozen=True)
class FastestLayout:
    """The fastest layout that fits; None where none does. lacking: bytes that the smallest one lacks."""

    job: TrainingWork | None
    roofline: Roofline | None
    lacking: float = 0.0


def fastest(
    model: Model, instance: Instance, instances: int, batch: int, sequence: int, form: str = "bf16"
) -> FastestLayout:
    """Over all accelerators of so many instances. Raises UsageError as `roofline.step` does."""
    room = USABLE * instance.accelerator.memory
    best, lacking = FastestLayout(None, None), float("inf")
    for layout in _layouts(model, instance, instances, batch):
        job = TrainingWork(model, layout, instance, batch, sequence, form)
        found = step(job)
        need = sum(found.bytes.values())
        if need > room:
            lacking = min(lacking, need - room)
        elif best.roofline is None or found.total < best.roofline.total:
            best = FastestLayout(job, found)
    return best if best.job is not None else FastestLayout(None, None, lacking)


def _layouts(model: Model, instance: Instance, instances: int, batch: int) -> Iterator[Layout]:
    ranks = instance.count * instances
    heads = [block.attention.heads for _, block in model.stacks]
    for tensor in _divisors(min(instance.domain, instance.count, ranks)):
        if ranks % tensor or any(n % tensor for n in heads):
            continue
        for pipeline in _divisors(ranks // tensor):
            data = ranks // tensor // pipeline
            if pipeline > model.layers or batch % data:
                continue
            for microbatch in (m for m in MICROBATCHES if batch % (data * m) == 0):
                for recompute in ("none", "full"):
                    layout = Layout(tensor, pipeline, data, microbatch, 1, int(data > 1), recompute)
                    yield from (replace(layout, expert=n) for n in _divisors(math.gcd(model.experts or 1, data)))


def _divisors(n: int) -> list[int]:
    return [i for i in range(1, n + 1) if n % i == 0]
