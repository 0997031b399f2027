# SPDX-License-Identifier: Apache-2.0
"""Attention forward: out = softmax(scale * q k^T + bias) v, whose scores never leave the chip.

Letters: B batch, H heads, T queries, S keys, D head size, E that of values.

The probabilities are needed with keys on partitions, to be the stationary operand of P V; their row maximum is
needed with queries on partitions, where VectorE can reduce. Transposing every tile of probabilities would cost the
PE array a third pass, and VectorE or ScalarE another trip through PSUM, so the scores are computed twice, once each
way round:

    maxima         S = Q K^T       [128 queries, up to 512 keys] in PSUM; VectorE finds the row maximum m
    exponentials   S^T - m         [128 keys, up to 512 queries] in PSUM: -m enters as one more row of the
                                   contraction, a row of ones in K^T times a row of -m in Q^T
                   P^T = exp(...)  ScalarE, from PSUM to SBUF
    products       O += P^T.T [V 1]  [128 queries, E + 1] in PSUM: the column of ones gives the row sums

Neither the accumulator nor the sums are ever rescaled, however long S is. m is rounded to the format of the inputs:
any value near the maximum serves as long as everyone uses the same one (in bf16 exp stays finite for scores up to
2e4). When D leaves no free quadrant for the row of -m, a matmul that contracts over one row adds it. Heads of more
than 128 are contracted over in two chunks, which add up in PSUM.

The causal mask and a bias that hides are further terms of the accumulation in PSUM (identity times mask), which costs
the PE array a little and the other engines nothing; any other bias: `attention_bias`. Blocks above the diagonal are
skipped.

Order is what keeps the engines busy, for each executes its instructions in the order given here. The work is cut
into superblocks, up to four query blocks of one head or, when T is short, of several heads. What superblocks ahead
need is woven into the exponentials of this one: the operands of the third are transposed, the maxima of the second
found (`attention_maxima`), those of the first made a row. Products run a few tiles behind their exponentials
(`attention_products`). Banks of PSUM are in rotations, each emptied by one engine (`attention_memory`).
"""

from __future__ import annotations

from functools import partial

from trnlab.errors import CapacityError
from trnlab.isa.base import Engine
from trnlab.kernels.attention_maxima import Maxima
from trnlab.kernels.attention_memory import LEAD, AttentionMemory, Pack, Superblock
from trnlab.kernels.attention_products import Products
from trnlab.kernels.attention_tiles import (
    DeferredInstructions,
    Task,
    block_runs,
    copier,
    load_tokens,
    pieces,
    tokens_on_chip,
    transpose_tokens,
    weave,
)
from trnlab.kernels.heads.lanes import HeadLanes
from trnlab.kernels.view import HbmView
from trnlab.numerics.dtypes import float32
from trnlab.program.access import AP
from trnlab.program.builder import Builder
from trnlab.program.pool import TilePool

WIDENED = 1024  # values of a partition that GpSimdE copies at a time


def attention_forward(
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
    side_by_side: bool = False,
) -> None:
    """Record softmax(scale * q k^T + bias) v into `out`, and the log of the softmax's denominator into `lse`.

    q [B, H, T, D]; k [B, Hkv, S, D] with H a multiple of Hkv; v [B, Hkv, S, E]; out [B, H, T, E]; lse [B, H, T]
    float32, or None when nobody needs it; bias [B or 1, H or 1, T or 1, S], of 0 and minus infinity only, or
    `shifted` as `Task` has it. A query that sees no key gives zero, and a finite lse. D and E <= 256, scale > 0;
    causal (query t sees keys 0..t) needs T >= S.
    side_by_side: narrow heads lie beside each other on partitions, and short sequences come more heads at a time.
    Any strides will do; DMA is fast when the heads of one token are adjacent. SBUF holds the operands of one head
    whole: CapacityError beyond about 10,000 tokens of 128 values in bf16.
    """
    task = Task(q, k, v, bias, causal, scale, shifted)
    with b.scope():
        _Forward(b, task, out, side_by_side).run(lse)


