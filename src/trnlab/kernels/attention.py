# SPDX-License-Identifier: Apache-2.0
"""Attention forward: out = softmax(scale * q k^T + bias) v, whose scores never leave the chip.

Letters: B batch, H heads, T queries, S keys, D head size.

The probabilities are needed with keys on partitions, to be the stationary operand of P V; their row maximum is
needed with queries on partitions, where VectorE can reduce. Transposing every tile of probabilities would cost the
PE array a third pass, and VectorE or ScalarE another trip through PSUM, so the scores are computed twice, once each
way round:

    maxima         S = Q K^T       [128 queries, up to 512 keys] in PSUM; VectorE finds the row maximum m
    exponentials   S^T - m         [128 keys, up to 512 queries] in PSUM: -m enters as one more row of the
                                   contraction, a row of ones in K^T times a row of -m in Q^T
                   P^T = exp(...)  ScalarE, from PSUM to SBUF
    products       O += P^T.T [V 1]  [128 queries, D + 1] in PSUM: the column of ones gives the row sums

Neither the accumulator nor the sums are ever rescaled, however long S is. m is rounded to the format of the inputs:
any value near the maximum serves as long as everyone uses the same one (in bf16 exp stays finite for scores up to
2e4). When D leaves no free quadrant for the row of -m, a matmul that contracts over one row adds it.

The causal mask and a bias are further terms of the accumulation in PSUM (identity times mask), which costs the PE
array a little and the other engines nothing. Blocks above the diagonal are skipped.

Order is what keeps the engines busy, for each executes its instructions in the order given here. The work is cut
into superblocks, up to four query blocks of one head or, when T is short, of several heads. What superblocks ahead
need is woven into the exponentials of this one: the operands of the third are transposed, the maxima of the second
found, those of the first made a row. Products run a few tiles behind their exponentials. PSUM banks are in three
rotations, each emptied by one engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby

from trnlab.errors import CapacityError
from trnlab.isa.base import Engine
from trnlab.kernels.attention_tiles import (
    LEAST_MAXIMUM,
    RESERVE,
    Bias,
    Constants,
    Group,
    Step,
    Task,
    accumulate,
    block_runs,
    by_rows,
    copier,
    count_blocks,
    load_tokens,
    pieces,
    plan_groups,
    store_statistics,
    store_tokens,
    token_pool,
    transpose_tokens,
    weave,
)
from trnlab.kernels.blocks import BANK, P
from trnlab.kernels.view import View, full
from trnlab.numerics.dtypes import float32
from trnlab.program.access import AP
from trnlab.program.builder import Builder, Pool

LEAD = 3  # superblocks from the transposes to the exponentials
LOOKAHEAD = 3  # tiles of scores between exp and P V
QUADRANT = 32
LEAST_SUM = 1e-37  # of exponentials: their inverse is finite
MAXIMA_BANKS, SCORE_BANKS, OUT_BANKS = (0, 1, 2), (3, 4, 5), (6, 7)  # emptied by VectorE, ScalarE, ScalarE


def attention_forward(
    b: Builder,
    q: View,
    k: View,
    v: View,
    out: View,
    lse: View | None,
    *,
    causal: bool,
    scale: float,
    bias: View | None = None,
) -> None:
    """Record softmax(scale * q k^T + bias) v into `out`, and the log of the softmax's denominator into `lse`.

    q, out [B, H, T, D]; k, v [B, Hkv, S, D] with H a multiple of Hkv; lse [B, H, T] float32, or None when nobody
    needs it; bias [B or 1, H or 1, T or 1, S], of 0 and minus infinity only. A query that sees no key gives zero,
    and a finite lse. D <= 128, scale > 0; causal (query t sees keys 0..t) needs T >= S. Any strides will do; DMA is
    fast when the heads of one token are adjacent. SBUF holds the operands of one head whole: CapacityError beyond
    about 6000 tokens of 128
    values in bf16.
    """
    task = Task(q, k, v, bias, causal, scale)
    with b.scope():
        _Forward(b, task, out, lse).run()


def has_room(b: Builder, task: Task, longest: int) -> bool:
    """Whether `attention_forward` has room, in what is free in `b`, for at most so many tokens of a task, results in
    float32."""
    trial = Builder(b.name, b.chip, sbuf_limit=b.sbuf_free)
    q, k, v = (
        full(trial.param("operand", (*x.shape[:2], min(x.shape[2], longest), x.shape[3]), x.dtype))
        for x in (task.q, task.k, task.v)
    )
    bias = None
    if task.bias is not None:
        rows = min(task.bias.shape[2], longest)
        bias = full(trial.param("bias", (*task.bias.shape[:2], rows, k.shape[2]), task.bias.dtype))
    out = full(trial.param("out", q.shape, float32))
    try:
        _Forward(trial, Task(q, k, v, bias, task.causal, task.scale), out, None)
    except CapacityError:
        return False
    return True


@dataclass(eq=False)
class _Pack:
    """Query heads [head, +heads) of a group that are worked on together, with the key heads they use."""

    group: Group
    head: int
    heads: int
    kv: int
    kvs: int
    kt: AP = field(init=False)  # [rows, kvs, S]: K^T, then a row of ones
    qt: AP = field(init=False)  # [rows, heads, T]: Q^T, then a row of -m
    values: AP = field(init=False)  # [128, kvs, blocks of S, D + 1]: V, then a column of ones


@dataclass(eq=False)
class _Job:
    """One superblock: queries [q0, q1) of each head of a pack. `starts`, `ends`: of its pack, of its group."""

    pack: _Pack
    q0: int
    q1: int
    starts: bool
    ends: bool
    shift: AP = field(init=False)  # -m as [1, heads, queries]
    sums: AP = field(init=False)  # [128, heads, blocks, D + 1] in PSUM
    reductions: list[tuple[AP, AP]] = field(default_factory=list)  # -m, and the maxima of strips it is made of
    bias: AP | None = None


class _Forward:
    """The state of one call while it is recorded."""

    def __init__(self, b: Builder, task: Task, out: View, lse: View | None) -> None:
        self.b, self.task, self.out, self.lse = b, task, out, lse
        # Row of the contraction that holds -m: a quadrant's first, where engines can write; none left for D > 96.
        self.shift_row = -(-task.depth // QUADRANT) * QUADRANT
        self.fused = self.shift_row < P
        self.constants = Constants(b, task.dtype)
        self.blocks = max(1, min(4, BANK // (task.depth + 1)))  # query blocks of a superblock
        if task.bias is not None:
            self.blocks = min(self.blocks, Bias.blocks_that_fit(task))
        self.bias = Bias(b, task, self.constants, self.blocks) if task.bias is not None else None
        self.turn = 0  # tiles of scores so far
        self.pending: deque[Callable[[], None]] = deque()  # products with V of the last tiles
        self.later: deque[tuple[int, Callable[[], None]]] = deque()  # divisions, with the turn that they wait for
        self._loaded: dict[int, tuple[AP, AP, AP]] = {}
        self._open_psum()
        self._open_sbuf()

    # -- memory -----------------------------------------------------------------------------------------------------
    def _open_psum(self) -> None:
        b, dt = self.b, self.task.dtype
        columns = BANK * float32.itemsize // dt.itemsize
        self.maxima = Pool([b.psum((P, BANK), bank=i, name="scores") for i in MAXIMA_BANKS])
        self.scores = Pool([b.psum((P, BANK), bank=i, name="scores") for i in SCORE_BANKS])
        self.same_banks = dict(zip(self.scores.tiles, (b.psum((P, columns), dt, bank=i) for i in SCORE_BANKS)))
        banks = MAXIMA_BANKS if copier(b.chip) is Engine.VECTOR else SCORE_BANKS
        self.operands = Pool([b.psum((P, columns), dt, bank=i, name="operand") for i in banks])
        self.sums = Pool([b.psum((P, BANK), bank=i, name="out") for i in OUT_BANKS])

    def _open_sbuf(self) -> None:
        b, t = self.b, self.task
        most = max(1, self.blocks // count_blocks(t.queries)) if self.bias is None else 1  # heads of a pack
        most_kv = min(most, t.kv_heads) if t.shared == 1 else 1
        self.kt_pool = self._transposed_pool("kT", most_kv, t.keys, self._bufs(LEAD))
        self.qt_pool = self._transposed_pool("qT", min(most, t.heads), t.queries, self._bufs(LEAD))
        behind = -(-LOOKAHEAD // count_blocks(t.span(min(t.queries, self.blocks * P))))
        self.value_pool = self._value_pool(most_kv, self._bufs(LEAD + behind))
        self.shifts = b.pool((1, BANK), t.dtype, bufs=2, name="shift") if not self.fused else None
        self.p_pool = b.pool((P, BANK), t.dtype, bufs=LOOKAHEAD + 2, name="p")
        self.o_pool = b.pool((P, BANK), float32, bufs=2 + LOOKAHEAD, name="o")
        self.partial_max = b.pool((P, 4 * -(-t.keys // BANK)), float32, bufs=4, name="partial_max")
        stats = (P, t.batch * t.heads, count_blocks(t.queries))
        self.shift_all = b.tile(stats, t.dtype, name="minus_max", slots=stats[1] * stats[2])
        self.inverse_all = b.tile(stats, float32, name="inverse_sum", slots=stats[1] * stats[2])
        self.groups, self.bufs = plan_groups(t, b.sbuf_free - RESERVE, (2, 2))
        self.packs = [pack for g in self.groups for pack in self._packs(g, most)]
        q_width, k_width = self.groups[0].heads * t.depth, self.groups[0].kvs * t.depth
        self.q_pool = token_pool(b, "q", t.queries, q_width, t.dtype, self.bufs)
        self.k_pool = token_pool(b, "k", t.keys, k_width, t.dtype, self.bufs)
        self.v_pool = token_pool(b, "v", t.keys, k_width, t.dtype, self.bufs)
        self.out_pool = token_pool(b, "out", t.queries, q_width, self.out.dtype, self.bufs)

    def _bufs(self, jobs: int) -> int:
        """Tiles that one pack needs of something that is in use for so many superblocks before its last."""
        per_pack = -(-self.task.queries // (self.blocks * P))
        return min(self.task.batch * self.task.heads, 1 + -(-jobs // per_pack))

    def _packs(self, group: Group, most: int) -> list[_Pack]:
        """Short sequences put up to `most` heads into one superblock; heads that share keys only with each other."""
        t = self.task
        if t.shared == 1:
            return [_Pack(group, h, n, h, n) for h, n in pieces(group.head, group.head + group.heads, most)]
        return [
            _Pack(group, h, n, kv, 1)
            for kv in range(group.kv, group.kv + group.kvs)
            for h, n in pieces(kv * t.shared, (kv + 1) * t.shared, most)
        ]

    def _transposed_pool(self, name: str, heads: int, tokens: int, bufs: int) -> Pool:
        """Tiles [rows, heads, tokens]; what lies between D and the shift's row is zero, K^T's row of shift is one."""
        b, t = self.b, self.task
        rows = self.shift_row + 1 if self.fused else t.depth
        slots = max(1, heads * tokens // P)
        pool = Pool([b.tile((rows, heads, tokens), t.dtype, name=f"{name}{i}", slots=slots) for i in range(bufs)])
        for tile in pool.tiles:
            if self.fused and t.depth < self.shift_row:
                b.memset(dst=tile[: self.shift_row], value=0.0, engine=Engine.GPSIMD)
            if self.fused and name == "kT":
                b.memset(dst=tile[self.shift_row : rows], value=1.0, engine=Engine.GPSIMD)
        return pool

    def _value_pool(self, heads: int, bufs: int) -> Pool:
        """Tiles [128, heads, blocks, D + 1] whose last column is one."""
        b, t = self.b, self.task
        n = count_blocks(t.keys)
        pool = Pool(
            [b.tile((P, heads, n, t.depth + 1), t.dtype, name=f"values{i}", slots=heads * n) for i in range(bufs)]
        )
        for tile in pool.tiles:
            b.memset(dst=tile[:, :, :, t.depth : t.depth + 1], value=1.0, engine=Engine.GPSIMD)
        return pool

    # -- the order of things ----------------------------------------------------------------------------------------
    def run(self) -> None:
        """Record the whole call."""
        jobs = self._jobs()
        for i in range(-LEAD, len(jobs)):
            self._record(*(jobs[j] if 0 <= j < len(jobs) else None for j in range(i, i + LEAD + 1)))
        while self.pending:
            self.pending.popleft()()
        for _, step in self.later:
            step()
        if self.lse is not None:
            self._store_lse(self.lse)

    def _record(self, job: _Job | None, *ahead: _Job | None) -> None:
        """The exponentials of a superblock, among what the ones ahead of it need."""
        after, later, last = ahead
        back = self._exponential_steps(job) if job is not None else []
        front = self._prepare(last) if last is not None else []
        maxima = self._maxima(later) if later is not None else []
        shift = []
        if after is not None:
            front += self._reduce(after)
            shift = [Step(after.pack.heads * (after.q1 - after.q0), partial(self._shift, after))]
        half = len(maxima) // 2
        weave(back, [*front, *maxima[:half], *shift, *maxima[half:]])

    def _jobs(self) -> list[_Job]:
        jobs = []
        for i, pack in enumerate(self.packs):
            ends = i + 1 == len(self.packs) or self.packs[i + 1].group is not pack.group
            for q0, n in pieces(0, self.task.queries, self.blocks * P):
                last = q0 + n == self.task.queries
                jobs.append(_Job(pack, q0, q0 + n, starts=q0 == 0, ends=ends and last))
        return jobs

    # -- operands, maxima -------------------------------------------------------------------------------------------
    def _load_groups(self, index: int) -> None:
        """The tokens of this group, unless they are there, and of the next one if there is room."""
        t = self.task
        for i in range(index, min(index + self.bufs, len(self.groups))):
            if i in self._loaded:
                continue
            g = self.groups[i]
            q, k, v = self._loaded[i] = self.q_pool.next(), self.k_pool.next(), self.v_pool.next()
            load_tokens(self.b, k, t.k[g.batch, g.kv : g.kv + g.kvs])
            load_tokens(self.b, q, t.q[g.batch, g.head : g.head + g.heads])
            load_tokens(self.b, v, t.v[g.batch, g.kv : g.kv + g.kvs])

    def _prepare(self, job: _Job) -> list[Step]:
        """For a new pack K^T and Q^T, through the PE array, and V beside its column of ones, through GpSimd."""
        if not job.starts:
            return []
        pack, depth = job.pack, self.task.depth
        group = pack.group
        self._load_groups(self.groups.index(group))
        q, k, v = self._loaded[self.groups.index(group)]
        steps: list[Step] = []
        before = self.packs[self.packs.index(pack) - 1]
        if pack.head > group.head and before.kv == pack.kv:
            pack.kt, pack.values = before.kt, before.values
        else:
            pack.kt, pack.values = self.kt_pool.next()[:, : pack.kvs], self.value_pool.next()[:, : pack.kvs]
            col = (pack.kv - group.kv) * depth
            steps += transpose_tokens(self.b, self.operands, pack.kt[:depth], k, col, copier(self.b.chip))
            steps.append(Step(0, partial(self._widen, pack, v, col)))
        pack.qt = self.qt_pool.next()[:, : pack.heads]
        col = (pack.head - group.head) * depth
        return steps + transpose_tokens(self.b, self.operands, pack.qt[:depth], q, col, copier(self.b.chip))

    def _widen(self, pack: _Pack, v: AP, col: int) -> None:
        depth = self.task.depth
        for block, rows, count in block_runs(0, self.task.keys):
            src = v[:rows, block : block + count, col : col + pack.kvs * depth].split(1, pack.kvs, depth)
            dst = pack.values[:rows, :, block : block + count, :depth].permute(1, 0, 2)
            self.b.tensor_copy(dst=dst, src=src, engine=Engine.GPSIMD)

    def _maxima(self, job: _Job) -> list[Step]:
        """Steps that find the maxima of all queries of the superblock, strip by strip of 512 keys."""
        if self.bias is not None:
            job.bias = self.bias.tile(job.pack.group.batch, job.pack.head, job.q0, job.q1)
        steps = []
        for first, n, count in block_runs(job.q0, job.q1):
            for strips, run in groupby(range(first, first + count), key=lambda i: self._strips(i * P + n)):
                steps += self._run_maxima(job, list(run), n, strips)
        return steps

    def _strips(self, q_end: int) -> int:
        return -(-self.task.span(q_end) // BANK)

    def _run_maxima(self, job: _Job, blocks: list[int], n: int, strips: int) -> list[Step]:
        """Maxima of query blocks of n rows that see so many strips of keys."""
        pack, row = job.pack, self._column(job.pack)
        total = self.shift_all[:n, row : row + pack.heads, blocks[0] : blocks[-1] + 1]
        if strips > 1:
            items = len(blocks) * pack.heads
            parts = self.partial_max.next()[:n, : items * strips].split(0, pack.heads, len(blocks), strips)
            job.reductions.append((total, parts))
        steps = []
        for i, block in enumerate(blocks):
            span = self.task.span(block * P + n)
            for strip, (k0, count) in enumerate(pieces(0, span, BANK)):
                for head, heads in pieces(0, pack.heads, BANK // count):
                    dst = total[:, head : head + heads, i] if strips == 1 else parts[:, head : head + heads, i, strip]
                    step = partial(self._maximum, job, block * P, n, head, heads, k0, count, dst, strips == 1)
                    steps.append(Step(heads * count, step))
        return steps

    def _maximum(
        self, job: _Job, q0: int, n: int, head: int, heads: int, k0: int, count: int, dst: AP, negate: bool
    ) -> None:
        """dst [n, heads] = max over keys [k0, +count) of the raw scores of queries [q0, +n)."""
        task, pack = self.task, job.pack
        scores = self.maxima.next()[:n].with_dims((count, heads), (1, count))
        firsts, more = [], []
        for i in range(heads):
            moving = pack.kt[: task.depth, self._key(pack, head + i), k0 : k0 + count]
            firsts.append((scores[:, i], pack.qt[: task.depth, head + i, q0 : q0 + n], moving))
        if task.causal and k0 + count > q0:
            width = min(n, k0 + count - q0)
            mask = self.constants.mask_keys_after()[:n, :width].repeat(0, heads)
            more += by_rows(scores[:, :, q0 - k0 : q0 - k0 + width], self.constants.identity()[:n, :n], mask)
        if self.bias is not None and job.bias is not None:
            more.append(self.bias.to_queries(scores[:, 0], job.bias, (q0 - job.q0) // P, k0))
        accumulate(self.b, firsts, more)
        self.b.tensor_reduce(dst=dst, data=scores, op="max", negate=negate)

    def _reduce(self, job: _Job) -> list[Step]:
        """-m of queries that see several strips."""
        return [
            Step(0, partial(self.b.tensor_reduce, dst=dst, data=parts, op="max", negate=True))
            for dst, parts in job.reductions
        ]

    def _shift(self, job: _Job) -> None:
        """-m from a column per query block to a row. A transpose, in which a NaN does not reach other queries."""
        pack, width = job.pack, job.q1 - job.q0
        if self.bias is not None:
            self._limit_shift(job)
        bank = self.same_banks[self.scores.next()][:1].with_dims((width, pack.heads), (1, width))
        for i in range(pack.heads):
            for q0, n in pieces(job.q0, job.q1, P):
                column = self.shift_all[:n, self._column(pack) + i, q0 // P : q0 // P + 1]
                self.b.nc_transpose(dst=bank[:, i, q0 - job.q0 : q0 - job.q0 + n], data=column)
        if self.shifts is None:
            job.shift = pack.qt[self.shift_row : self.shift_row + 1, :, job.q0 : job.q1]
        else:
            job.shift = self.shifts.next().with_dims((width, pack.heads), (1, width))
        self.b.activation(dst=job.shift, data=bank, op="copy")

    def _limit_shift(self, job: _Job) -> None:
        """Let queries that see no key have exponentials of zero."""
        row = self._column(job.pack)
        for block, n, count in block_runs(job.q0, job.q1):
            shift = self.shift_all[:n, row : row + job.pack.heads, block : block + count]
            self.b.tensor_scalar(dst=shift, data=shift, operand0=-LEAST_MAXIMUM, op0="min")

    def _column(self, pack: _Pack) -> int:
        """Where the pack's first head is among all (batch, head) pairs."""
        return pack.group.batch * self.task.heads + pack.head

    def _key(self, pack: _Pack, head: int) -> int:
        """The pack's key head that its query head uses."""
        return head if self.task.shared == 1 else 0

    # -- exponentials, products with V, results ---------------------------------------------------------------------
    def _exponential_steps(self, job: _Job) -> list[Step]:
        t, width = self.task, job.q1 - job.q0
        steps = []
        for k0, n in pieces(0, t.span(job.q1), P):
            # Queries before a block of keys see none of it.
            skip = max(0, k0 - job.q0) if t.causal else 0
            steps.append(Step(job.pack.heads * (width - skip), partial(self._exponentials, job, k0, n, skip)))
        return steps

    def _exponentials(self, job: _Job, k0: int, n: int, skip: int) -> None:
        """P^T of keys [k0, +n); their product with V comes LOOKAHEAD tiles later."""
        task, pack, width = self.task, job.pack, job.q1 - job.q0
        scores = self.scores.next()[:n].with_dims((width, pack.heads), (1, width))[:, :, skip:]
        p = self.p_pool.next()[:n].with_dims((width, pack.heads), (1, width))
        rows = self.shift_row + 1 if self.fused else task.depth
        firsts, more = [], []
        for i in range(pack.heads):
            stationary = pack.kt[:rows, self._key(pack, i), k0 : k0 + n]
            firsts.append((scores[:, i], stationary, pack.qt[:rows, i, job.q0 + skip : job.q1]))
        if not self.fused:
            more += by_rows(scores, self.constants.ones()[:, :n], job.shift[:, :, skip:])
        if task.causal and k0 >= job.q0:
            seen = min(n, width - skip)  # queries from the block's end on see all of it
            mask = self.constants.mask_queries_before()[:n, :seen].repeat(0, pack.heads)
            more += by_rows(scores[:, :, :seen], self.constants.identity()[:n, :n], mask)
        if self.bias is not None and job.bias is not None:
            for q0, count in pieces(job.q0, job.q1, P):
                at = q0 - job.q0 - skip
                if at >= 0:
                    part = scores[:, 0, at : at + count]
                    more.append(self.bias.to_keys(part, job.bias, (q0 - job.q0) // P, k0))
        accumulate(self.b, firsts, more)
        self.b.activation(dst=p[:, :, skip:], data=scores, op="exp", scale=task.scale)
        self.pending.append(partial(self._products, job, k0, n, p))
        if len(self.pending) > LOOKAHEAD:
            self.pending.popleft()()
        self.turn += 1
        while self.later and self.later[0][0] <= self.turn:
            self.later.popleft()[1]()

    def _products(self, job: _Job, k0: int, n: int, p: AP) -> None:
        """Add P V of keys [k0, +n) to the accumulators [queries, D + 1] of the superblock's query blocks."""
        task, pack = self.task, job.pack
        if k0 == 0:
            job.sums = self._accumulators(job)
        for i in range(pack.heads):
            values = pack.values[:n, self._key(pack, i), k0 // P]
            for q0, count in pieces(job.q0, job.q1, P):
                span = task.span(q0 + count)
                if k0 >= span:
                    continue
                at = q0 - job.q0
                self.b.nc_matmul(
                    dst=job.sums[:count, i, at // P],
                    stationary=p[:, i, at : at + count],
                    moving=values,
                    accumulate=k0 > 0,
                    stop=k0 + n >= span,
                )
        if k0 + n >= task.span(job.q1):
            self._finish(job)

    def _accumulators(self, job: _Job) -> AP:
        """[128, heads, blocks, D + 1] of a bank."""
        width, blocks = self.task.depth + 1, count_blocks(job.q1 - job.q0)
        return self.sums.next().with_dims((blocks * width, job.pack.heads), (width, blocks), (1, width))

    def _finish(self, job: _Job) -> None:
        """out = O / l. ScalarE frees the accumulator's bank at once; VectorE and GpSimd divide when it has."""
        sums = self.o_pool.next().with_dims(*job.sums.dims)
        for block, n, count in block_runs(job.q0, job.q1):
            at = block - job.q0 // P
            self.b.activation(dst=sums[:n, :, at : at + count], data=job.sums[:n, :, at : at + count], op="copy")
        self.later.append((self.turn + LOOKAHEAD, partial(self._divide, job, sums)))

    def _divide(self, job: _Job, sums: AP) -> None:
        b, pack, depth = self.b, job.pack, self.task.depth
        if job.q0 == 0 and pack.head == pack.group.head:
            self.out_tile = self.out_pool.next()
        column, first = self._column(pack), (pack.head - pack.group.head) * depth
        for block, n, count in block_runs(job.q0, job.q1):
            part = sums[:n, :, block - job.q0 // P : block - job.q0 // P + count]
            inverse = self.inverse_all[:n, column : column + pack.heads, block : block + count]
            total = part[:, :, :, depth]
            if self.bias is not None:  # queries that see no key have sums of zero
                b.tensor_scalar(dst=total, data=total, operand0=LEAST_SUM, op0="max")
            b.reciprocal(dst=inverse, data=total)
            out = self.out_tile[:n, block : block + count, first : first + pack.heads * depth]
            b.tensor_tensor(
                dst=out.split(1, pack.heads, depth).permute(1, 0, 2),
                data1=part[:, :, :, :depth],
                data2=inverse.repeat(2, depth),
                op="multiply",
                engine=Engine.GPSIMD,
            )
        if job.ends:
            g = pack.group
            store_tokens(b, self.out[g.batch, g.head : g.head + g.heads], self.out_tile)

    def _store_lse(self, lse: View) -> None:
        """lse = scale * m + log(l), for all queries at once: changing ScalarE's table of functions takes long."""
        b, t = self.b, self.task
        for block, n, count in block_runs(0, t.queries):
            inverse = self.inverse_all[:n, :, block : block + count]
            b.activation(dst=inverse, data=inverse, op="log")
            b.scalar_tensor_tensor(
                dst=inverse,
                data=self.shift_all[:n, :, block : block + count],
                operand0=-t.scale,
                operand1=inverse,
                op0="multiply",
                op1="subtract",
            )
        store_statistics(b, self.maxima, lse, self.inverse_all)
