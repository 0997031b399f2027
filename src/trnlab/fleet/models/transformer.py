# SPDX-License-Identifier: Apache-2.0
"""Transformers as a plan sees them: stacks of equal blocks, an embedding and a head.

Sizes are those of the whole model; `layout` divides them. Numbers of parameters are exact: they are the sums of the
tensors that the public implementations have.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Attention:
    """Heads of `size` for queries and keys, and of `value_size` for values; fewer of keys where they are shared.

    bias: of the four projections: "all", "qkv", "unkeyed" (all but the keys') or "none". q_rank, kv_rank: of the
    low-rank projections that DeepSeek's models have in the place of full ones (multi-head latent attention), 0
    without; rope_size: the part of `size` that carries positions there. norms: of queries and keys, each of a
    head's size.
    """

    heads: int
    kv_heads: int
    size: int
    value_size: int
    causal: bool = True
    rope: bool = True
    bias: str = "none"
    q_rank: int = 0
    kv_rank: int = 0
    rope_size: int = 0
    norms: bool = False

    def parameters(self, hidden: int) -> int:
        """Parameters of all projections."""
        out = self.heads * self.value_size * hidden
        if self.kv_rank:
            return self._low_rank(hidden) + out
        widths = (self.heads + self.kv_heads) * self.size + self.kv_heads * self.value_size
        unkeyed = widths - self.kv_heads * self.size + hidden
        biases = {"none": 0, "qkv": widths, "all": widths + hidden, "unkeyed": unkeyed}[self.bias]
        return widths * hidden + out + biases + (2 * self.size if self.norms else 0)

    def _low_rank(self, hidden: int) -> int:
        rank, plain = self.kv_rank, self.size - self.rope_size
        queries = self.heads * self.size
        down = hidden * (rank + self.rope_size) + rank  # with the norm of what is compressed
        up = rank * self.heads * (plain + self.value_size)
        asked = hidden * self.q_rank + self.q_rank + self.q_rank * queries if self.q_rank else hidden * queries
        return asked + down + up


@dataclass(frozen=True)
class Dense:
    """Two matrices with an activation between them; a third, which gates, where `gated`."""

    size: int
    gated: bool = True
    bias: bool = False

    def parameters(self, hidden: int) -> int:
        """Parameters of all matrices."""
        return (3 if self.gated else 2) * hidden * self.size + (self.size + hidden if self.bias else 0)

    @property
    def function(self) -> str:
        """The activation."""
        return "silu" if self.gated else "gelu"


@dataclass(frozen=True)
class Acting(Dense):
    """With an activation that is not the usual one: "relu", "gelu" or "silu"."""

    function: str = "relu"


@dataclass(frozen=True)
class Experts:
    """`count` networks, of which a router takes `active` for each token; `shared`: the size of one that all take.

    capacity: places for rows of an expert, in multiples of what an even router sends.
    """

    count: int
    active: int
    size: int
    shared: int = 0
    gated: bool = True
    capacity: float = 1.0

    def parameters(self, hidden: int) -> int:
        """Parameters of all experts and the router."""
        return self.count * self.each(hidden) + self._common(hidden)

    def used(self, hidden: int) -> int:
        """Parameters of those that one token meets."""
        return self.active * self.each(hidden) + self._common(hidden)

    def each(self, hidden: int) -> int:
        """Parameters of one expert."""
        return Dense(self.size, self.gated).parameters(hidden)

    def _common(self, hidden: int) -> int:
        return self.count * hidden + (Dense(self.shared, self.gated).parameters(hidden) if self.shared else 0)


@dataclass(frozen=True)
class Block:
    """One layer: attention and a network, with a norm before (or after) each."""

    hidden: int
    attention: Attention
    network: Dense | Experts
    norm: str = "rms"  # or "layer", which has biases

    @property
    def parameters(self) -> int:
        """Parameters of the layer."""
        return (
            self.attention.parameters(self.hidden) + self.network.parameters(self.hidden) + 2 * self.norm_parameters
        )

    @property
    def used(self) -> int:
        """Parameters that one token meets."""
        if isinstance(self.network, Dense):
            return self.parameters
        return self.parameters - self.network.parameters(self.hidden) + self.network.used(self.hidden)

    @property
    def expert_parameters(self) -> int:
        """Parameters of all its experts, without the router and the shared one."""
        return self.network.count * self.network.each(self.hidden) if isinstance(self.network, Experts) else 0

    @property
    def norm_parameters(self) -> int:
        """Parameters of one of its norms."""
        return self.hidden * (2 if self.norm == "layer" else 1)


@dataclass(frozen=True)
class Model:
    """A name, its blocks in order, and what stands before and after them.

    stacks: how many of which block. vocabulary: rows of the embedding. positions: rows of a learned table of
    positions, 0 without. tied: whether the head is the embedding. types: rows of a table of segments (BERT).
    sequence: tokens that it is usually trained on. final_norm: whether a norm follows the last block. embedding_norm:
    whether one precedes the first. patch: inputs of one patch of an image (ViT), which replace the vocabulary.
    classes: of a head that is no vocabulary, with a bias. transform: whether a matrix, an activation and a norm stand
    before the head, which then has a bias (BERT). source: where the sizes are from.
    """

    name: str
    hidden: int
    stacks: tuple[tuple[int, Block], ...]
    sequence: int
    vocabulary: int = 0
    positions: int = 0
    tied: bool = False
    types: int = 0
    final_norm: bool = True
    embedding_norm: bool = False
    patch: int = 0
    classes: int = 0
    transform: bool = False
    source: str = ""

    @property
    def layers(self) -> int:
        """Blocks of all stacks."""
        return sum(count for count, _ in self.stacks)

    @property
    def experts(self) -> int:
        """Experts of a layer, the least of all layers that have some; 0 where none has."""
        networks = [block.network for _, block in self.stacks]
        return min((network.count for network in networks if isinstance(network, Experts)), default=0)

    @property
    def parameters(self) -> int:
        """Parameters of the whole model."""
        return self._ends + sum(n * block.parameters for n, block in self.stacks)

    @property
    def used(self) -> int:
        """Parameters that one token meets."""
        return self._ends + sum(n * block.used for n, block in self.stacks)

    @property
    def _ends(self) -> int:
        return self.embedding_parameters + self.join_parameters + self.head_parameters

    @property
    def unit(self) -> str:
        """What is counted of it, images or tokens."""
        return "images" if self.patch else "tokens"

    @property
    def counted(self) -> str:
        """What plans count of it: tokens, or what has none (see `wholes.Whole`)."""
        return "tokens"

    @property
    def decoded(self) -> int:
        """Tokens of each sequence that are not among its own: see `pairs.Pair`."""
        return 0

    @property
    def join_parameters(self) -> int:
        """Parameters of what lies between an encoder and a decoder; see `pairs.Pair`."""
        return 0

    def lengths(self, sequence: int) -> tuple[int, ...]:
        """Tokens of a sequence in the blocks of each stack."""
        return (sequence,) * len(self.stacks)

    def between(self, sequence: int) -> int:
        """Tokens of a sequence that go from one stage of a pipeline to the next, at most."""
        return sequence

    def tables(self, join: int, last: int) -> list[int]:
        """Ranks of a pipeline that have the table of words, first the one that it is counted for. join: the one where
        the last stack begins."""
        return [0, last] if self.tied else [0]

    @property
    def embedding_parameters(self) -> int:
        """Parameters of what precedes the first block."""
        rows = self.vocabulary + self.positions + self.types + self.patch
        extra = 2 * self.hidden if self.patch else 0  # the patches' bias and the class token
        return rows * self.hidden + extra + (self._norm if self.embedding_norm else 0)

    @property
    def head_parameters(self) -> int:
        """Parameters of what follows the last one."""
        own = 0 if self.tied or self.classes else self.vocabulary * self.hidden
        before = self.hidden * (self.hidden + 1) + self._norm + self.vocabulary if self.transform else 0
        return own + before + self.classes * (self.hidden + 1) + (self._norm if self.final_norm else 0)

    @property
    def _norm(self) -> int:
        return self.stacks[0][1].norm_parameters

    def flops_per_token(self, sequence: int) -> float:
        """Forward and backward: 6 for each parameter that a token meets in a product, and attention's products
        (Narayanan et al. 2021; PaLM, appendix B), the masked half of causal ones left out."""
        table = (self.vocabulary + self.positions + self.types) * self.hidden
        products = self.used - table + (self.vocabulary * self.hidden if self.tied else 0)
        attention = sum(
            n
            * block.attention.heads
            * (block.attention.size + block.attention.value_size)
            * (0.5 if block.attention.causal else 1.0)
            for n, block in self.stacks
        )
        return 6.0 * products + 6.0 * sequence * attention
