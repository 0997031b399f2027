# SPDX-License-Identifier: Apache-2.0
"""Which part of a model's work one rank has."""

from __future__ import annotations

from dataclasses import dataclass

from trnlab.stacks import KERNEL, WRITTEN

FILLED = 1.5  # heads of all ranks together, in multiples of the model's: with more a smaller group is as quick


def heads_of_rank(heads: int, kv_heads: int, ranks: int) -> tuple[int, int]:
    """Heads of queries and of keys that each of so many ranks has. Where ranks do not divide them, heads that compute
    nothing are added: to each group that shares a head of keys where every rank can have one such head (repeated on
    the ranks of the group), to all elsewhere, each then with keys of its own. As NxD Inference does it
    (modules/attention/gqa.py, REPLICATE_TO_TP_DEGREE and CONVERT_TO_MHA: documented)."""
    if kv_heads % ranks == 0:
        return heads // ranks, kv_heads // ranks
    if ranks % kv_heads == 0:
        return -(-(heads // kv_heads) // (ranks // kv_heads)), 1
    each = -(-heads // ranks)
    return each, each


def filled(heads: int, kv_heads: int, ranks: int) -> float:
    """Heads of queries that so many ranks have together, as a multiple of the model's: 1.0 where they divide them."""
    return heads_of_rank(heads, kv_heads, ranks)[0] * ranks / heads


AGAIN = {KERNEL: "remade", WRITTEN: "again"}  # attention that the backward pass makes once more, by what it was
ONCE = {again: once for once, again in AGAIN.items()}


@dataclass(frozen=True)
class ShardSpec:
    """What of a model's work one rank has: `batch` sequences of `length` tokens, 1 / `context` of each, 1 / `tensor`
    of each layer, 1 / `expert` of the experts."""

    batch: int
    length: int
    tensor: int = 1
    form: str = "bfloat16"
    # "kernel", or "remade" where the backward pass makes it once more; "written" and "again" are the same for
    # releases before there were kernels of it, see `attention.written`
    attention: str = KERNEL
    network: str = "kept"  # "kept", or "again" where the backward pass makes what is inside a network once more
    context: int = 1
    expert: int = 1
    # whether ranks have parts of weights and gradients alone (ZeRO-3), so that gradients go to others in float32,
    # and no sums of a whole layer are kept
    sharded: bool = False
    # "kept", or "again" where the backward pass makes what is inside a block once more, and keeps what enters it
    # alone
    block: str = "kept"
    # "divided" by the sequence among the ranks of a tensor group, or "whole" on each of them, which then exchange
    # twice as much at a time and compute what lies between layers each for themselves (Megatron-LM's tensor
    # parallelism without sequence parallelism)
    residual: str = "divided"

    @property
    def tokens(self) -> int:
        """Tokens of a sequence that this rank's context has."""
        return self.length // self.context

    @property
    def again(self) -> bool:
        """Whether the backward pass makes attention once more."""
        return self.attention in ONCE


@dataclass(frozen=True)
class DecoderShare(ShardSpec):
    """A rank's share of such blocks: `length` tokens are decoded of each sequence, of which the encoder has read
    `memory`."""

    memory: int = 0
