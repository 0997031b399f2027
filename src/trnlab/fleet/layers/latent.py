# SPDX-License-Identifier: Apache-2.0
"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1): queries and keys from compressed rows.

Ranks of a tensor group compress their own part of the sequence, and what is gathered are the compressed rows; each
rank then makes its own heads of them.
"""

from __future__ import annotations

from trnlab.fleet.layers.shares import Rank
from trnlab.fleet.models.transformer import Attention
from trnlab.graph.ir import Value


def projected(layers: Rank, name: str, a: Attention, x: Value) -> tuple[Value, Value, Value]:
    """Queries, keys and values [B, N, S, size] of a rank's heads from x [B, S / t, H]; values are filled up with
    zeros to the size of keys, which the kernels of attention ask for."""
    tape, heads, plain = layers.tape, layers.part(a.heads), a.size - a.rope_size
    q = tape.heads(layers.linear(f"{name}_q", _compressed(layers, f"{name}_q", x, a.q_rank), heads * a.size), a.size)
    pressed = layers.linear(f"{name}_kv_down", x, a.kv_rank + a.rope_size)
    small = tape.cut(pressed, 2, 0, a.kv_rank)
    small = layers.gathered(tape.norm(small, tape.weight(f"{name}_kv_norm", a.kv_rank)))
    turning = tape.heads(layers.gathered(tape.cut(pressed, 2, a.kv_rank, a.kv_rank + a.rope_size)), a.rope_size)
    up = tape.heads(layers.linear(f"{name}_kv", small, heads * (plain + a.value_size)), plain + a.value_size)
    q_turned, turned = layers.turned(tape.cut(q, 3, plain, a.size), turning)
    q = tape.beside(tape.cut(q, 3, 0, plain), q_turned, 3)
    k = tape.beside(tape.cut(up, 3, 0, plain), tape.repeated(turned, heads), 3)
    return q, k, tape.filled(tape.cut(up, 3, plain, plain + a.value_size), a.size)


def _compressed(layers: Rank, name: str, x: Value, rank: int) -> Value:
    """What queries are made of [B, S, rank], or all of x [B, S, H] where they are not compressed."""
    if not rank:
        return layers.gathered(x)
    tape = layers.tape
    return layers.gathered(tape.norm(layers.linear(f"{name}_down", x, rank), tape.weight(f"{name}_norm", rank)))
