# SPDX-License-Identifier: Apache-2.0
"""Models of an encoder and a decoder that attends to what the encoder made of its input: T5, Whisper.

A sequence is what the encoder reads; each has `decoded` tokens that the decoder writes. Numbers of parameters are the
sums of the tensors that the public implementations have.
"""

from __future__ import annotations

from dataclasses import dataclass

from trnlab.fleet.layers.layers import Layers
from trnlab.fleet.layers.shares import DecoderShare, ShardSpec
from trnlab.fleet.layers.sizes import Attention
from trnlab.fleet.models.transformer import Block, Model
from trnlab.graph.ir import Value


@dataclass(frozen=True, kw_only=True)
class DecoderBlock(Block):
    """A block that attends to the encoder between its own attention and its network, with a norm before that."""

    cross: Attention

    def forward(self, layers: Layers, name: str, x: Value) -> Value:
        """x [..., H] -> the same."""
        x = layers.add(x, layers.attention(name, self.attention, layers.norm(name + "_1", x, self.norm)))
        met = layers.norm(name + "_cross", x, self.norm)
        x = layers.add(x, layers.cross_attention(name + "_cross", self.cross, met))
        return layers.add(x, layers.network(name, self.network, layers.norm(name + "_2", x, self.norm)))


@dataclass(frozen=True)
class EncoderDecoderModel(Model):
    """An encoder, and a decoder that attends to it: the two are its `stacks`."""

    decoded: int = 128  # tokens of the decoder for each sequence
    written: int = 0  # rows of the decoder's table of positions, 0 without
    # channels of a frame of sound, which then is what the encoder reads, in the place of tokens; `patch` is what one
    # of its tokens is made of
    mels: int = 0

    def embedding(self, layers: Layers) -> Value:
        """What enters the encoder. The positions of sound are fixed, but a tensor."""
        if not self.mels:
            return layers.words(self.vocabulary, self.hidden)
        return layers.positions(self.positions, layers.frames(self.mels, self.hidden), trained=False)

    def join(self, layers: Layers, encoded: Value) -> Value:
        """What enters the decoder; it attends to a norm of what the encoder's last block gives."""
        self.read(layers, encoded)
        return self.begin(layers)

    def read(self, layers: Layers, encoded: Value) -> None:
        """The norm of what the encoder's last block gives, which the decoder attends to."""
        layers.remember(layers.norm("read", encoded, self.stacks[0][1].norm))

    def begin(self, layers: Layers) -> Value:
        """What enters the decoder's first block."""
        x = layers.words(self.vocabulary, self.hidden)
        return layers.positions(self.written, x, "written") if self.written else x

    def share(self, block: Block, spec: ShardSpec) -> ShardSpec:
        """A rank's share of this block, where that of the encoder's is `spec`."""
        if not isinstance(block, DecoderBlock):
            return spec
        return DecoderShare(**vars(spec) | {"length": self.decoded}, memory=spec.length)

    @property
    def unit(self) -> str:
        """What is counted of it."""
        return "clips" if self.mels else "tokens"

    def lengths(self, sequence: int) -> tuple[int, ...]:
        """Tokens of a sequence in the blocks of each stack."""
        return sequence, self.decoded

    def between(self, sequence: int) -> int:
        """Tokens of a sequence that go from one stage to the next, where they are most: those of the decoder, and
        the encoder's for stages that follow."""
        return sequence + self.decoded

    def tables(self, join: int, last: int) -> list[int]:
        """Ranks of a pipeline that have the table of words, first the one that it is counted for."""
        return [*([] if self.mels else [0]), join, *([last] if self.tied else [])]
