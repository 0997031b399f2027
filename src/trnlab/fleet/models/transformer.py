# SPDX-License-Identifier: Apache-2.0
"""Transformers: stacks of equal blocks, an embedding and a head, each of which says what it computes.

Sizes are those of the whole model; `layout` divides them. Numbers of parameters and of operations are read from the
layers' own graphs (`counts`); parameters are the sums of the tensors that the public implementations have.
"""

from __future__ import annotations

from dataclasses import dataclass

from trnlab.fleet.layers.layers import Layers
from trnlab.fleet.layers.shares import ShardSpec
from trnlab.fleet.layers.sizes import Attention, Dense, Experts
from trnlab.fleet.models import counts
from trnlab.graph.ir import Value


@dataclass(frozen=True)
class Block:
    """One layer: attention and a network, with a norm before (or after) each."""

    hidden: int
    attention: Attention
    network: Dense | Experts
    norm: str = "rms"  # or "layer", which has biases

    def forward(self, layers: Layers, name: str, x: Value) -> Value:
        """x [..., H] -> the same."""
        x = layers.add(x, layers.attention(name, self.attention, layers.norm(name + "_1", x, self.norm)))
        return layers.add(x, layers.network(name, self.network, layers.norm(name + "_2", x, self.norm)))

    @property
    def parameters(self) -> int:
        """Parameters of the layer."""
        return counts.of_block(self).parameters

    @property
    def used(self) -> int:
        """Parameters that one token meets."""
        counted = counts.of_block(self)
        if not isinstance(self.network, Experts):
            return counted.parameters
        unmet = self.network.count - self.network.active
        return counted.parameters - counted.experts * unmet // self.network.count

    @property
    def expert_parameters(self) -> int:
        """Parameters of all its experts, without the router and the shared one."""
        return counts.of_block(self).experts


@dataclass(frozen=True)
class Model:
    """A name, its blocks in order, and what stands before and after them."""

    name: str
    hidden: int
    stacks: tuple[tuple[int, Block], ...]  # how many of which block
    sequence: int  # tokens that it is usually trained on
    vocabulary: int = 0  # rows of the embedding
    positions: int = 0  # rows of a learned table of positions, 0 without
    tied: bool = False  # whether the head is the embedding
    types: int = 0  # rows of a table of segments (BERT)
    final_norm: bool = True  # whether a norm follows the last block
    embedding_norm: bool = False  # whether one precedes the first
    patch: int = 0  # inputs of one patch of an image (ViT), which replace the vocabulary
    classes: int = 0  # of a head that is no vocabulary, with a bias
    # whether a matrix, an activation and a norm stand before the head, which then has a bias (BERT)
    transform: bool = False
    head_bias: bool = False  # whether the head has a bias where no transform stands before it
    source: str = ""  # where the sizes are from

    @property
    def layers(self) -> int:
        """Blocks of all stacks."""
        return sum(count for count, _ in self.stacks)

    @property
    def experts(self) -> int:
        """Experts of a layer, the least of all layers that have some; 0 where none has."""
        networks = [block.network for _, block in self.stacks]
        return min((network.count for network in networks if isinstance(network, Experts)), default=0)

    def embedding(self, layers: Layers) -> Value:
        """What enters the first block: [..., H] of token ids, or of an image's patches."""
        if self.patch:
            x = layers.patches(self.patch, self.hidden)
        else:
            x = layers.words(self.vocabulary, self.hidden)
        if self.positions:
            x = layers.positions(self.positions, x)
        if self.types:
            x = layers.segments(self.types, x)
        return layers.norm("embedding", x, self.stacks[0][1].norm) if self.embedding_norm else x

    def head(self, layers: Layers, x: Value) -> Value:
        """Scores of words, or of classes, from what leaves the last block."""
        kind = self.stacks[-1][1].norm
        if self.final_norm:
            x = layers.norm("final", x, kind)
        if self.classes:
            return layers.linear("head", layers.first(x), self.classes, bias=True)
        if self.transform:
            x = layers.activation(layers.linear("transform", x, self.hidden, bias=True), "gelu")
            x = layers.norm("transform", x, kind)
        return layers.logits(self.vocabulary, x, self.tied, bias=self.transform or self.head_bias)

    def join(self, layers: Layers, encoded: Value) -> Value:
        """What enters the first block of a decoder; see `encoder_decoder.EncoderDecoderModel`."""
        raise NotImplementedError

    def share(self, block: Block, spec: ShardSpec) -> ShardSpec:
        """A rank's share of this block, where that of the model's first blocks is `spec`."""
        return spec

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
        """What plans count of it: tokens, or what has none (see `unpartitioned.UnpartitionedModel`)."""
        return "tokens"

    @property
    def decoded(self) -> int:
        """Tokens of each sequence that are not among its own: see `encoder_decoder.EncoderDecoderModel`."""
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
        return counts.of_ends(self).embedding

    @property
    def join_parameters(self) -> int:
        """Parameters of what lies between an encoder and a decoder."""
        return counts.of_ends(self).join

    @property
    def head_parameters(self) -> int:
        """Parameters of what follows the last block."""
        return counts.of_ends(self).head

    @property
    def final_norm_parameters(self) -> int:
        """Parameters of the norm that follows the last block."""
        return counts.of_ends(self).final_norm

    def flops_per_token(self, sequence: int) -> float:
        """Operations per token, forward and backward, see `counts.operations`."""
        return counts.operations(self, sequence) / sequence
