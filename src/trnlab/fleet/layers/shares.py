# SPDX-License-Identifier: Apache-2.0
"""Which part of a model's work one rank has."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ShardSpec:
    """What of a model's work one rank has: `batch` sequences of `length` tokens, 1 / `context` of each, 1 / `tensor`
    of each layer, 1 / `expert` of the experts."""

    batch: int
    length: int
    tensor: int = 1
    form: str = "bfloat16"
    # "fused", or "remade" where the backward pass makes it once more; "written" and "again" are the same for
    # releases before there were kernels of it, see `attention.written`
    attention: str = "fused"
    network: str = "kept"  # "kept", or "again" where the backward pass makes what is inside a network once more
    context: int = 1
    expert: int = 1
    # whether ranks have parts of weights and gradients alone (ZeRO-3), so that gradients go to others in float32,
    # and no sums of a whole layer are kept
    sharded: bool = False
    # "kept", or "again" where the backward pass makes what is inside a block once more, and keeps what enters it
    # alone
    block: str = "kept"

    @property
    def tokens(self) -> int:
        """Tokens of a sequence that this rank's context has."""
        return self.length // self.context

    @property
    def again(self) -> bool:
        """Whether the backward pass makes attention once more."""
        return self.attention in ("remade", "again")


@dataclass(frozen=True)
class DecoderShare(ShardSpec):
    """A rank's share of such blocks: `length` tokens are decoded of each sequence, of which the encoder has read
    `memory`."""

    memory: int = 0
