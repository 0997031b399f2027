# SPDX-License-Identifier: Apache-2.0
"""What attention backward works on at a time: heads whose operands lie beside each other, what is loaded of a group,
and a tile of scores.

Letters: B batch, H heads, T queries, S keys, D head size, E that of values.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from trnlab.kernels.attention_tiles import HeadGroup
from trnlab.program.access import AP


@dataclass(eq=False)
class GradientUnit:
    """Heads whose transposed operands lie on different partitions of the same tiles; one when heads share keys."""

    group: HeadGroup
    head: int
    heads: int
    kv: int
    kvs: int
    starts: bool  # the first of its group
    # Of all heads side by side, or of each chunk of one.
    kt: list[AP] = field(init=False)  # [kvs * D, S]
    vt: list[AP] = field(init=False)  # [kvs * E, S]
    qt: list[AP] = field(init=False)  # [heads * D, T]
    dot: list[AP] = field(init=False)  # [heads * E, T]


@dataclass(eq=False)
class GroupTokens:
    """What is loaded and made for one group: tiles of tokens, and delta [128, heads, blocks]."""

    q: AP
    k: AP
    v: AP
    dout: AP
    out: AP
    delta: AP


@dataclass(eq=False)
class ScoreTile:
    """One tile of scores: query block `block` of a head of a unit against keys [k0, +width)."""

    unit: GradientUnit
    index: int  # of the head in its unit
    block: int
    rows: int
    k0: int
    width: int
    segment: int
    last_strip: bool  # of this query block in this segment
    p: AP = field(init=False)
    ds: AP = field(init=False)
    transposed: AP = field(init=False)
