# SPDX-License-Identifier: Apache-2.0
"""On how few cores a step fits, and how long it takes there: arithmetic on one core's step, not a plan.

Parameters, gradients and the optimizer's state are divided among all N cores, which gather and reduce them when they
need them (ZeRO-3, "fully sharded data parallel"). Where what belongs to the batch does not fit either, groups of t
cores share one batch, each with 1/t of the work (tensor parallel). What tensor parallel exchanges within layers is
not counted, nor are copies of a layer's gathered parameters. Everything that comes out is derived, and leans on the
assumed figures of the chip's links.
"""

from __future__ import annotations

from dataclasses import replace

from trnlab.chips.catalog import Target
from trnlab.errors import UsageError
from trnlab.estimate.result import CoreLayout, MemoryReport
from trnlab.fabric.cluster import CORES_PER_RANK
from trnlab.isa.base import Work
from trnlab.sim.timing.collective import collective_time
from trnlab.units import PS_PER_S

MOST_CORES = 1 << 16
BASIS = (
    "derived: parameters, gradients and optimizer state divided among all cores (gathered in the forward and the "
    "backward pass, gradients reduced and scattered), the step's compute divided among the cores that share a batch; "
    "what those exchange within layers is not counted"
)
FORWARD = (
    "derived: parameters divided among all cores, gathered in the forward pass, its compute divided among the cores "
    "that share a batch; what those exchange within layers is not counted"
)
ALONE = "one core, as simulated"


def smallest(
    memory: MemoryReport, step_s: float | None, target: Target, learns: bool = True, host_s: float = 0.0
) -> CoreLayout | None:
    """The fewest cores, a power of two, that hold the step; None where no number does. learns: whether it has a
    backward pass, and gradients. host_s: how much of the step its host takes, of which each core has one."""
    capacity = target.chip.hbm.capacity_bytes
    if memory.total <= capacity:
        return CoreLayout(1, 1, memory.total, 0.0, (step_s or 0.0, step_s or 0.0), ALONE)
    cores = 2
    while cores <= MOST_CORES:
        for tensor in _powers(min(cores, 64)):
            need = -(-memory.kept // cores) + -(-memory.rest // tensor)
            if need <= capacity:
                try:
                    found = _timed(cores, tensor, need, memory, (step_s or 0.0) - host_s, target, learns)
                except UsageError:  # no network joins so many
                    return None
                low, high = found.time_s
                return replace(found, time_s=(low + host_s, high + host_s))
        cores *= 2
    return None


def _powers(most: int) -> list[int]:
    return [1 << i for i in range(most.bit_length()) if 1 << i <= most]


def _timed(
    cores: int, tensor: int, need: int, memory: MemoryReport, device_s: float, target: Target, learns: bool
) -> CoreLayout:
    gradients = memory.gradients or memory.parameters
    back = ("all_gather", memory.parameters), ("reduce_scatter", gradients)
    exchange = sum(
        _collective(name, nbytes // tensor, cores, target)
        for name, nbytes in (("all_gather", memory.parameters), *(back if learns else ()))
    )
    work = device_s / tensor
    time_s = max(work, exchange), work + exchange
    return CoreLayout(cores, tensor, need, exchange, time_s, BASIS if learns else FORWARD)


def exchanged(memory: MemoryReport, cores: int, target: Target) -> float:
    """Seconds to add up gradients over cores that each hold the whole model."""
    return _collective("all_reduce", memory.gradients or memory.parameters, cores, target) if cores > 1 else 0.0


def _collective(name: str, nbytes: int, cores: int, target: Target) -> float:
    """Seconds over so many cores, which are ranks as the runtime joins them; both of two stand for two ranks."""
    ranks = max(cores // CORES_PER_RANK.get(target.chip.name, 1), 2)
    work = Work(f"collective.{name}", n=nbytes, m=ranks, k=cores, nbytes=nbytes, groups=(tuple(range(ranks)),))
    return collective_time(work, target.chip)[1] / PS_PER_S
