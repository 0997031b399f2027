# SPDX-License-Identifier: Apache-2.0
"""Sizes of a transformer's layers: attention, a network, experts. `layers` says what they compute."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Attention:
    """Heads of `size` for queries and keys, and of `value_size` for values; fewer of keys where they are shared."""

    heads: int
    kv_heads: int
    size: int
    value_size: int
    causal: bool = True
    rope: bool = True
    bias: str = "none"  # of the four projections: "all", "qkv", "unkeyed" (all but the keys'), "out" or "none"
    # q_rank, kv_rank: of the low-rank projections that DeepSeek's models have in the place of full ones
    # (multi-head latent attention), 0 without
    q_rank: int = 0
    kv_rank: int = 0
    rope_size: int = 0  # the part of `size` that carries positions there
    norms: bool = False  # of queries and keys, each of a head's size
    softcap: float = 0.0  # scores s become softcap tanh(s / softcap), 0 without (Gemma 2)

    @property
    def biased(self) -> str:
        """The projections that have a bias: letters of "qkvo"."""
        return {"none": "", "qkv": "qkv", "all": "qkvo", "unkeyed": "qvo", "out": "o"}[self.bias]


@dataclass(frozen=True)
class RelativeAttention(Attention):
    """Attention whose scores have a learned bias by distance, and are not scaled (T5). buckets: of distances."""

    buckets: int = 32


@dataclass(frozen=True)
class Dense:
    """Two matrices with an activation between them; a third, which gates, where `gated`."""

    size: int
    gated: bool = True
    bias: bool = False

    @property
    def function(self) -> str:
        """The activation."""
        return "silu" if self.gated else "gelu"


@dataclass(frozen=True)
class ActivatedMlp(Dense):
    """With an activation that is not the usual one: "relu", "gelu", "silu" or "quick_gelu"."""

    function: str = "relu"


@dataclass(frozen=True)
class Experts:
    """`count` networks, of which a router takes `active` for each token."""

    count: int
    active: int
    size: int
    shared: int = 0  # the size of one that all take
    gated: bool = True
    capacity: float = 1.0  # places for rows of an expert, in multiples of what an even router sends
