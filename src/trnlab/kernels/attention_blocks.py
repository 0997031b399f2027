# SPDX-License-Identifier: Apache-2.0
"""Attention forward for every shape and mask: keys go by in strips, sums are rescaled as larger scores are found.

Letters: B batch, H heads, T queries, S keys, D head size, E that of values, N queries of a block, W keys of a strip.

    s = scale * Q K^T + bias      [N, W] in float32; -inf where causality hides a key
    m = max(m, rowmax(s))         never below the least finite number, so that -inf - m is -inf
    P = exp(s - m),  l = l * exp(m_old - m) + rowsum(P),  O = O * exp(m_old - m) + P V
    out = O / l                   zero for a query that sees no key: there l is zero

The fused kernel (`attention`) is faster. It takes no bias but one that hides or is shifted, and holds all keys of a
head on chip; this one takes any bias in its own format, any scale, heads up to 256 wide and sequences of any length.
The maximum is in float32, as the scores are, so infinities, NaN and very large biases do what they do in the
definition.

A strip of keys serves several query blocks while it is on chip: `TOGETHER` of them, of all query heads that share it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from trnlab.isa.base import Engine
from trnlab.kernels.attention_tiles import Task, block_runs, count_blocks, evacuate, pieces, store_statistics
from trnlab.kernels.blocks import BANK, P, dma_load, dma_store
from trnlab.kernels.view import HbmView
from trnlab.numerics.dtypes import float32
from trnlab.program.access import AP
from trnlab.program.builder import Builder
from trnlab.program.pool import TilePool

WIDEST = 256  # head size: in float32 the tiles of wider ones fill SBUF
TOGETHER = 4  # query blocks
LOWEST = float(np.finfo(np.float32).min)
SCORE_BANKS, TURN_BANKS, OUT_BANKS = (0, 1, 2), (3, 4), (5, 6, 7)


def attention_forward_blocks(
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
) -> None:
    """Record softmax(scale * q k^T + bias) v into `out` and, unless it is None, the rows' log-sum-exp into `lse`.

    q [B, H, T, D]; k [B, Hkv, S, D] with H a multiple of Hkv; v [B, Hkv, S, E]; out [B, H, T, E]; lse [B, H, T]
    float32; bias [B or 1, H or 1, T or 1, S] in any float format. A query that sees no key gives zero, and an lse of
    zero. D and E <= 256; causal: query t sees keys 0..t, and there are no more keys than queries.
    """
    task = Task(q, k, v, bias, causal, scale)
    with b.scope():
        _Forward(b, task, out, lse).run()


@dataclass(eq=False)
class QueryBlock:
    """Queries [q0, +rows) of one head."""

    batch: int
    head: int
    q0: int
    rows: int
    qt: AP = field(init=False)  # [128, chunks of D, N]: Q^T
    bias: AP | None = None

    @property
    def end(self) -> int:
        """The query behind the last."""
        return self.q0 + self.rows


@dataclass(eq=False)
class Strip:
    """Keys [k0, +width) of one key head: K [128, blocks, D], V [128, blocks, E] and K^T [128, chunks of D, W]."""

    k0: int
    width: int
    k: AP
    v: AP
    kt: AP


class StreamedAttention:
    """Tiles and steps that forward and backward share."""

    def __init__(self, b: Builder, task: Task) -> None:
        self.b, self.task = b, task
        dt = task.dtype
        self.chunks, self.value_chunks = count_blocks(task.depth), count_blocks(task.value_depth)
        self.scores = TilePool([b.psum((P, BANK), bank=i, name="scores") for i in SCORE_BANKS])
        self.turns = TilePool([b.psum((P, BANK), dt, bank=i, name="turned") for i in TURN_BANKS])
        self.out_banks = TilePool([b.psum((P, BANK), bank=i, name="products") for i in OUT_BANKS])
        self.tokens = b.pool((P, max(task.depth, task.value_depth)), dt, bufs=3, name="tokens")
        self.k_pool = b.pool((P, BANK // P, task.depth), dt, bufs=2, name="k")
        self.v_pool = b.pool((P, BANK // P, task.value_depth), dt, bufs=2, name="v")
        self.kt_pool = b.pool((P, self.chunks, BANK), dt, bufs=2, name="kT")
        self.s_pool = b.pool((P, BANK), float32, bufs=3, name="s")
        self.p_pool = b.pool((P, BANK), dt, bufs=3, name="p")
        self.pt_pool = b.pool((P, BANK // P, P), dt, bufs=3, name="pT")
        self.bias_pool = b.pool((P, BANK), task.bias.dtype, bufs=3, name="bias") if task.bias is not None else None

    def blocks_of(self, batch: int, kv: int) -> list[QueryBlock]:
        """All query blocks that use one key head."""
        t = self.task
        heads = range(kv * t.shared, (kv + 1) * t.shared)
        return [QueryBlock(batch, head, q0, n) for head in heads for q0, n in pieces(0, t.queries, P)]

    def strips(self, upto: int) -> Iterator[tuple[int, int]]:
        """(first key, keys) of the strips before key `upto`."""
        return pieces(0, upto, BANK)

    def load_rows(self, view: HbmView, first: int, rows: int, dst: AP) -> AP:
        """Rows [first, +rows) of a view [tokens, D or E], into a tile of as many columns or more."""
        dst = dst[:rows, : view.shape[1]]
        dma_load(self.b, dst, view[first : first + rows].ap())
        return dst

    def load_strip(self, batch: int, kv: int, k0: int, width: int) -> Strip:
        """K and V of a strip, and K^T."""
        k, v = self.k_pool.next(), self.v_pool.next()
        for tile, view in ((k, self.task.k), (v, self.task.v)):
            for at, rows in pieces(0, width, P):
                self.load_rows(view[batch, kv], k0 + at, rows, tile[:, at // P])
        return Strip(k0, width, k, v, self.turned(k, width, self.kt_pool.next()))

    def turned(self, tile: AP, rows: int, dst: AP) -> AP:
        """A tile [128, blocks, D or E] with `rows` rows as dst [128, chunks of that, rows], through the PE array."""
        for chunk, (col, width) in enumerate(pieces(0, tile.shape[2], P)):
            bank = self.turns.next()
            for at, n in pieces(0, rows, P):
                self.b.nc_transpose(dst=bank[:width, at : at + n], data=tile[:n, at // P, col : col + width])
            evacuate(self.b, dst[:width, chunk, :rows], bank[:width, :rows], Engine.SCALAR)
        return dst

    def product(self, left: AP, right: AP, size: int, rows: int, width: int) -> AP:
        """left^T right over `size`, D or E, in PSUM; left [128, chunks, N], right [128, chunks, W]."""
        dst = self.scores.next()[:rows, :width]
        for chunk, (_, depth) in enumerate(pieces(0, size, P)):
            self.b.nc_matmul(
                dst=dst,
                stationary=left[:depth, chunk, :rows],
                moving=right[:depth, chunk, :width],
                accumulate=chunk > 0,
                stop=(chunk + 1) * P >= size,
            )
        return dst

    def scored(self, block: QueryBlock, strip: Strip) -> AP:
        """s [N, W] in SBUF: what the softmax is taken of."""
        b, t, n, width = self.b, self.task, block.rows, strip.width
        raw, s = self.product(block.qt, strip.kt, t.depth, n, width), self.s_pool.next()[:n, :width]
        if t.bias is None:
            b.activation(dst=s, data=raw, op="copy", scale=t.scale)
        else:
            b.scalar_tensor_tensor(
                dst=s, data=raw, operand0=t.scale, operand1=self._bias(block, strip), op0="multiply", op1="add"
            )
        if t.causal and strip.k0 + width > block.q0 + 1:
            b.affine_select(
                dst=s,
                on_true=s,
                pattern=((-1, width),),
                offset=block.q0 - strip.k0,
                channel_multiplier=1,
                cmp_op="greater_equal",
                on_false=float("-inf"),
            )
        return s

    def _bias(self, block: QueryBlock, strip: Strip) -> AP:
        assert self.task.bias is not None
        assert self.bias_pool is not None
        whole = self.task.bias
        view = whole[block.batch % whole.shape[0], min(block.head, whole.shape[1] - 1)]
        row, col = view.strides if view.shape[0] > 1 else (0, view.strides[1])
        start = view.offset + row * block.q0 + col * strip.k0
        tile = self.bias_pool.next()[: block.rows, : strip.width]
        dma_load(self.b, tile, view.like(start, (block.rows, strip.width), (row, col)).ap())
        return tile

    def keys_first(self, tile: AP, rows: int, width: int) -> AP:
        """A tile [N, W] as [128, blocks of keys, N], through the PE array."""
        bank, dst = self.turns.next().split(0, BANK // P, P), self.pt_pool.next()
        for at, keys in pieces(0, width, P):
            self.b.nc_transpose(dst=bank[:keys, at // P, :rows], data=tile[:, at : at + keys])
        for first, keys, count in block_runs(0, width):
            src = bank[:keys, first : first + count, :rows]
            evacuate(self.b, dst[:keys, first : first + count, :rows], src, Engine.VECTOR)
        return dst

    def over_keys(self, turned: AP, values: AP, rows: int, width: int) -> AP:
        """turned^T values over the keys of a strip in PSUM: [N, D or E]; values [128, blocks of keys, D or E]."""
        dst = self.out_banks.next()[:rows, : values.shape[2]]
        for at, keys in pieces(0, width, P):
            self.b.nc_matmul(
                dst=dst,
                stationary=turned[:keys, at // P, :rows],
                moving=values[:keys, at // P],
                accumulate=at > 0,
                stop=at + keys == width,
            )
        return dst


@dataclass(eq=False)
class _Sums:
    """Sums of one query block: the largest score m so far, the sum l of exponentials [N, 1], and O [N, E], in
    float32."""

    m: AP | None
    l: AP
    o: AP


class _Forward(StreamedAttention):
    """The state of one call while it is recorded."""

    def __init__(self, b: Builder, task: Task, out: HbmView, lse: HbmView | None) -> None:
        super().__init__(b, task)
        self.out, self.lse = out, lse
        count = 2 * TOGETHER
        self.qt_pool = b.pool((P, self.chunks, P), task.dtype, bufs=count, name="qT")
        self.sums = b.pool((P, task.value_depth), float32, bufs=count, name="o")
        self.totals = b.pool((P, 1), float32, bufs=count, name="l")
        self.maxima = b.pool((P, 1), float32, bufs=2 * count, name="m")
        self.columns = b.pool((P, 1), float32, bufs=8, name="column")
        self.out_pool = b.pool((P, task.value_depth), out.dtype, bufs=3, name="out")
        stats = (P, task.shared, count_blocks(task.queries))
        self.stats = b.pool(stats, float32, bufs=2, name="lse") if lse is not None else None

    def run(self) -> None:
        """Record the whole call."""
        t = self.task
        for batch in range(t.batch):
            for kv in range(t.kv_heads):
                stats = self.stats.next() if self.stats is not None else None
                blocks = self.blocks_of(batch, kv)
                for first in range(0, len(blocks), TOGETHER):
                    self._together(batch, kv, blocks[first : first + TOGETHER], stats)
                if self.lse is not None and stats is not None:
                    heads = slice(kv * t.shared, (kv + 1) * t.shared)
                    with self.b.scope():
                        store_statistics(self.b, self.scores, self.lse[batch : batch + 1, heads], stats)

    def _together(self, batch: int, kv: int, blocks: list[QueryBlock], stats: AP | None) -> None:
        t = self.task
        for block in blocks:
            tile = self.load_rows(t.q[batch, block.head], block.q0, block.rows, self.tokens.next())
            block.qt = self.turned(tile.split(0, 1, t.depth), block.rows, self.qt_pool.next())
        sums = [_Sums(None, self.totals.next()[: g.rows], self.sums.next()[: g.rows]) for g in blocks]
        for k0, width in self.strips(max(t.span(g.end) for g in blocks)):
            strip = self.load_strip(batch, kv, k0, width)
            for block, held in zip(blocks, sums):
                if k0 < t.span(block.end):
                    self._add(block, strip, held)
        for block, held in zip(blocks, sums):
            self._finish(block, held, stats, kv)

    def _add(self, block: QueryBlock, strip: Strip, held: _Sums) -> None:
        """A strip's part of the sums of a query block."""
        b, n, width = self.b, block.rows, strip.width
        s = self.scored(block, strip)
        top, total, minus, factor = (self.columns.next()[:n] for _ in range(4))
        before, m = held.m, self.maxima.next()[:n]
        b.tensor_reduce(dst=top, data=s, op="max")
        floor = LOWEST if before is None else before
        b.tensor_scalar(dst=m, data=top, operand0=floor, op0="max")
        b.tensor_scalar(dst=minus, data=m, operand0=-1.0, op0="multiply")
        p = self.p_pool.next()[:n, :width]
        b.activation(dst=p, data=s, op="exp", bias=minus, reduce_res=total)
        part = self.over_keys(self.keys_first(p, n, width), strip.v, n, width)
        if before is None:
            b.tensor_copy(dst=held.l, src=total)
            b.tensor_copy(dst=held.o, src=part)
        else:
            b.activation(dst=factor, data=before, op="exp", bias=minus)
            for dst, more in ((held.l, total), (held.o, part)):
                b.scalar_tensor_tensor(dst=dst, data=dst, operand0=factor, operand1=more, op0="multiply", op1="add")
        held.m = m

    def _finish(self, block: QueryBlock, held: _Sums, stats: AP | None, kv: int) -> None:
        """out = O / l and lse = m + log(l), l = 1 and m = 0 in place of those of a query that sees no key."""
        b, t, n = self.b, self.task, block.rows
        hidden, total, inverse = (self.columns.next()[:n] for _ in range(3))
        b.tensor_scalar(dst=hidden, data=held.l, operand0=0.0, op0="is_equal")
        b.tensor_tensor(dst=total, data1=held.l, data2=hidden, op="add")
        b.reciprocal(dst=inverse, data=total)
        out = self.out_pool.next()[:n]
        b.tensor_scalar(dst=out, data=held.o, operand0=inverse, op0="multiply")
        dma_store(b, self.out[block.batch, block.head][block.q0 : block.end].ap(), out)
        if stats is not None:
            assert held.m is not None
            logarithm, seen = self.columns.next()[:n], self.columns.next()[:n]
            b.activation(dst=logarithm, data=total, op="log")
            b.tensor_scalar(dst=seen, data=hidden, operand0=0.0, op0="is_equal")
            dst = stats[:n, block.head - kv * t.shared, block.q0 // P : block.q0 // P + 1]
            b.scalar_tensor_tensor(dst=dst, data=held.m, operand0=seen, operand1=logarithm, op0="multiply", op1="add")
