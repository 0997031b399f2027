# SPDX-License-Identifier: Apache-2.0
"""Attention backward for every shape and mask, with scores computed again strip by strip.

Letters: B batch, H heads, T queries, S keys, D head size, N queries of a block, W keys of a strip.

    P  = exp(s - lse), s as in `attention_blocks`
    dS = P * (dO V^T - delta),  delta = rowsum(dO * O)
    dQ = scale * dS K                    first pass: some query blocks, all keys that they see
    dV = P^T dO,  dK = scale * dS^T Q    second pass: a strip of keys, all queries that see it

Two passes, because the gradients of queries and of keys need their sums in opposite orders, and neither sum fits on
chip for any length. That is seven products of matrices where one pass would take five.

Beside a large bias the logarithm of the sum is lost in lse: P is then off by a factor for each query. The first pass
finds it, the sum of the query's P, and both divide by it.
"""

from __future__ import annotations

from dataclasses import dataclass

from trnlab.isa.base import Engine
from trnlab.kernels.attention_blocks import TOGETHER, QueryBlock, StreamedAttention, Strip
from trnlab.kernels.attention_tiles import Task, count_blocks, evacuate, load_statistics, pieces
from trnlab.kernels.blocks import BANK, P, dma_store
from trnlab.kernels.view import HbmView
from trnlab.numerics.dtypes import float32
from trnlab.program.access import AP
from trnlab.program.builder import Builder


def attention_backward_blocks(
    b: Builder,
    dout: HbmView,
    q: HbmView,
    k: HbmView,
    v: HbmView,
    out: HbmView,
    lse: HbmView,
    dq: HbmView | None,
    dk: HbmView | None,
    dv: HbmView | None,
    *,
    causal: bool,
    scale: float,
    bias: HbmView | None = None,
) -> None:
    """Record the gradients of `attention_forward_blocks` with respect to q, k and v, those that are not None.

    Shapes, formats and limits as there; `out` and `lse` are its results, or those of the fused kernel.
    """
    task = Task(q, k, v, bias, causal, scale)
    with b.scope():
        _Backward(b, task, dout, out, lse, dq, dk, dv).run()


@dataclass(eq=False)
class _Loaded:
    """A query block on chip: Q [N, D], dO [N, E], dO^T [128, chunks, N]; -lse, delta and 1 / sum(P) [N, 1]."""

    block: QueryBlock
    q: AP
    dout: AP
    dout_t: AP
    minus_lse: AP
    delta: AP
    inverse: AP | None


