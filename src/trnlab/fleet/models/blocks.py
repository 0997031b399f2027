# SPDX-License-Identifier: Apache-2.0
"""Blocks of other forms than a norm, attention, a norm and a network in a row."""

from __future__ import annotations

from dataclasses import dataclass

from trnlab.fleet.layers.layers import Layers
from trnlab.fleet.models.transformer import Block
from trnlab.graph.ir import Value


@dataclass(frozen=True, kw_only=True)
class ParallelBlock(Block):
    """Attention and a network beside each other, behind one norm or each behind its own (GPT-NeoX, Phi, Falcon)."""

    norms: int = 1

    def forward(self, layers: Layers, name: str, x: Value) -> Value:
        """x [..., H] -> the same."""
        y = layers.norm(name + "_1", x, self.norm)
        z = layers.norm(name + "_2", x, self.norm) if self.norms > 1 else y
        attended = layers.attention(name, self.attention, y)
        return layers.add(x, layers.add(attended, layers.network(name, self.network, z)))


@dataclass(frozen=True)
class SandwichBlock(Block):
    """Norms before and after attention, before and after the network (Gemma 2 and 3)."""

    def forward(self, layers: Layers, name: str, x: Value) -> Value:
        """x [..., H] -> the same."""
        attended = layers.attention(name, self.attention, layers.norm(name + "_1", x, self.norm))
        x = layers.add(x, layers.norm(name + "_1_after", attended, self.norm))
        inner = layers.network(name, self.network, layers.norm(name + "_2", x, self.norm))
        return layers.add(x, layers.norm(name + "_2_after", inner, self.norm))
