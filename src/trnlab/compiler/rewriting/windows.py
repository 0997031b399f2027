# SPDX-License-Identifier: Apache-2.0
"""Attention within short windows, several of them side by side as one sequence.

Windows of 49 tokens leave most of 128 partitions idle, and each takes as many instructions as one of 128. With 2 of
them as one sequence, in which no window sees another one, an instruction does the work of 2, and takes as long: its
columns are as many as those of 2 instructions together. The batch [B] is windows, the bias [N, ...] one of each N,
again and again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Op, Value
from trnlab.kernels.blocks import P
from trnlab.numerics.dtypes import int32


@dataclass(frozen=True)
class Windows:
    """So many neighbours of a batch as one sequence."""

    count: int

    def joined(self, b: GraphBuilder, x: Value) -> Value:
        """[B, H, T, D] as [B / n, H, n T, D]."""
        batch, heads, tokens, size = x.shape
        whole = b.reshape(b.transpose(x, (0, 2, 1, 3)), (batch // self.count, self.count * tokens, heads, size))
        return b.transpose(whole, (0, 2, 1, 3))

    def apart(self, b: GraphBuilder, x: Value) -> Value:
        """The way back."""
        batch, heads, tokens, size = x.shape
        split = b.reshape(b.transpose(x, (0, 2, 1, 3)), (batch * self.count, tokens // self.count, heads, size))
        return b.transpose(split, (0, 2, 1, 3))

    def bias(self, b: GraphBuilder, x: Value) -> Value:
        """[N, H, T, S] as [N / n or 1, H, n T, n S], minus infinity between windows."""
        n, heads, tokens = self.count, *x.shape[1:3]
        keys = x.shape[3]
        if x.shape[0] == 1:
            x = b.broadcast_to(x, (n, *x.shape[1:]))
        x = b.reshape(x, (x.shape[0] // n, n, heads, tokens, keys))
        shape = (x.shape[0], heads, n, tokens, n, keys)
        wide = b.broadcast_in_dim(x, shape, (0, 2, 1, 3, 5))
        own = b.compare(b.iota((n, n), int32, 0), "EQ", b.iota((n, n), int32, 1))
        whole = b.select(b.broadcast_in_dim(own, shape, (2, 4)), wide, -math.inf)
        return b.reshape(whole, (shape[0], heads, n * tokens, n * keys))

    def of_bias(self, b: GraphBuilder, x: Value) -> Value:
        """A gradient of scores [B, H, n T, n S] as [n B, H, T, S]."""
        n, (batch, heads, tokens, keys) = self.count, x.shape
        split = b.reshape(x, (batch, heads, n, tokens // n, n, keys // n))
        own = b.compare(b.iota((n, n), int32, 0), "EQ", b.iota((n, n), int32, 1))
        kept = b.select(b.broadcast_in_dim(own, split.shape, (2, 4)), split, 0.0)
        each = b.transpose(b.reduce(kept, [4]), (0, 2, 1, 3, 4))
        return b.reshape(each, (batch * n, heads, tokens // n, keys // n))


def windows_of(op: Op, q: Value, k: Value, bias: Value) -> Windows | None:
    """How many windows attention has as one sequence; None where it is not of windows. bias: [N, H, T, S]."""
    (batch, _, tokens, _), keys, period = q.shape, k.shape[2], bias.shape[0]
    most = P // tokens
    if op.attrs["causal"] or tokens != keys or bias.shape[2] != tokens or tokens == 1:
        return None
    found = (n for n in range(most, 1, -1) if batch % n == 0 and (period == 1 or period % n == 0))
    count = next(found, 1)
    return Windows(count) if count > 1 else None