class _Backward(StreamedAttention):
    """The state of one call while it is recorded."""

    def __init__(
        self,
        b: Builder,
        task: Task,
        dout: HbmView,
        out: HbmView,
        lse: HbmView,
        dq: HbmView | None,
        dk: HbmView | None,
        dv: HbmView | None,
    ) -> None:
        super().__init__(b, task)
        self.dout, self.out, self.lse, self.dq, self.dk, self.dv = dout, out, lse, dq, dk, dv
        dt, count = task.dtype, TOGETHER + 2
        self.q_pool = b.pool((P, task.depth), dt, bufs=count, name="q")
        self.dout_pool = b.pool((P, task.value_depth), dt, bufs=count, name="dout")
        self.qt_pool = b.pool((P, self.chunks, P), dt, bufs=count, name="qT")
        self.dout_t_pool = b.pool((P, self.value_chunks, P), dt, bufs=count, name="doutT")
        self.deltas = b.pool((P, 1), float32, bufs=count, name="delta")
        self.product_pool = b.pool((P, task.value_depth), float32, bufs=2, name="dout_out")
        self.ds_pool = b.pool((P, BANK), dt, bufs=3, name="ds")
        self.vt_pool = b.pool((P, self.value_chunks, BANK), dt, bufs=2, name="vT")
        self.dq_sums = b.pool((P, task.depth), float32, bufs=2 * TOGETHER, name="dq_sum")
        sums = ("dk_sum", task.depth), ("dv_sum", task.value_depth)
        self.k_sums = [b.pool((P, BANK // P, size), float32, bufs=2, name=n) for n, size in sums]
        stats = (P, task.shared, count_blocks(task.queries))
        self.stats = b.pool(stats, float32, bufs=2, name="minus_lse")
        self.inverse = b.tile(stats, float32, name="inverse") if task.bias is not None else None
        self.columns = b.pool((P, 1), float32, bufs=4, name="column")
        self.totals = b.pool((P, 1), float32, bufs=2 * TOGETHER, name="total")
        widest = max(task.depth, task.value_depth)
        self.scaled = b.pool((P, widest), dt, bufs=4, name="scaled") if task.bias is not None else None
        formats = {x.dtype for x in (dq, dk, dv) if x is not None}
        self.results = {kind: b.pool((P, widest), kind, bufs=3, name="result") for kind in formats}

    def run(self) -> None:
        """Record the whole call."""
        t = self.task
        for batch in range(t.batch):
            for kv in range(t.kv_heads):
                stats, heads = self.stats.next(), slice(kv * t.shared, (kv + 1) * t.shared)
                with self.b.scope():
                    load_statistics(self.b, self.scores, stats, self.lse[batch : batch + 1, heads], -1.0)
                blocks = self.blocks_of(batch, kv) if self.dq is not None or self.inverse is not None else []
                for first in range(0, len(blocks), TOGETHER):
                    self._gradients_of_queries(batch, kv, blocks[first : first + TOGETHER], stats)
                if self.dk is not None or self.dv is not None:
                    for k0, width in self.strips(t.keys):
                        self._gradients_of_keys(batch, kv, k0, width, stats)

    # -- what both passes load and compute --------------------------------------------------------------------------
    def _load(self, block: QueryBlock, stats: AP) -> _Loaded:
        b, t, n = self.b, self.task, block.rows
        q, dout, out = (
            self.load_rows(view[block.batch, block.head], block.q0, n, pool.next())
            for view, pool in ((t.q, self.q_pool), (self.dout, self.dout_pool), (self.out, self.tokens))
        )
        product, delta = self.product_pool.next()[:n], self.deltas.next()[:n]
        b.tensor_tensor(dst=product, data1=dout, data2=out, op="multiply", engine=Engine.GPSIMD)
        b.tensor_reduce(dst=delta, data=product, op="add")
        block.qt = self.turned(q.split(0, 1, t.depth), n, self.qt_pool.next())
        dout_t = self.turned(dout.split(0, 1, t.value_depth), n, self.dout_t_pool.next())
        at = (slice(None, n), block.head % t.shared, slice(block.q0 // P, block.q0 // P + 1))
        inverse = None if self.inverse is None else self.inverse[at]
        return _Loaded(block, q, dout, dout_t, stats[at], delta, inverse)

    def _strip(self, batch: int, kv: int, k0: int, width: int) -> tuple[Strip, AP]:
        """A strip, and V^T."""
        strip = self.load_strip(batch, kv, k0, width)
        return strip, self.turned(strip.v, width, self.vt_pool.next())

    def _weights(self, one: _Loaded, strip: Strip, vt: AP, total: AP | None = None) -> tuple[AP, AP]:
        """P and dS [N, W], not divided by the sum of P; `total` gets the strip's part of that."""
        b, n, width = self.b, one.block.rows, strip.width
        s = self.scored(one.block, strip)
        p, ds = self.p_pool.next()[:n, :width], self.ds_pool.next()[:n, :width]
        sums = {} if total is None else {"reduce_res": total}
        b.activation(dst=p, data=s, op="exp", bias=one.minus_lse, **sums)
        dp = self.product(one.dout_t, vt, self.task.value_depth, n, width)
        b.scalar_tensor_tensor(dst=ds, data=dp, operand0=one.delta, operand1=p, op0="subtract", op1="multiply")
        return p, ds

    def _store(self, view: HbmView, first: int, total: AP, factor: float) -> None:
        """Rows of a gradient: factor * total."""
        n = total.partitions
        tile = self.results[view.dtype].next()[:n, : total.free]
        evacuate(self.b, tile, total, Engine.SCALAR, factor)
        dma_store(self.b, view[first : first + n].ap(), tile)

    # -- the two passes ---------------------------------------------------------------------------------------------
    def _gradients_of_keys(self, batch: int, kv: int, k0: int, width: int, stats: AP) -> None:
        """dK and dV of a strip."""
        t = self.task
        strip, vt = self._strip(batch, kv, k0, width)
        sums = [pool.next() for pool in self.k_sums]
        first = True
        for block in self.blocks_of(batch, kv):
            if k0 >= t.span(block.end):
                continue
            one = self._load(block, stats)
            p, ds = self._weights(one, strip, vt)
            q, dout = (self._divided(rows, one.inverse) for rows in (one.q, one.dout))
            for total, weights, rows in ((sums[0], ds, q), (sums[1], p, dout)):
                self._add_over_queries(total, weights, rows, width, first)
            first = False
        for view, total, factor in ((self.dk, sums[0], t.scale), (self.dv, sums[1], 1.0)):
            for at, keys in pieces(0, width, P) if view is not None else ():
                assert view is not None
                self._store(view[batch, kv], k0 + at, total[:keys, at // P], factor)

    def _divided(self, rows: AP, inverse: AP | None) -> AP:
        """Rows [N, D or E] divided by the sums of P, which divides the products of P and dS with them."""
        if inverse is None or self.scaled is None:
            return rows
        scaled = self.scaled.next()[: rows.partitions, : rows.free]
        self.b.tensor_scalar(dst=scaled, data=rows, operand0=inverse, op0="multiply")
        return scaled

    def _add_over_queries(self, total: AP, weights: AP, rows: AP, width: int, first: bool) -> None:
        """total [128, blocks of keys, D or E] += weights^T rows."""
        for at, keys in pieces(0, width, P):
            bank = self.out_banks.next()[:keys, : rows.free]
            self.b.nc_matmul(dst=bank, stationary=weights[:, at : at + keys], moving=rows)
            dst = total[:keys, at // P]
            if first:
                evacuate(self.b, dst, bank, Engine.VECTOR)
            else:
                self.b.tensor_tensor(dst=dst, data1=bank, data2=dst, op="add")

    def _gradients_of_queries(self, batch: int, kv: int, blocks: list[QueryBlock], stats: AP) -> None:
        """dQ of some query blocks, and 1 / sum(P) where it is needed."""
        t = self.task
        loaded = [self._load(block, stats) for block in blocks]
        sums = [self.dq_sums.next()[: block.rows] for block in blocks]
        totals = [self.totals.next()[: block.rows] for block in blocks]
        for k0, width in self.strips(max(t.span(block.end) for block in blocks)):
            strip, vt = self._strip(batch, kv, k0, width)
            for one, total, weight in zip(loaded, sums, totals):
                if k0 < t.span(one.block.end):
                    self._add_over_keys(one, strip, vt, total, weight)
        for one, total, weight in zip(loaded, sums, totals):
            if one.inverse is not None:
                self._invert(one.inverse, weight)
                self.b.tensor_scalar(dst=total, data=total, operand0=one.inverse, op0="multiply")
            if self.dq is not None:
                self._store(self.dq[batch, one.block.head], one.block.q0, total, t.scale)

    def _add_over_keys(self, one: _Loaded, strip: Strip, vt: AP, total: AP, weight: AP) -> None:
        """total [N, D] += dS K, weight [N, 1] += rowsum(P)."""
        n, first = one.block.rows, strip.k0 == 0
        more = None if one.inverse is None else weight if first else self.columns.next()[:n]
        _, ds = self._weights(one, strip, vt, more)
        part = self.over_keys(self.keys_first(ds, n, strip.width), strip.k, n, strip.width)
        if first:
            evacuate(self.b, total, part, Engine.VECTOR)
            return
        self.b.tensor_tensor(dst=total, data1=part, data2=total, op="add")
        if more is not None:
            self.b.tensor_tensor(dst=weight, data1=weight, data2=more, op="add")

    def _invert(self, dst: AP, weight: AP) -> None:
        """1 / weight; one for a query that sees no key."""
        hidden, total = (self.columns.next()[: weight.partitions] for _ in range(2))
        self.b.tensor_scalar(dst=hidden, data=weight, operand0=0.0, op0="is_equal")
        self.b.tensor_tensor(dst=total, data1=weight, data2=hidden, op="add")
        self.b.reciprocal(dst=dst, data=total)
