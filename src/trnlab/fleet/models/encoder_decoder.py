# SPDX-License-Identifier: Apache-2.0
"""Models of an encoder and a decoder that attends to what the encoder made of its input: T5, Whisper.

A sequence is what the encoder reads; each has `decoded` tokens that the decoder writes. Numbers of parameters are the
sums of the tensors that the public implementations have.
"""

from __future__ import annotations

from dataclasses import dataclass

from trnlab.fleet.models.transformer import Attention, Block, Model

TAPS = 3  # frames that each of an audio encoder's two convolutions looks at (arXiv:2212.04356, section 2.2)
STRIDE = 2  # frames that the second of them makes one token of


@dataclass(frozen=True)
class Relative(Attention):
    """Attention whose scores have a learned bias by distance, and are not scaled (T5). buckets: of distances."""

    buckets: int = 32


@dataclass(frozen=True, kw_only=True)
class Crossed(Block):
    """A block that attends to the encoder between its own attention and its network, with a norm before that."""

    cross: Attention

    @property
    def parameters(self) -> int:
        """Parameters of the layer."""
        return super().parameters + self.cross.parameters(self.hidden) + self.norm_parameters


@dataclass(frozen=True)
class Pair(Model):
    """stacks: the encoder's blocks and the decoder's. decoded: tokens of the decoder for each sequence. written: rows
    of the decoder's table of positions, 0 without. mels: channels of a frame of sound, which then is what the encoder
    reads, in the place of tokens; `patch` is what one of its tokens is made of."""

    decoded: int = 128
    written: int = 0
    mels: int = 0

    @property
    def unit(self) -> str:
        """What is counted of it."""
        return "clips" if self.mels else "tokens"

    @property
    def embedding_parameters(self) -> int:
        """Parameters of what precedes the encoder."""
        if self.mels:
            convolutions = TAPS * self.hidden * (self.mels + self.hidden) + 2 * self.hidden
            return convolutions + self.positions * self.hidden
        return self.vocabulary * self.hidden + _bias(self.stacks[0][1])

    @property
    def join_parameters(self) -> int:
        """Parameters of what lies between both: a norm of what the encoder made, and what precedes the
        decoder."""
        words = self.vocabulary * self.hidden if self.mels else 0
        return self._norm + words + self.written * self.hidden + _bias(self.stacks[-1][1])

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

    def flops_per_token(self, sequence: int) -> float:
        """Floating-point operations per token of each token that the encoder reads, what is written of it
        included; see `Model.flops_per_token`."""
        (encoders, one), (decoders, two) = self.stacks
        assert isinstance(two, Crossed)
        keys = self.hidden * two.cross.kv_heads * (two.cross.size + two.cross.value_size)
        read = encoders * one.parameters + decoders * keys
        if self.mels:
            read += TAPS * self.hidden * (STRIDE * self.mels + self.hidden)
        written = decoders * (two.parameters - keys) + self.vocabulary * self.hidden
        near = encoders * _pairs(one.attention) * sequence
        far = decoders * (_pairs(two.attention) * self.decoded / sequence + _pairs(two.cross)) * self.decoded
        return 6.0 * (read + written * self.decoded / sequence) + 6.0 * (near + far)


def _bias(block: Block) -> int:
    """Parameters of a stack's bias by distance."""
    a = block.attention
    return a.buckets * a.heads if isinstance(a, Relative) else 0


def _pairs(a: Attention) -> float:
    return a.heads * (a.size + a.value_size) * (0.5 if a.causal else 1.0)
