# SPDX-License-Identifier: Apache-2.0
"""A layer of a transformer on a GPU: its products, what streams through memory, what ranks exchange, what is kept.

Layers are divided as Megatron does it: tensor parallel ranks share products and heads, and with sequence parallelism
what lies between them (Korthikanti et al. 2022, arXiv:2205.05198). Experts are divided among neighbours of the data
parallel ranks, and each one's columns among tensor parallel ranks; every expert gets as many rows as a router fills
that sends the same to all, and none is dropped.

b sequences, s tokens, h hidden size, t tensor parallel ranks, e expert parallel ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

from trnlab.fleet.gpus.costs import HALF, Costs, Software
from trnlab.fleet.layers.sizes import Attention, Dense, Experts
from trnlab.fleet.models.encoder_decoder import Crossed
from trnlab.fleet.models.transformer import Block
from trnlab.fleet.search.layout import Layout


@dataclass(frozen=True)
class Pass:
    """Seconds of a layer, one way: products and what streams through memory; exposed exchange among tensor parallel
    ranks; rows sent to experts and back."""

    work: float = 0.0
    talk: float = 0.0
    sent: float = 0.0

    def __add__(self, other: Pass) -> Pass:
        return Pass(self.work + other.work, self.talk + other.talk, self.sent + other.sent)

    def times(self, n: float) -> Pass:
        """So many of it."""
        return Pass(self.work * n, self.talk * n, self.sent * n)

    @property
    def total(self) -> float:
        """The sum of all."""
        return self.work + self.talk + self.sent


@dataclass(frozen=True)
class Parts:
    """Seconds of a part of a layer, forward. linears: products with weights. products: of attention's core. streams:
    of its scores through memory. rest: norms, biases, dropouts, activations. talk: tensor parallel ranks gather what
    enters it and add up what leaves. gather: the first of these. sent: one all-to-all to experts, of two."""

    linears: float = 0.0
    products: float = 0.0
    streams: float = 0.0
    rest: float = 0.0
    talk: float = 0.0
    gather: float = 0.0
    sent: float = 0.0

    def __add__(self, other: Parts) -> Parts:
        return Parts(*(a + b for a, b in zip(vars(self).values(), vars(other).values())))


@dataclass(frozen=True)
class Layer:
    """A block over `length` tokens of each sequence; `memory`: those of the encoder, where it attends to one."""

    costs: Costs
    block: Block
    length: int
    memory: int = 0

    @property
    def tokens(self) -> int:
        """Tokens of a microbatch."""
        return self.costs.layout.microbatch * self.length

    def passes(self) -> tuple[Pass, Pass, Pass]:
        """Forward, backward, and what is made again between them."""
        parts, costs = self._parts(), self.costs
        layout, software = costs.layout, costs.job.software
        work = parts.linears + parts.products + parts.streams + parts.rest
        forward = Pass(work, parts.talk, 2 * parts.sent)
        again = 2.5 if software.fused else 2.0  # fused attention makes its scores again by itself
        # With sequence parallelism what was gathered is not kept, but gathered again.
        talk = parts.talk + (parts.gather if software.sequence_parallel else 0.0)
        work = 2 * parts.linears + again * parts.products + 1.25 * parts.streams + 1.5 * parts.rest
        backward = Pass(work, talk, 2 * parts.sent)
        if layout.recompute == "full":
            return forward, backward, forward
        if layout.recompute == "selective" and not software.fused:
            return forward, backward, Pass(parts.products + parts.streams)
        return forward, backward, Pass()

    def _parts(self) -> Parts:
        """Parts of attention, of what looks at the encoder, and of the network."""
        block = self.block
        found = self._attention(block.attention, self.length)
        if isinstance(block, Crossed):
            found += self._attention(block.cross, self.memory, crossed=True)
        return found + (
            self._dense(block.network) if isinstance(block.network, Dense) else self._experts(block.network)
        )

    def _attention(self, a: Attention, keys: int, crossed: bool = False) -> Parts:
        """Between its norm and its sum; keys: tokens that each one looks at."""
        costs, h, t, x = self.costs, self.block.hidden, self.costs.layout.tensor, self.tokens
        out = costs.product(x, a.heads * a.value_size / t, h)
        products, streams = self._core(a, keys)
        made = self._projected(a, keys if crossed else 0)
        return Parts(made + out, products, streams, self._between(), *self._talk(x))

    def _projected(self, a: Attention, memory: int) -> float:
        """Seconds to make queries, keys and values; memory: tokens of each sequence that have keys of their own."""
        costs, h, t, x = self.costs, self.block.hidden, self.costs.layout.tensor, self.tokens
        asked, kept = a.heads * a.size / t, (a.kv_heads * (a.size + a.value_size)) / t
        if a.kv_rank:  # low ranks are made of each rank's own rows
            up = a.heads * (a.size - a.rope_size + a.value_size) / t
            own = costs.product(x / costs.spread, h, a.kv_rank + a.rope_size) + costs.product(x, a.kv_rank, up)
            if not a.q_rank:
                return own + costs.product(x, h, asked)
            return own + costs.product(x / costs.spread, h, a.q_rank) + costs.product(x, a.q_rank, asked)
        if memory:
            return costs.product(x, h, asked) + costs.product(costs.layout.microbatch * memory, h, kept)
        return costs.product(x, h, asked + kept)

    def _core(self, a: Attention, keys: int) -> tuple[float, float]:
        """Attention between its projections: products, and what streams through memory."""
        costs, s, t = self.costs, self.length, self.costs.layout.tensor
        count, fused = costs.layout.microbatch * a.heads / t, costs.job.software.fused
        if fused:
            flops = 2.0 * count * s * keys * (a.size + a.value_size) * (0.5 if a.causal else 1.0)
            moved = HALF * (s + keys) * count * (a.size + a.value_size)
            return costs.operations(flops) + costs.stream(moved), 0.0
        products = costs.product(s, a.size, keys, count) + costs.product(s, keys, a.value_size, count)
        scores = count * s * keys
        softmax, dropout = costs.stream(2 * HALF * scores), costs.stream((2 * HALF + 1) * scores)
        return products, softmax + dropout

    def _between(self) -> float:
        """A norm, and the dropout and the sum that follow."""
        elements = self.tokens * self.block.hidden / self.costs.spread
        return self.costs.stream(2 * HALF * elements) + self.costs.stream((3 * HALF + 1) * elements)

    def _dense(self, network: Dense) -> Parts:
        costs, x = self.costs, self.tokens
        linears, acted = self._network(network, x)
        return Parts(linears, 0.0, 0.0, self._between() + costs.stream(acted), *self._talk(x))

    def _network(self, network: Dense, rows: float, count: float = 1) -> tuple[float, float]:
        """Cost of `count` networks, each for so many rows: seconds of products, bytes of the activation."""
        costs, h, inner = self.costs, self.block.hidden, network.size / self.costs.layout.tensor
        up = costs.product(rows, h, inner * (2 if network.gated else 1), count)
        return up + costs.product(rows, inner, h, count), (3 if network.gated else 2) * HALF * count * rows * inner

    def _experts(self, network: Experts) -> Parts:
        """A router over each rank's own rows; rows go to experts and come back, where they are weighed."""
        costs, layout, h = self.costs, self.costs.layout, self.block.hidden
        own, here = self.tokens / costs.spread, network.count / layout.expert
        rows = network.active * self.tokens  # from all ranks, as many as go away
        linears, acted = self._network(Dense(network.size, network.gated), rows / here, here)
        linears += costs.product(own, h, network.count)
        moved = costs.stream(2 * HALF * network.active * own * h)  # put in order of their experts, and back again
        rest = self._between() + costs.stream(acted) + 2 * moved
        if network.shared:
            more, through = self._network(Dense(network.shared, network.gated), self.tokens)
            linears, rest = linears + more, rest + costs.stream(through)
        sent = costs.shuffled(HALF * network.active * own * h, layout.expert, layout.tensor)
        gathered = rows + (self.tokens if network.shared else 0)
        return Parts(linears, 0.0, 0.0, rest, *self._talk(gathered), sent)

    def _talk(self, rows: float) -> tuple[float, float]:
        """Seconds in which tensor parallel ranks gather so many rows and add up as many; and of the gather alone."""
        ring, nbytes = self.costs.inside.ring, HALF * rows * self.block.hidden
        return ring(nbytes, self.costs.layout.tensor, 2), ring(nbytes, self.costs.layout.tensor)


