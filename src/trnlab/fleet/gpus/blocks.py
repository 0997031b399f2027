# SPDX-License-Identifier: Apache-2.0
"""What a layer of a transformer takes on a GPU, and what it keeps, from what `readings` finds in its graph.

Layers are divided as Megatron does it: tensor parallel ranks share products and heads, and with sequence parallelism
what lies between them (Korthikanti et al. 2022, arXiv:2205.05198). Experts are divided among neighbours of the data
parallel ranks, and each one's columns among tensor parallel ranks; every expert gets as many rows as a router fills
that sends the same to all, and none is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from trnlab.fleet.gpus import readings
from trnlab.fleet.gpus.costs import HALF, OperationCosts, Software
from trnlab.fleet.gpus.readings import AttentionCore, Reading
from trnlab.fleet.layers.shares import DecoderShare
from trnlab.fleet.models.transformer import Block
from trnlab.fleet.search.layout import Layout

SCORES = 5  # bytes of a score that are kept: of its softmax, of what a dropout made of that, and of the mask


@dataclass(frozen=True)
class LayerPass:
    """Seconds of a layer, one way: products and what streams through memory; exposed exchange among tensor parallel
    ranks; rows sent to experts and back."""

    work: float = 0.0
    communication: float = 0.0
    sent: float = 0.0

    def __add__(self, other: LayerPass) -> LayerPass:
        return LayerPass(self.work + other.work, self.communication + other.communication, self.sent + other.sent)

    def times(self, n: float) -> LayerPass:
        """So many of it."""
        return LayerPass(self.work * n, self.communication * n, self.sent * n)

    @property
    def total(self) -> float:
        """The sum of all."""
        return self.work + self.communication + self.sent


@dataclass(frozen=True)
class LayerSeconds:
    """Seconds of a layer, forward."""

    linears: float  # products with weights
    products: float  # of attention's core
    streams: float  # of its scores through memory
    rest: float  # norms, dropouts, activations, rows put in order of their experts

    @property
    def work(self) -> float:
        """All of it."""
        return self.linears + self.products + self.streams + self.rest


@dataclass(frozen=True)
class GpuLayer:
    """A block over `length` tokens of each sequence; `memory`: those of the encoder, where it attends to one."""

    costs: OperationCosts
    block: Block
    length: int
    memory: int = 0

    @cached_property
    def reading(self) -> Reading:
        """What its graph says."""
        return _reading(self.block, self.costs.layout, self.costs.job.software, self.length, self.memory)

    def passes(self) -> tuple[LayerPass, LayerPass, LayerPass]:
        """Forward, backward, and what is made again between them."""
        parts, layout, software = self.parts(), self.costs.layout, self.costs.job.software
        there, back = self._talk()
        sent = sum(self.costs.shuffled(nbytes, layout.expert, layout.tensor) for nbytes in self.reading.sent)
        forward = LayerPass(parts.work, there, sent)
        again = 2.5 if software.fused else 2.0  # fused attention makes its scores again by itself
        work = 2 * parts.linears + again * parts.products + 1.25 * parts.streams + 1.5 * parts.rest
        backward = LayerPass(work, back, sent)
        if layout.recompute == "full":
            return forward, backward, forward
        if layout.recompute == "selective" and not software.fused:
            return forward, backward, LayerPass(parts.products + parts.streams)
        return forward, backward, LayerPass()

    def parts(self) -> LayerSeconds:
        """What the forward pass takes, apart from exchange."""
        costs, cores = self.costs, [self._core(core) for core in self.reading.cores]
        return LayerSeconds(
            sum(costs.product(*product) for product in self.reading.products),
            sum(products for products, _ in cores),
            sum(streams for _, streams in cores),
            sum(map(costs.stream, self.reading.streams)),
        )

    def _core(self, core: AttentionCore) -> tuple[float, float]:
        """Attention between its projections: products, and what streams through memory."""
        costs, columns = self.costs, core.size + core.value_size
        if costs.job.software.fused:
            flops = 2.0 * core.scores * columns * (0.5 if core.causal else 1.0)
            moved = HALF * (core.length + core.keys) * core.count * columns
            return costs.operations(flops) + costs.stream(moved), 0.0
        products = costs.product(core.length, core.size, core.keys, core.count)
        products += costs.product(core.length, core.keys, core.value_size, core.count)
        softmax, dropout = costs.stream(2 * HALF * core.scores), costs.stream((2 * HALF + 1) * core.scores)
        return products, softmax + dropout

    def _talk(self) -> tuple[float, float]:
        """Seconds in which tensor parallel ranks exchange, forward and backward. What is gathered and what is added
        up change places on the way back. With sequence parallelism what was gathered is not kept, but gathered
        again; without it nothing is gathered, and all ranks get the whole sums."""
        ring, ranks, found = self.costs.inside.ring, self.costs.layout.tensor, self.reading.exchanges
        if self.costs.job.software.sequence_parallel:
            there = sum(ring(x.gathered + x.summed, ranks) for x in found)
            return there, there + sum(ring(x.gathered, ranks) for x in found)
        return sum(ring(x.summed, ranks, 2) for x in found), sum(ring(x.gathered, ranks, 2) for x in found)


def _reading(block: Block, layout: Layout, software: Software, length: int, memory: int) -> Reading:
    share = DecoderShare(layout.microbatch, length, layout.tensor, expert=layout.expert, memory=memory)
    return readings.of_block(block, share, layout.tensor if software.sequence_parallel else 1)


def activations(block: Block, layout: Layout, length: int, software: Software, memory: int = 0) -> float:
    """Bytes that a layer keeps of one microbatch on one rank (Korthikanti et al. 2022, table 2)."""
    found = _reading(block, layout, software, length, memory)
    if layout.recompute == "full":
        return HALF * found.entering
    if software.fused or layout.recompute == "selective":
        return found.kept
    return found.kept + SCORES * sum(core.scores for core in found.cores)
