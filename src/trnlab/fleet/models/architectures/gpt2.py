# SPDX-License-Identifier: Apache-2.0
"""GPT-2 and 3."""

from __future__ import annotations

from trnlab.fleet.layers.sizes import Attention, Dense
from trnlab.fleet.models.architectures import architecture
from trnlab.fleet.models.fields import ConfigurationFields
from trnlab.fleet.models.transformer import Block, Model


@architecture("gpt2")
def gpt2(f: ConfigurationFields) -> Model:
    """Learned positions, norms with biases, the head tied to the words."""
    hidden, heads = f.count("n_embd"), f.count("n_head")
    size = f.head(hidden, heads)
    attention = Attention(heads, heads, size, size, rope=False, bias="all")
    block = Block(hidden, attention, Dense(f.count("n_inner", 4 * hidden), gated=False, bias=True), "layer")
    positions = f.count("n_positions")
    return Model(
        f.name,
        hidden,
        ((f.count("n_layer"), block),),
        positions,
        f.count("vocab_size"),
        positions,
        tied=True,
        source=f.source,
    )
