# SPDX-License-Identifier: Apache-2.0
"""Attention forward for sequences that do not fit on chip: the fused kernel on segments of them, and one pass that
joins what it finds.

    O_i, lse_i = attention of the queries to the keys of segment i           (`attention`), in float32 in memory
    w_i = exp(lse_i - max lse),  out = sum w_i O_i / sum w_i,  lse = max lse + log(sum w_i)

A segment takes as long as it takes alone, so the time grows with the number of pairs of a query and a key. Segments
that causality hides are left out; those on the diagonal are causal themselves.

Letters: B batch, H heads, T queries, S keys, D head size, E that of values, N segments of keys.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import NamedTuple

from trnlab.errors import CapacityError
from trnlab.kernels.attention import attention_forward, has_room
from trnlab.kernels.attention_tiles import Task, count_blocks, pieces, store_statistics
from trnlab.kernels.blocks import BANK, P, dma_load, dma_store
from trnlab.kernels.view import HbmView, full
from trnlab.numerics.dtypes import float32
from trnlab.program.access import AP
from trnlab.program.builder import Builder
from trnlab.program.pool import TilePool

LONGEST, SHORTEST = 4096, 512  # tokens of a segment


class _Segment(NamedTuple):
    """Keys [first, +length); `diagonal`: the first query of the chunk sees the first of them, the next one more."""

    first: int
    length: int
    diagonal: bool


def length_with_room(b: Builder, task: Task, longest: int, has_room: Callable[[Builder, Task, int], bool]) -> int:
    """Tokens of a segment: `longest`, halved until there is room. Raises CapacityError (TRN507) where even short
    segments have none."""
    length = longest
    while not has_room(b, task, length):
        if length <= SHORTEST:
            raise CapacityError(
                "no segment of a sequence has room",
                code="TRN507",
                limit=f"{b.sbuf_free} bytes per partition",
                got=f"{SHORTEST} tokens of {task.shared} heads that share keys",
                chip=b.chip.name,
                remedy="attend with fewer heads at once",
            )
        length //= 2
    return length


def attention_forward_segments(
    b: Builder,
    q: HbmView,
    k: HbmView,
    v: HbmView,
    out: HbmView,
    lse: HbmView | None,
    *,
    causal: bool,
    scale: float,
    bias: HbmView | None = None,
    shifted: bool = False,
    longest: int = LONGEST,
) -> None:
    """Record what `attention_forward` does, for sequences of any length; `longest`: most tokens of a segment.

    The same arguments and limits. Raises CapacityError where not even short segments have room.
    """
    task = Task(q, k, v, bias, causal, scale, shifted)
    length = length_with_room(b, task, longest, has_room)
    for q0, rows in pieces(0, task.queries, length):
        _Chunk(b, task, out, lse, q0, rows).record(length)


class _Chunk:
    """Queries [q0, +rows) of all heads."""

    def __init__(self, b: Builder, task: Task, out: HbmView, lse: HbmView | None, q0: int, rows: int) -> None:
        self.b, self.task, self.q0, self.rows = b, task, q0, rows
        self.out = out[:, :, q0 : q0 + rows]
        self.lse = None if lse is None else lse[:, :, q0 : q0 + rows]

    def record(self, length: int) -> None:
        """Attention to each segment of keys, and their sum."""
        found = self._segments(length)
        if len(found) == 1:
            self._attend(found[0], self.out, self.lse)
            return
        t = self.task
        shape = (len(found), t.batch, t.heads, self.rows)
        parts = full(self.b.scratch("parts", (*shape, t.value_depth), float32))
        logs = full(self.b.scratch("logs", shape, float32))
        for i, segment in enumerate(found):
            self._attend(segment, parts[i], logs[i])
        with self.b.scope():
            self._join(parts, logs)

    def _segments(self, length: int) -> list[_Segment]:
        """The segments that some query sees; causal ones are cut where the first query ends."""
        t = self.task
        if not t.causal:
            return [_Segment(first, count, False) for first, count in pieces(0, t.keys, length)]
        before, end = min(self.q0, t.keys), min(self.q0 + self.rows, t.keys)
        found = [_Segment(first, count, False) for first, count in pieces(0, before, length)]
        return found + [_Segment(first, count, True) for first, count in pieces(before, end, length)]

    def _attend(self, segment: _Segment, out: HbmView, lse: HbmView | None) -> None:
        t, keys = self.task, slice(segment.first, segment.first + segment.length)
        queries, bias = slice(self.q0, self.q0 + self.rows), t.bias
        if bias is not None:
            rows = queries if bias.shape[3 if t.shifted else 2] > 1 else slice(None)
            bias = bias[:, :, keys, rows] if t.shifted else bias[:, :, rows, keys]
        attention_forward(
            self.b,
            t.q[:, :, queries],
            t.k[:, :, keys],
            t.v[:, :, keys],
            out,
            lse,
            causal=segment.diagonal,
            scale=t.scale,
            bias=bias,
            shifted=t.shifted,
        )

    def _join(self, parts: HbmView, logs: HbmView) -> None:
        """Block of queries after block: the weights of the segments, and what they found."""
        b, t, segments = self.b, self.task, parts.shape[0]
        shape = (P, t.batch * t.heads, count_blocks(self.rows))
        minus_max, total = (b.tile(shape, float32, name=n) for n in ("minus_max", "total"))
        columns = b.pool((P, segments), float32, bufs=4, name="logs")
        weights = b.pool((P, segments), float32, bufs=4, name="weights")
        inverse = b.pool((P, 1), float32, bufs=4, name="inverse")
        found, sums = (b.pool((P, t.value_depth), float32, bufs=n, name="part") for n in (6, 3))
        results = b.pool((P, t.value_depth), self.out.dtype, bufs=3, name="out")
        for batch, head, (start, n) in product(range(t.batch), range(t.heads), pieces(0, self.rows, P)):
            at = (slice(0, n), batch * t.heads + head, slice(start // P, start // P + 1))
            rows, top, whole = slice(start, start + n), minus_max[at], total[at]
            log, weight, one_over = columns.next()[:n], weights.next()[:n], inverse.next()[:n]
            dma_load(b, log, logs[:, batch, head, rows].permute(1, 0).ap())
            b.tensor_reduce(dst=top, data=log, op="max", negate=True)
            b.activation(dst=weight, data=log, op="exp", bias=top, reduce_res=whole)
            b.reciprocal(dst=one_over, data=whole)
            acc = sums.next()[:n]
            for i in range(segments):
                part = found.next()[:n]
                dma_load(b, part, parts[i, batch, head, rows].ap())
                self._add(acc, part, weight[:, i : i + 1], first=i == 0)
            result = results.next()[:n]
            b.activation(dst=result, data=acc, op="copy", scale=one_over)
            dma_store(b, self.out[batch, head, rows].ap(), result)
        if self.lse is not None:
            b.activation(dst=total, data=total, op="log")
            b.tensor_tensor(dst=total, data1=total, data2=minus_max, op="subtract")
            banks = TilePool([b.psum((P, BANK), bank=i, name="lse") for i in range(2)])
            store_statistics(b, banks, self.lse, total)

    def _add(self, acc: AP, part: AP, weight: AP, *, first: bool) -> None:
        if first:
            self.b.activation(dst=acc, data=part, op="copy", scale=weight)
        else:
            self.b.scalar_tensor_tensor(dst=acc, data=part, operand0=weight, operand1=acc, op0="multiply", op1="add")
