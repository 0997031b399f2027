# SPDX-License-Identifier: Apache-2.0
"""The step of a transformer on GPUs, from operations, bytes and exchange (`blocks`, `costs`); nothing is fitted.

Pipelines are 1F1B, interleaved or not (Narayanan et al. 2021). All times are of one rank and one microbatch unless it
is said otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

from trnlab.fleet.gpus import readings
from trnlab.fleet.gpus.blocks import GpuLayer, LayerPass, activations
from trnlab.fleet.gpus.costs import FULL, HALF, OperationCosts, TrainingWork
from trnlab.fleet.layers.shares import ShardSpec
from trnlab.fleet.models.transformer import Block
from trnlab.fleet.search.layout import layers_of

ADAM_BYTES = 34  # a parameter: master, mean and square read and written, the gradient read, the weight written
EXCHANGED = ("tensor parallel", "experts", "pipeline sends", "gradients")


@dataclass(frozen=True)
class Roofline:
    """A step: seconds by cause, which add up to `total`; bytes by class on the rank with most."""

    total: float
    seconds: dict[str, float]
    bytes: dict[str, float]
    mfu: float
    assumed: tuple[str, ...] = ()

    @property
    def exchange(self) -> float:
        """The share of the step in which ranks wait for the network."""
        return sum(self.seconds[k] for k in EXCHANGED) / self.total


@dataclass(frozen=True)
class RankParameters:
    """Parameters of the rank with most, about: of experts, and all others. An end of a pipeline holds the embedding
    or the head as well."""

    common: float
    experts: float

    @property
    def total(self) -> float:
        """The sum of both."""
        return self.common + self.experts


def step(job: TrainingWork) -> Roofline:
    """The step of a job. Raises UsageError (TRN155) for a format that the accelerator has not."""
    return _Step(OperationCosts(job)).made()


class _Step:
    def __init__(self, costs: OperationCosts) -> None:
        self.costs, self.job, self.layout = costs, costs.job, costs.job.layout
        self.lengths = self.job.model.lengths(self.job.sequence)
        self.held = self._held()

    def made(self) -> Roofline:
        """All microbatches through the slowest rank of the pipeline, which sets the pace, and the end of the step."""
        job, layout = self.job, self.layout
        m, p, v = layout.microbatches(job.batch), layout.pipeline, layout.interleave
        forward, backward, again = self._of_layer()
        counts, head, sums = layers_of(layout.pipeline, job.model.layers), self._head(), self._accumulation(m)
        layer = forward + backward + again
        slow = max(range(p), key=lambda i: counts[i] * layer.total + (head if i == p - 1 else 0.0))
        own = head if slow == p - 1 else 0.0
        passing = job.model.layers / p * layer.total + sums
        seconds = {
            "compute": m * (counts[slow] * (forward.work + backward.work) + own + sums),
            "recompute": m * counts[slow] * again.work,
            "tensor parallel": m * counts[slow] * layer.communication,
            "experts": m * counts[slow] * layer.sent,
            "bubble": (p - 1) / v * passing,
            "pipeline sends": 2 * v * m * self.costs.between.send(self._entering()) if p > 1 else 0.0,
            "gradients": self._gradients(counts[slow] * backward.total),
            "optimizer": self.costs.stream(ADAM_BYTES * self._updated()),
        }
        total = sum(seconds.values())
        flops = job.model.flops_per_token(job.sequence) * job.batch * job.sequence
        peak = job.instance.accelerator.peak(job.form) * layout.ranks
        return Roofline(total, seconds, self._bytes(), flops / peak / total, self.costs.assumed)

    def _layers(self) -> list[tuple[float, Block, int]]:
        """What share of all layers is which block, and its tokens of a sequence."""
        layers = self.job.model.layers
        return [(n / layers, block, length) for (n, block), length in zip(self.job.model.stacks, self.lengths)]

    def _of_layer(self) -> tuple[LayerPass, LayerPass, LayerPass]:
        """Seconds of the mean layer: forward, backward, made again."""
        found = [LayerPass(), LayerPass(), LayerPass()]
        for share, block, length in self._layers():
            layer = GpuLayer(self.costs, block, length, self.lengths[0])
            found = [sum_ + one.times(share) for sum_, one in zip(found, layer.passes())]
        return found[0], found[1], found[2]

    def _head(self) -> float:
        """Logits, loss and back, on the last stage."""
        model, costs, layout = self.job.model, self.costs, self.layout
        share = model.share(model.stacks[-1][1], ShardSpec(layout.microbatch, self.job.sequence, layout.tensor))
        found = readings.of_head(model, share, costs.spread)
        seconds = 3 * sum(costs.product(*product) for product in found.products)
        seconds += 2.5 * sum(map(costs.stream, found.streams))  # as of blocks: 1.5 times as long on the way back
        return seconds + 6 * costs.stream(FULL * found.leaving)

    def _accumulation(self, microbatches: int) -> float:
        """Seconds a microbatch to add gradients to sums in float32, which are read and written."""
        return self.costs.stream(2 * FULL * self.held.total) if microbatches > 1 else 0.0

    def _entering(self) -> float:
        """Bytes between two stages, of which each tensor parallel rank sends a part."""
        tokens = self.layout.microbatch * self.job.model.between(self.job.sequence)
        return HALF * tokens * self.job.model.hidden / self.layout.tensor

    def _held(self) -> RankParameters:
        model, layout = self.job.model, self.layout
        experts = sum(n * block.expert_parameters for n, block in model.stacks) / layout.pipeline
        blocks = sum(n * (block.parameters - block.expert_parameters) for n, block in model.stacks) / layout.pipeline
        ends = model.embedding_parameters + model.head_parameters
        if layout.pipeline > 1:
            ends = max(model.embedding_parameters, model.head_parameters)
        common = blocks + ends + model.join_parameters
        return RankParameters(common / layout.tensor, experts / layout.tensor / layout.expert)

    def _updated(self) -> float:
        """Parameters whose state of the optimizer this rank has."""
        layout, held = self.layout, self.held
        return held.common / layout.data + held.experts / (layout.data / layout.expert) if layout.zero else held.total

    def _gradients(self, behind: float) -> float:
        """Exchange of gradients among data parallel ranks that nothing hides; behind: seconds of a backward pass."""
        layout, held = self.layout, self.held
        seconds = self.costs.summed(HALF * held.common, layout.data, layout.tensor)
        same = layout.data // layout.expert  # ranks that have the same experts
        seconds += self.costs.summed(HALF * held.experts, same, layout.tensor * layout.expert)
        return max(seconds - behind, 0.0) if self.job.software.overlap else seconds

    def _bytes(self) -> dict[str, float]:
        """Bytes of the first stage's rank (Korthikanti et al. 2022, equations 2 to 6; Rajbhandari et al. 2020)."""
        n = self.held.total
        return {
            "weights": HALF * n,
            "gradients": FULL * n,
            "optimizer": 12 * self._updated(),
            "activations": self._activations(),
        }

    def _activations(self) -> float:
        layout, job = self.layout, self.job
        p, v, m = layout.pipeline, layout.interleave, layout.microbatches(job.batch)
        held = min(m, p) if v == 1 else p * (1 + (p - 1) / (p * v))
        each = sum(
            share * activations(block, layout, length, job.software, self.lengths[0])
            for share, block, length in self._layers()
        )
        return each * job.model.layers / p * held