def has_room(b: Builder, task: Task, longest: int) -> bool:
    """Whether `attention_forward` has room, in what is free in `b`, for at most so many tokens of a task, results in
    float32."""
    trial = Builder(b.name, b.chip, sbuf_limit=b.sbuf_free, banks=b.banks)
    try:
        AttentionMemory(trial, task.at_most(trial, longest), float32)
    except CapacityError:
        return False
    return True


class _Forward:
    """The state of one call while it is recorded."""

    def __init__(self, b: Builder, task: Task, out: HbmView, side_by_side: bool) -> None:
        self.b, self.task = b, task
        self.memory = AttentionMemory(b, task, out.dtype, side_by_side)
        self.maxima, self.products = Maxima(self.memory), Products(self.memory, out)
        self._loaded: dict[int, tuple[AP, AP, AP]] = {}

    def run(self, lse: HbmView | None) -> None:
        """Record the whole call."""
        jobs = self.memory.jobs()
        for i in range(-LEAD - 1, len(jobs)):
            self._record(*(jobs[j] if 0 <= j < len(jobs) else None for j in range(i, i + LEAD + 2)))
        self.products.flush()
        if lse is not None:
            self.products.store_lse(lse)

    def _record(self, job: Superblock | None, *ahead: Superblock | None) -> None:
        """The exponentials of a superblock, among what the ones ahead of it need."""
        after, later, last, next_to_last = ahead
        back = self.products.steps(job) if job is not None else []
        front = self._arrange(next_to_last) if next_to_last is not None else []
        front += self._prepare(last) if last is not None else []
        maxima = self.maxima.steps(later) if later is not None else []
        shift = []
        if after is not None:
            front += self.maxima.reduce(after)
            shift = [
                DeferredInstructions(after.pack.heads * (after.q1 - after.q0), partial(self.maxima.shift, after))
            ]
        half = len(maxima) // 2
        weave(back, [*front, *maxima[:half], *shift, *maxima[half:]])

    # -- operands ---------------------------------------------------------------------------------------------------
    def _load_groups(self, index: int) -> None:
        """The tokens of this group, unless they are there, and of the next one if there is room. Keys and values that
        the group before has are there."""
        t, m = self.task, self.memory
        for i in range(index, min(index + 2, len(m.groups.all))):
            g = m.groups.all[i]
            if i in self._loaded or (i > index and not m.groups.is_ahead(g)):
                continue
            if m.groups.brings_keys(g):
                k = self._tokens(t.k[g.batch, g.kv : g.kv + g.kvs], m.k_pool)
            q = self._tokens(t.q[g.batch, g.head : g.head + g.heads], m.q_pool)
            if m.groups.brings_keys(g):
                self._loaded[i] = q, k, self._tokens(t.v[g.batch, g.kv : g.kv + g.kvs], m.v_pool)
            else:
                self._loaded[i] = q, *self._loaded[i - 1][1:]

    def _tokens(self, view: HbmView, pool: TilePool) -> AP:
        """Tokens where they lie in SBUF already, else loaded into the next tile of a pool."""
        found = tokens_on_chip(self.b, view)
        if found is None:
            found = pool.next()
            load_tokens(self.b, found, view)
        return found

    def _prepare(self, job: Superblock) -> list[DeferredInstructions]:
        """For a new pack K^T and Q^T, through the PE array, and V beside its column of ones, through GpSimd."""
        if not job.starts:
            return []
        pack, m = job.pack, self.memory
        group = pack.group
        if m.lanes is not None:
            return self._transpose_lanes(pack)
        index = m.groups.all.index(group)
        self._load_groups(index)
        q, k, v = self._loaded[index]
        steps: list[DeferredInstructions] = []
        before = m.packs[m.packs.index(pack) - 1]
        follows = pack.head > group.head or not m.groups.brings_keys(group)
        if follows and before.kv == pack.kv:
            pack.kt, pack.values = before.kt, before.values
        else:
            pack.kt = [pool.next()[:, : pack.kvs] for pool in m.kt_pools]
            pack.values = m.value_pool.next()[:, : pack.kvs]
            steps += self._transpose(pack.kt, k, pack.kv - group.kv)
            steps += self._widen(pack, v, (pack.kv - group.kv) * self.task.value_depth)
        pack.qt = pack.shifted = [pool.next()[:, : pack.heads] for pool in m.qt_pools]
        return steps + self._transpose(pack.qt, q, pack.head - group.head)

    def _transpose(self, to: list[AP], tokens: AP, head: int) -> list[DeferredInstructions]:
        """Each chunk of D of some heads, from `head` of a tile of tokens on."""
        b, m, depth, engine = self.b, self.memory, self.task.depth, copier(self.b.chip)
        return [
            step
            for dst, (first, count) in zip(to, m.chunks)
            for step in transpose_tokens(b, m.operands, dst[:count], tokens, head * depth + first, engine, depth)
        ]

    def _transpose_lanes(self, pack: Pack) -> list[DeferredInstructions]:
        b, m, steps = self.b, self.memory, []
        assert m.lanes is not None
        groups = -(-pack.heads // m.lanes.count)
        pack.kt, pack.qt = ([pool.next()[:, :groups] for pool in pools] for pools in (m.kt_pools, m.qt_pools))
        for (dst,), tokens in ((pack.kt, pack.k_lanes), (pack.qt, pack.q_lanes)):
            steps += transpose_tokens(b, m.operands, dst, tokens, 0, copier(b.chip))
        return steps

    def _arrange(self, job: Superblock) -> list[DeferredInstructions]:
        """For a new pack in lanes: its tokens in these, through GpSimd, a superblock ahead of their transposes."""
        m, pack, depth = self.memory, job.pack, self.task.depth
        if m.lanes is None or not job.starts:
            return []
        index = m.groups.all.index(pack.group)
        self._load_groups(index)
        q, k, v = self._loaded[index]
        pack.k_lanes, pack.q_lanes = (pool.next() for pool in m.lane_pools)
        pack.values, first = m.value_pool.next()[:, : pack.kvs], pack.head - pack.group.head
        steps = []
        parts = (pack.k_lanes, k, self.task.keys, m.spare), (pack.q_lanes, q, self.task.queries, Engine.VECTOR)
        for tile, tokens, count, engine in parts:
            steps += self._into_lanes(m.lanes, tile, tokens[:, :, first * depth :], (pack.heads, count), engine)
        for start, rows, blocks in block_runs(0, self.task.queries):
            shift = m.lanes.in_tokens(pack.q_lanes[:rows, start : start + blocks], pack.heads)[:, :, :, :1]
            record = partial(self.b.memset, dst=shift, value=0.0, engine=Engine.GPSIMD)
            steps.append(DeferredInstructions(0, record))
        return steps + self._widen(pack, v, first * self.task.value_depth)

    def _into_lanes(
        self, lanes: HeadLanes, tile: AP, tokens: AP, counts: tuple[int, int], engine: Engine
    ) -> list[DeferredInstructions]:
        """Tokens, a few blocks at a time. counts: heads and tokens."""
        depth, (heads, count), steps = self.task.depth, counts, []
        for start, rows, blocks in block_runs(0, count):
            for block, n in pieces(start, start + blocks, max(1, WIDENED // (heads * depth))):
                src = tokens[:rows, block : block + n, : heads * depth].split(1, heads, depth)
                dst = lanes.in_tokens(tile[:rows, block : block + n], heads)[:, :, :, 1 : 1 + depth]
                record = partial(self.b.tensor_copy, dst=dst, src=src, engine=engine)
                steps.append(DeferredInstructions(0, record))
        return steps

    def _widen(self, pack: Pack, v: AP, col: int) -> list[DeferredInstructions]:
        """V beside its column of ones, a few blocks at a time: other engines may have to wait for each."""
        depth, steps = self.task.value_depth, []
        engine = self.memory.spare if self.memory.side_by_side else Engine.GPSIMD
        for first, rows, blocks in block_runs(0, self.task.keys):
            for block, count in pieces(first, first + blocks, max(1, WIDENED // (pack.kvs * depth))):
                src = v[:rows, block : block + count, col : col + pack.kvs * depth].split(1, pack.kvs, depth)
                dst = pack.values[:rows, :, block : block + count, :depth].permute(1, 0, 2)
                steps.append(DeferredInstructions(0, partial(self.b.tensor_copy, dst=dst, src=src, engine=engine)))
        return steps
