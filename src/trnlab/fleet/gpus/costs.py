# SPDX-License-Identifier: Apache-2.0
"""A training step on GPUs as it is asked for, and what single operations of it take: products, memory, links.

A product takes its operations at the best rate that was measured for the accelerator, then its bytes: as in
Calculon's processing mode `no_overlap` (Isaev et al. 2023), which stands for how a kernel begins and ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from trnlab.fleet.gpus import efficiency
from trnlab.fleet.gpus.catalogue import Instance
from trnlab.fleet.models.transformer import Model
from trnlab.fleet.search.layout import Layout

HALF, FULL = 2, 4  # bytes of an element


@dataclass(frozen=True)
class Software:
    """What the training library does."""

    fused: bool = True  # attention without its scores in memory (FlashAttention)
    overlap: bool = True  # gradients are exchanged while the last backward pass is still under way
    sequence_parallel: bool = True  # what lies between products is divided among tensor parallel ranks as well
    network: str = ""  # between instances, where it is not the provider's own


@dataclass(frozen=True)
class TrainingWork:
    """A step of `batch` sequences of `sequence` tokens, divided by a layout over instances of a type."""

    model: Model
    layout: Layout
    instance: Instance
    batch: int
    sequence: int
    form: str = "bf16"
    software: Software = field(default_factory=Software)

    @property
    def accelerators(self) -> int:
        """Accelerators of the whole job."""
        return self.layout.ranks


class OperationCosts:
    """What operations of a job take on one of its accelerators. spread: among how many ranks rows between products
    are divided. assumed: what nobody published."""

    def __init__(self, job: TrainingWork) -> None:
        self.job, self.layout = job, job.layout
        best = efficiency.product(job.instance.accelerator, job.form)
        self.rate = job.instance.accelerator.peak(job.form) * best.share
        self.assumed = () if best.published else (best.source,)
        self.inside = efficiency.inside(job.instance)
        self.between = efficiency.between(job.instance, job.software.network)
        self.spread = job.layout.tensor if job.software.sequence_parallel else 1

    def product(self, m: float, k: float, n: float, count: float = 1) -> float:
        """Seconds of `count` products of m x k and k x n."""
        nbytes = HALF * count * (m * k + k * n + m * n)
        return self.operations(2.0 * m * k * n * count) + self.stream(nbytes)

    def operations(self, flops: float) -> float:
        """Seconds of so many in one kernel, apart from its bytes."""
        return flops / (self.rate * efficiency.of_size(flops))

    def stream(self, nbytes: float) -> float:
        """Seconds to move so many bytes through memory."""
        return nbytes / (self.job.instance.accelerator.bandwidth * efficiency.of_memory(nbytes))

    def summed(self, nbytes: float, members: int, stride: int) -> float:
        """Seconds of an all-reduce of so many bytes among ranks that lie `stride` apart."""
        if self._joined(members, stride):
            return self.inside.ring(nbytes, members, 2)
        inner = self._here(stride)
        outside = self.between.ring(nbytes / inner, -(-members // inner), 2)  # all links carry a part
        return outside + self.inside.ring(nbytes, min(inner, members), 2)

    def shuffled(self, nbytes: float, members: int, stride: int) -> float:
        """Seconds of an all-to-all: each of the ranks, `stride` apart, has so many bytes for all of them alike. What
        stays in the domain and what leaves the instance go on links of their own, at the same time."""
        if members == 1:
            return 0.0
        inner = members if self._joined(members, stride) else self._here(stride)
        near, far = ((n / members) * nbytes for n in (inner - 1, members - inner))
        return max(self.inside.send(near) if near else 0.0, self.between.send(far) if far else 0.0)

    def _joined(self, members: int, stride: int) -> bool:
        """Whether fast links join them all."""
        return stride * members <= self.job.instance.domain

    def _here(self, stride: int) -> int:
        """How many of such ranks an instance has."""
        return max(self.job.instance.count // stride, 1)