def activations(block: Block, layout: Layout, length: int, software: Software, memory: int = 0) -> float:
    """Bytes that a layer keeps of one microbatch on one rank (Korthikanti et al. 2022, table 2, in which heads and
    networks are as wide as GPT's: 8 s b h of queries, keys, values and what attention made, 16 of the network)."""
    t, rows = layout.tensor, layout.microbatch * length
    whole = rows * block.hidden
    if layout.recompute == "full":
        return 2.0 * whole / (t if software.sequence_parallel else 1)
    divided = float(_kept_of_network(block)) * rows
    looked = [(block.attention, length)] + ([(block.cross, memory)] if isinstance(block, Crossed) else [])
    for a, keys in looked:
        divided += HALF * (rows * a.heads * (a.size + a.value_size))
        divided += HALF * layout.microbatch * keys * a.kv_heads * (a.size + a.value_size)
        if not (software.fused or layout.recompute == "selective"):
            divided += 5.0 * layout.microbatch * a.heads * length * keys
    common = 5.0 * whole * (1 + len(looked))  # of each: a norm's input, the products', and the dropout's mask
    return (common + divided) / t if software.sequence_parallel else common + divided / t


def _kept_of_network(block: Block) -> int:
    """Bytes of each token inside of the network, on all ranks."""
    network = block.network
    if isinstance(network, Dense):
        return _inner(network.size, network.gated)
    sent = 2 * HALF * network.active * block.hidden  # what experts read, and what they made, to be weighed
    return network.active * _inner(network.size, network.gated) + sent + _inner(network.shared, network.gated)


def _inner(size: int, gated: bool) -> int:
    return HALF * size * (3 if gated else 2)
