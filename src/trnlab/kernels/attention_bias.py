# SPDX-License-Identifier: Apache-2.0
"""What is added to the scores of attention, on chip: a mask, or a bias of any values.

Letters: B batch, H heads, T queries, S keys, D head size.

`HidingBias`   0 and minus infinity, which the PE array adds to the raw scores in the format of the operands
`ShiftedBias`  float32 values of which each query's largest is zero (ADR 156), forward: with keys on partitions
               VectorE adds them to the scores that exponentials are taken of, or ScalarE where they are the same for
               all queries; the maxima, which need not be exact, are of scores to which the PE array has added them
               rounded
`ShiftedRows`  the same, backward: with queries on partitions
`BiasGradient` what they get back: the gradients of scores, added up over the batch or not, in float32
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from trnlab.isa.base import Engine
from trnlab.kernels.attention_tiles import (
    HIDDEN,
    Constants,
    Task,
    Term,
    block_runs,
    count_blocks,
    count_together,
    fewest_heads,
    pieces,
)
from trnlab.kernels.blocks import BANK, P, dma_load, dma_store
from trnlab.kernels.view import HbmView
from trnlab.numerics.dtypes import float32
from trnlab.program.access import AP
from trnlab.program.builder import Builder

KEPT_BYTES = 48 * 1024  # of a partition, for a bias that the next elements of a batch need again
LOADED_BYTES = 4096  # of a partition and transfer
SUMMED_BYTES = 64 * 1024  # of a partition, for the gradient of the bias of all heads that are loaded together


class BiasTiles(NamedTuple):
    """The bias of a head: `low` in the format of the operands, for the PE array, `exact` in float32."""

    low: AP
    exact: AP | None = None


class HidingBias:
    """A bias of 0 and minus infinity on chip, in the format of the operands; the PE array adds it to the raw scores.

    Minus infinity becomes HIDDEN. Other values are not exact here: the scores are rounded maxima away from zero.
    """

    def __init__(self, b: Builder, task: Task, constants: Constants, blocks: int) -> None:
        """`blocks`: the most query blocks that are asked for at once."""
        assert task.bias is not None
        self._b, self._task, self._view, self._constants = b, task, task.bias, constants
        self.per_query = self._view.shape[2] > 1
        dt = task.dtype
        shape = (P, blocks, task.keys) if self.per_query else (1, task.keys)
        self._raw = b.pool(shape, self._view.dtype, bufs=2, name="bias_raw")
        self._scaled = b.pool(shape, dt, bufs=3, name="bias")
        self._identity, self._ones = constants.identity(dt), constants.ones(dt)
        self._last: tuple[tuple[int, ...], BiasTiles] | None = None

    @staticmethod
    def blocks_that_fit(task: Task) -> int:
        """Query blocks whose bias takes at most 24 KiB of a partition."""
        assert task.bias is not None
        return max(1, 24 * 1024 // (4 * task.keys)) if task.bias.shape[2] > 1 else P

    def tile(self, batch: int, head: int, q0: int, q1: int) -> BiasTiles:
        """The bias of queries [q0, q1): [128, blocks, S], or [1, S] when it is the same for all queries."""
        view = self._view
        view = view[min(batch, view.shape[0] - 1), min(head, view.shape[1] - 1)]
        key = (view.offset, q0 if self.per_query else 0)
        if self._last is None or self._last[0] != key:
            self._last = key, BiasTiles(self._prepare(view, q0, q1))
        return self._last[1]

    def _prepare(self, view: HbmView, q0: int, q1: int) -> AP:
        raw, scaled = self._raw.next(), self._scaled.next()
        if not self.per_query:
            self._load(raw, scaled, view.ap())
            return scaled
        for block, rows, count in block_runs(q0, q1):
            row, col = view.strides
            src = view.like(view.offset + block * P * row, (rows, count, view.shape[1]), (row, P * row, col))
            first = block - q0 // P
            self._load(raw[:rows, first : first + count], scaled[:rows, first : first + count], src.ap())
        return scaled

    def _load(self, raw: AP, scaled: AP, src: AP) -> None:
        dma_load(self._b, raw, src)
        self._b.tensor_scalar(dst=scaled, data=raw, operand0=HIDDEN, op0="max")

    def to_queries(self, scores: AP, tiles: BiasTiles, block: int, k0: int) -> list[Term]:
        """The term that adds to scores [queries, keys from k0] of one query block."""
        n, width = scores.partitions, scores.free
        if self.per_query:
            return [(scores, self._identity[:n, :n], tiles.low[:n, block, k0 : k0 + width])]
        return [(scores, self._ones[:, :n], tiles.low[:, k0 : k0 + width])]

    def to_keys(self, scores: AP, tiles: BiasTiles, block: int, k0: int) -> Term:
        """The term that adds to scores [keys from k0, queries]; of one query block when the bias is per query."""
        n, width = scores.partitions, scores.free
        if self.per_query:
            return scores, tiles.low[:width, block, k0 : k0 + n], self._identity[:width, :width]
        return scores, tiles.low[:, k0 : k0 + n], self._ones[:, :width]


class _Kept:
    """Tiles by what they were made from, as many as a pool has: the oldest goes first."""

    def __init__(self, most: int) -> None:
        self._most, self._found = most, dict[Hashable, BiasTiles]()

    def get(self, key: Hashable, make: Callable[[], BiasTiles]) -> BiasTiles:
        """The tiles of a key, made unless they are there."""
        if key not in self._found:
            if len(self._found) == self._most:
                del self._found[next(iter(self._found))]
            self._found[key] = make()
        return self._found[key]


def _count_kept(task: Task, per_head: int, nbytes: int, least: int) -> int:
    """How many tiles a pool has: those of all heads that are loaded together, where the next element of the batch
    that is worked on has the same bias and there is room."""
    assert task.bias is not None
    wanted = fewest_heads(task) * per_head
    again = task.bias.shape[0] < task.batch and wanted * nbytes <= KEPT_BYTES
    return max(least, wanted) if again else least


class ShiftedBias:
    """The bias [N, H or 1, S, T or 1] of attention forward, keys on partitions; N divides B."""

    def __init__(self, b: Builder, task: Task, constants: Constants, blocks: int, heads: int) -> None:
        """blocks, heads: of a superblock, at most."""
        assert task.bias is not None
        self._b, self._task, self._view = b, task, task.bias
        self.per_query, kind, keys = task.bias.shape[3] > 1, task.dtype, count_blocks(task.keys)
        self._identity, self._ones = constants.identity(kind), constants.ones(kind)
        width = min(blocks * P, task.queries)
        shape = (P, keys, width) if self.per_query else (P, keys)
        nbytes = keys * width * (4 + kind.itemsize) if self.per_query else task.keys * (4 + kind.itemsize)
        per_head = -(-task.queries // width) if self.per_query else 1
        count = _count_kept(task, per_head, nbytes, 3 * heads)
        self._kept = _Kept(count)
        self._exact = b.pool(shape, float32, bufs=count, name="bias")
        self._low = b.pool(shape if self.per_query else (1, task.keys), kind, bufs=count, name="bias_low")
        if not self.per_query:
            self._row = b.pool((1, task.keys), float32, bufs=2, name="bias_row")

    @staticmethod
    def blocks_that_fit(task: Task) -> int:
        """Query blocks whose bias takes at most 24 KiB of a partition."""
        assert task.bias is not None
        keys = count_blocks(task.keys) * P
        return max(1, 24 * 1024 // (keys * (4 + task.dtype.itemsize))) if task.bias.shape[3] > 1 else P

    def tile(self, batch: int, head: int, q0: int, q1: int) -> BiasTiles:
        """The bias of queries [q0, q1): exact and low [128, blocks of S, queries]; where all queries have the same,
        exact [128, blocks of S] and low [1, S]."""
        view = self._view
        view = view[batch % view.shape[0], min(head, view.shape[1] - 1)]
        if self.per_query:
            return self._kept.get((view.offset, q0), lambda: self._of_queries(view, q0, q1))
        return self._kept.get(view.offset, lambda: self._of_keys(view))

    def _of_queries(self, view: HbmView, q0: int, q1: int) -> BiasTiles:
        exact, low, width = self._exact.next(), self._low.next(), q1 - q0
        (row, col), most = view.strides, max(1, LOADED_BYTES // (4 * width))
        for start, rows, blocks in block_runs(0, view.shape[0]):
            for block, count in pieces(start, start + blocks, most):
                dst = exact[:rows, block : block + count, :width]
                first = view.offset + block * P * row + q0 * col
                dma_load(self._b, dst, view.like(first, (rows, count, width), (row, P * row, col)).ap())
                self._lower(low[:rows, block : block + count, :width], dst)
        return BiasTiles(low, exact)

    def _of_keys(self, view: HbmView) -> BiasTiles:
        exact, low, row = self._exact.next(), self._low.next(), self._row.next()
        step = view.strides[0]
        for block, rows, count in block_runs(0, view.shape[0]):
            src = view.like(view.offset + block * P * step, (rows, count), (step, P * step))
            dma_load(self._b, exact[:rows, block : block + count], src.ap())
        dma_load(self._b, row, view.like(view.offset, (1, view.shape[0]), (0, step)).ap())
        self._lower(low, row)
        return BiasTiles(low, exact)

    def _lower(self, low: AP, exact: AP) -> None:
        """As what the PE array adds to raw scores: finite, for zero times infinity would be NaN."""
        factor = 1 / self._task.scale
        self._b.tensor_scalar(dst=low, data=exact, operand0=factor, op0="multiply", operand1=HIDDEN, op1="max")

    def to_queries(self, scores: AP, tiles: BiasTiles, block: int, k0: int) -> list[Term]:
        """The terms that add to scores [queries, keys from k0] of one query block."""
        n, end = scores.partitions, k0 + scores.free
        if not self.per_query:
            return [(scores, self._ones[:, :n], tiles.low[:, k0:end])]
        found: list[Term] = []
        for first in range(k0 // P * P, end, P):
            rows = min(P, self._task.keys - first)
            low, high = max(k0, first), min(end, first + rows)
            stationary = tiles.low[:rows, first // P, block * P : block * P + n]
            moving = self._identity[:rows, low - first : high - first]
            found.append((scores[:, low - k0 : high - k0], stationary, moving))
        return found

    def exact(self, tiles: BiasTiles, keys: int, k0: int, first: int, count: int) -> AP:
        """The bias of keys [k0, +keys) and some queries of the tile: [keys, queries], or [keys, 1]."""
        assert tiles.exact is not None
        if self.per_query:
            return tiles.exact[:keys, k0 // P, first : first + count]
        return tiles.exact[:keys, k0 // P : k0 // P + 1]


ForwardBias = HidingBias | ShiftedBias


class ShiftedRows:
    """The bias [N, H or 1, T or 1, S] of attention backward, queries on partitions; N divides B."""

    def __init__(self, b: Builder, task: Task, heard: HbmView | None = None) -> None:
        """heard: a factor of each query's scores before the bias [N, H or 1, T or 1, 1], float32; None: one."""
        assert task.bias is not None
        self._b, self._task, self._view = b, task, task.bias
        self.per_query = task.bias.shape[2] > 1
        strips, blocks = -(-task.keys // BANK), count_blocks(task.queries) if self.per_query else 1
        width = min(BANK, task.keys)
        count = _count_kept(task, strips * blocks, 4 * width, 6)
        self._pool, self._kept = b.pool((P, width), float32, bufs=count, name="bias"), _Kept(count)
        self._added = b.pool((P, width), float32, bufs=3, name="biased")
        self._heard, self._factors = heard, _Kept(6)
        self._columns = None if heard is None else b.pool((P, 1), float32, bufs=6, name="heard")

    def added(self, scores: AP, batch: int, head: int, q0: int, k0: int) -> AP:
        """scale * scores + bias in SBUF, of raw scores [queries from q0, keys from k0]."""
        view = self._view
        view = view[batch % view.shape[0], min(head, view.shape[1] - 1)]
        n, width, first = scores.partitions, scores.free, q0 if self.per_query else 0
        tiles = self._kept.get((view.offset, first, k0), lambda: self._load(view, q0, n, k0, width))
        dst = self._added.next()[:n, :width]
        bias, scale = tiles.low[:n, :width], self._factor(batch, head, q0, n)
        self._b.scalar_tensor_tensor(dst=dst, data=scores, operand0=scale, operand1=bias, op0="multiply", op1="add")
        return dst

    def _factor(self, batch: int, head: int, q0: int, n: int) -> AP | float:
        view, scale = self._heard, self._task.scale
        if view is None or self._columns is None:
            return scale
        pool, one = self._columns, view[batch % view.shape[0], min(head, view.shape[1] - 1)]
        step = one.strides[0] if one.shape[0] > 1 else 0

        def load() -> BiasTiles:
            column = pool.next()[:n]
            dma_load(self._b, column, one.like(one.offset + q0 * step, (n, 1), (step, 1)).ap())
            self._b.tensor_scalar(dst=column, data=column, operand0=scale, op0="multiply")
            return BiasTiles(column)

        return self._factors.get((one.offset, q0), load).low

    def _load(self, view: HbmView, q0: int, n: int, k0: int, width: int) -> BiasTiles:
        (row, col), tile = view.strides, self._pool.next()
        rows, step, first = (n, row, q0) if self.per_query else (P, 0, 0)
        if not self.per_query:  # other queries may see more of these keys
            width = min(BANK, self._task.keys - k0)
        src = view.like(view.offset + first * row + k0 * col, (rows, width), (step, col))
        dma_load(self._b, tile[:rows, :width], src.ap())
        return BiasTiles(tile)


def sums_on_chip(q: Sequence[int], k: Sequence[int], v: Sequence[int]) -> bool:
    """Whether gradients of scores are added up over the batch on chip, of q [B, H, T, D], k [B, Hkv, S, D] and v
    [B, Hkv, S, E] in formats of 16 bits or more."""
    heads = count_together(q[1] // k[1], k[1], 2 * min(q[3], v[3]))
    return (heads + 1) * count_blocks(q[2]) * k[2] * float32.itemsize <= SUMMED_BYTES


class BiasGradient:
    """The gradient of the scores with their bias [B, H, T, S], or its sum over the batch [1, H, T, S], in float32:
    heads are worked on in one element of the batch after the other then."""

    def __init__(self, b: Builder, task: Task, grad: HbmView) -> None:
        self._b, self._task, self._grad = b, task, grad
        self._sums = grad.shape[0] < task.batch
        self._tiles: dict[int, AP] = {}
        nq = count_blocks(task.queries)
        if self._sums:
            self._pool = b.pool((P, nq, task.keys), float32, bufs=fewest_heads(task) + 1, name="dbias")
        else:
            self._pool = b.pool((P, min(BANK, task.keys)), float32, bufs=3, name="dbias")
        if not self._sums and task.causal:
            self._zeros = b.tile((P, min(BANK, task.keys)), float32, name="zeros")
            b.memset(dst=self._zeros, value=0.0, engine=Engine.GPSIMD)

    def add(self, ds: AP, batch: int, head: int, block: int, k0: int) -> None:
        """Take the gradients ds [queries of a block, keys from k0] of one head; all keys that a block sees, in
        order."""
        if self._sums:
            self._sum(ds, batch, head, block, k0)
        else:
            self._store(self._grad[batch, head], ds, block * P, k0)

    def _sum(self, ds: AP, batch: int, head: int, block: int, k0: int) -> None:
        t, n, end = self._task, ds.partitions, k0 + ds.free
        if head not in self._tiles:
            self._tiles[head] = self._pool.next()
            if t.causal:
                self._b.memset(dst=self._tiles[head], value=0.0, engine=Engine.GPSIMD)
        dst = self._tiles[head][:n, block, k0:end]
        if batch == 0:
            self._b.tensor_copy(dst=dst, src=ds, engine=Engine.GPSIMD)
        else:
            self._b.tensor_tensor(dst=dst, data1=dst, data2=ds, op="add", engine=Engine.GPSIMD)
        if batch + 1 < t.batch or end < t.span(block * P + n):
            return
        row = self._grad[0, head][block * P : block * P + n]
        dma_store(self._b, row.ap(), self._tiles[head][:n, block])
        if block == count_blocks(t.queries) - 1:
            del self._tiles[head]

    def _store(self, view: HbmView, ds: AP, q0: int, k0: int) -> None:
        """One element of the batch's, and zeros where causality hides whole blocks of keys."""
        b, t, n, end = self._b, self._task, ds.partitions, k0 + ds.free
        tile = self._pool.next()[:n, : ds.free]
        b.tensor_copy(dst=tile, src=ds, engine=Engine.GPSIMD)
        dma_store(b, view[q0 : q0 + n, k0:end].ap(), tile)
        if end == t.span(q0 + n):
            for first, width in pieces(end, t.keys, BANK):
                dma_store(b, view[q0 : q0 + n, first : first + width].ap(), self._zeros[:n, :width])
