# SPDX-License-Identifier: Apache-2.0
"""What the stages of attention forward share: the pieces of its work, and where they live on chip.

Letters: B batch, H heads, T queries, S keys, D head size, E that of values.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from trnlab.isa.base import Engine
from trnlab.kernels.attention_bias import BiasTiles, ForwardBias, HidingBias, ShiftedBias
from trnlab.kernels.attention_tiles import (
    BLOCKS,
    LANE,
    RESERVE,
    Constants,
    HeadGroup,
    HeadTiles,
    Task,
    copier,
    count_blocks,
    pieces,
    plan_groups,
    token_pool,
)
from trnlab.kernels.blocks import BANK, P
from trnlab.kernels.heads.lanes import HeadLanes
from trnlab.numerics.dtypes import DType, float32
from trnlab.program.access import AP
from trnlab.program.builder import Builder
from trnlab.program.pool import TilePool

LEAD = 3  # superblocks from the transposes to the exponentials
ROW_BYTES = 4096  # of a partition: scores whose maximum is found in one instruction
SHARED_BANKS = ((0, 1), (2, 3), (4, 5))  # all emptied by ScalarE
MAXIMA_BANKS, SCORE_BANKS = ((0,), (1,), (2,)), ((3,), (4,), (5,))  # emptied by VectorE, by ScalarE
OUT_BANKS = (6, 7)


@dataclass(eq=False)
class Pack:
    """Query heads [head, +heads) of a group that are worked on together, with the key heads they use."""

    group: HeadGroup
    head: int
    heads: int
    kv: int
    kvs: int
    kt: list[AP] = field(init=False)  # [rows, kvs, S] of each chunk of D: K^T, then a row of ones
    qt: list[AP] = field(init=False)  # [rows, heads, T] of each chunk of D: Q^T, then a row of -m
    shifted: list[AP] = field(init=False)  # the same; of lanes, whose qt has zeros for -m
    k_lanes: AP = field(init=False)  # [128, blocks of S, heads * lane]: a column of ones, then K
    q_lanes: AP = field(init=False)  # [128, blocks of T, heads * lane]: a column of zeros, later -m, then Q
    values: AP = field(init=False)  # [128, kvs, blocks of S, E + 1]: V, then a column of ones

    def key(self, head: int) -> int:
        """Which of the pack's key heads its query head uses."""
        return head if self.kvs == self.heads else 0


@dataclass(eq=False)
class Superblock:
    """One superblock: queries [q0, q1) of each head of a pack."""

    pack: Pack
    q0: int
    q1: int
    # starts, ends: of its pack, of its group
    starts: bool
    ends: bool
    shift: AP = field(init=False)  # -m as [1, heads, queries]
    sums: AP = field(init=False)  # [128, heads, blocks, E + 1] in PSUM
    reductions: list[tuple[AP, AP]] = field(default_factory=list)  # -m, and the maxima of strips it is made of
    bias: list[BiasTiles] = field(default_factory=list)  # of each head


class _Recast(TilePool):
    """The first bank of each tile of another pool as a tile of another format; both pools turn together."""

    def __init__(self, pool: TilePool, tiles: list[AP]) -> None:
        super().__init__(tiles)
        self._pool, self._of = pool, dict(zip(pool.tiles, tiles))

    def next(self) -> AP:
        """The bank whose turn it is."""
        return self._of[self._pool.next()]


class AttentionMemory:
    """PSUM, SBUF and the constants of one call.

    Where VectorE and ScalarE take turns at PSUM, ScalarE alone empties it: it copies what the maxima are taken of to
    SBUF, where VectorE reads 16-bit scores at twice the rate, and nobody waits. All tiles of scores are then one
    rotation, of two banks each, for fewer instructions. Elsewhere the engine that reads a tile empties it.
    """

    def __init__(self, b: Builder, task: Task, out: DType, side_by_side: bool = False) -> None:
        """side_by_side: see `attention_forward`."""
        self.b, self.task = b, task
        self.side_by_side, self.lanes = side_by_side, HeadLanes.of(task, b.chip) if side_by_side else None
        self.chunks = list(pieces(0, task.depth, P))  # of D, that the PE array contracts over at a time
        # Row of the last contraction that holds -m: a quadrant's first, where engines can write; none left for more
        # than 96 of D.
        *whole, (_, last) = self.chunks
        self.shift_row = -(-last // LANE) * LANE
        self.fused = self.shift_row < P
        self.rows = [*(n for _, n in whole), self.shift_row + 1 if self.fused else last]  # of the contractions
        self.constants = Constants(b, task.dtype)
        room = BANK // (task.value_depth + 1)  # query blocks of heads whose sums a bank holds
        self.blocks = max(1, min(BLOCKS, room))  # query blocks of a superblock
        if self.lanes is not None:
            self.blocks = max(1, self.blocks // self.lanes.count)
        if task.bias is not None:
            self.blocks = min(self.blocks, (ShiftedBias if task.shifted else HidingBias).blocks_that_fit(task))
        self.most = self._most_heads(room, side_by_side)  # heads of a superblock
        self.bias = self._open_bias()
        self.copies = not b.chip.has("parallel_ports")  # maxima are taken of copies in SBUF
        self.banks = len(SHARED_BANKS[0]) if self.copies else len(SCORE_BANKS[0])  # of a tile of scores
        self.lookahead = 4 - self.banks  # tiles of scores between exp and P V
        self._open_psum()
        self._open_sbuf(out)

    def _most_heads(self, room: int, side_by_side: bool) -> int:
        """Heads of a superblock, at most: with all query blocks of theirs as many as a superblock has, or of short
        sequences what a bank of scores and one of sums hold."""
        t = self.task
        apart = t.bias is not None and not t.shifted and (t.bias.shape[1] > 1 or not side_by_side)
        whole = self.blocks // count_blocks(t.queries)
        if apart or not side_by_side:
            return 1 if apart else max(1, whole)
        most, lanes = max(1, whole), 1 if self.lanes is None else self.lanes.count
        if whole or lanes > 1:
            blocks = min(self.blocks, count_blocks(t.queries))
            most = max(most, min(room // blocks, BANK // min(t.queries, blocks * P)))
        return most - most % lanes if most > lanes else most

    def _open_bias(self) -> ForwardBias | None:
        b, t = self.b, self.task
        if t.bias is None:
            return None
        if not t.shifted:
            return HidingBias(b, t, self.constants, self.blocks)
        return ShiftedBias(b, t, self.constants, self.blocks, min(self.most, t.heads))

    def _open_psum(self) -> None:
        self.scores = self._rotation(SHARED_BANKS if self.copies else SCORE_BANKS)
        self.maxima = self.scores if self.copies else self._rotation(MAXIMA_BANKS)
        self.shift_banks = self._recast(self.scores)
        self.operands = self.shift_banks if copier(self.b.chip) is Engine.SCALAR else self._recast(self.maxima)
        self.sums = TilePool([self.b.psum((P, BANK), bank=i, name="out") for i in OUT_BANKS])

    def _rotation(self, banks: tuple[tuple[int, ...], ...]) -> TilePool:
        return TilePool([self.b.psum((P, len(i) * BANK), bank=i[0], name="scores") for i in banks])

    def _recast(self, pool: TilePool) -> TilePool:
        """Tiles in the format of the operands, which transposes fill."""
        dt, size = self.task.dtype, self.b.chip.psum.bank_bytes_per_partition
        first = [tile.buffer.address // size for tile in pool.tiles]
        return _Recast(pool, [self.b.psum((P, size // dt.itemsize), dt, bank=i, name="operand") for i in first])

    def _open_sbuf(self, out: DType) -> None:
        b, t = self.b, self.task
        most = self.most
        most_kv = min(most, t.kv_heads) if t.shared == 1 else 1
        if self.lanes is not None:
            self._open_lanes(self.lanes, min(most, t.heads))
        else:
            self.kt_pools = self._transposed_pools("kT", most_kv, t.keys, self._bufs(LEAD))
            self.qt_pools = self._transposed_pools("qT", min(most, t.heads), t.queries, self._bufs(LEAD))
        adds = isinstance(self.bias, ShiftedBias) and self.bias.per_query  # VectorE, a tile ahead of exponentials
        behind = -(-(self.lookahead + adds) // count_blocks(t.span(min(t.queries, self.blocks * P))))
        self.value_pool = self._value_pool(most_kv, self._bufs(self.lead + behind))
        self.shifts = b.pool((1, BANK), t.dtype, bufs=2, name="shift") if not self.fused else None
        self.p_pool = b.pool((P, self.banks * BANK), t.dtype, bufs=self.lookahead + 2, name="p")
        self.added = b.pool((P, self.banks * BANK), float32, bufs=3, name="biased") if adds else None
        self.o_pool = b.pool((P, BANK), float32, bufs=2 + self.lookahead, name="o")
        if self.copies:
            self.row_pool = b.pool((P, ROW_BYTES // t.dtype.itemsize), t.dtype, bufs=3, name="rows")
        # Maxima of copies have been rounded already.
        items = max(BLOCKS, most * min(self.blocks, count_blocks(t.queries)))
        strips = items * -(-t.keys // self.row_length)
        self.partial_max = b.pool((P, strips), t.dtype if self.copies else float32, bufs=4, name="partial_max")
        stats = (P, t.batch * t.heads, count_blocks(t.queries))
        self.shift_all = b.tile(stats, t.dtype, name="minus_max")
        self.inverse_all = b.tile(stats, float32, name="inverse_sum")
        self._open_tokens(most, out)

    def _open_tokens(self, most: int, out: DType) -> None:
        b, t = self.b, self.task
        both = t.depth + t.value_depth
        self.groups = groups = plan_groups(b, t, b.sbuf_free - RESERVE, HeadTiles(both, both), most)
        self.packs = [pack for g in groups.all for pack in self._packs(g, most)]
        heads, kvs = groups.all[0].heads, groups.all[0].kvs
        self.q_pool = token_pool(b, "q", t.queries, heads * t.depth, t.dtype, groups.of_queries)
        self.k_pool = token_pool(b, "k", t.keys, kvs * t.depth, t.dtype, groups.of_keys)
        self.v_pool = token_pool(b, "v", t.keys, kvs * t.value_depth, t.dtype, groups.of_keys)
        self.out_pool = token_pool(b, "out", t.queries, heads * t.value_depth, out, groups.of_queries)

    @property
    def row_length(self) -> int:
        """Scores whose maximum one instruction finds."""
        return ROW_BYTES // self.task.dtype.itemsize if self.copies else BANK

    @property
    def spare(self) -> Engine:
        """Which engine has time beside what this kernel asks of it."""
        return Engine.VECTOR if self.copies else Engine.SCALAR

    @property
    def lead(self) -> int:
        """Superblocks from what first reads the tokens of a pack to its exponentials."""
        return LEAD if self.lanes is None else LEAD + 1

    def of_head(self, tiles: list[AP], head: int, shift: bool) -> list[AP]:
        """The transposed operand of a head [rows, tokens], of each chunk of D; with the row of the shift or not."""
        if self.lanes is not None:
            return [self.lanes.of_head(tile, head) for tile in tiles]  # qt has zeros for the shift
        rows = self.rows if shift else [n for _, n in self.chunks]
        return [tile[:n, head] for n, tile in zip(rows, tiles)]

    def column(self, pack: Pack) -> int:
        """Where the pack's first head is among all (batch, head) pairs."""
        return pack.group.batch * self.task.heads + pack.head

    def jobs(self) -> list[Superblock]:
        """All superblocks, in order."""
        jobs = []
        for i, pack in enumerate(self.packs):
            ends = i + 1 == len(self.packs) or self.packs[i + 1].group is not pack.group
            for q0, n in pieces(0, self.task.queries, self.blocks * P):
                last = q0 + n == self.task.queries
                jobs.append(Superblock(pack, q0, q0 + n, starts=q0 == 0, ends=ends and last))
        return jobs

    def _bufs(self, jobs: int) -> int:
        """Tiles that one pack needs of something that is in use for so many superblocks before its last."""
        per_pack = -(-self.task.queries // (self.blocks * P))
        return min(self.task.batch * self.task.heads, 1 + -(-jobs // per_pack))

    def _packs(self, group: HeadGroup, most: int) -> list[Pack]:
        """Short sequences put up to `most` heads into one superblock; heads that share keys only with each other."""
        t = self.task
        if t.shared == 1:
            if self.lanes is not None and most > self.lanes.count:  # of about the same size
                size = -(-group.heads // -(-group.heads // most))
                most = -(-size // self.lanes.count) * self.lanes.count
            return [Pack(group, h, n, h, n) for h, n in pieces(group.head, group.head + group.heads, most)]
        end = group.head + group.heads
        return [
            Pack(group, h, n, kv, 1)
            for kv in range(group.kv, group.kv + group.kvs)
            for h, n in pieces(max(kv * t.shared, group.head), min((kv + 1) * t.shared, end), most)
        ]

    def _transposed_pools(self, name: str, heads: int, tokens: int, bufs: int) -> list[TilePool]:
        """Tiles [rows, heads, tokens] of each chunk of D; in the last, what lies between D and the shift's row is
        zero, K^T's row of shift is one."""
        b, last = self.b, self.chunks[-1][1]
        pools = [b.pool((rows, heads, tokens), self.task.dtype, bufs=bufs, name=name) for rows in self.rows]
        for tile in pools[-1].tiles:
            if self.fused and last < self.shift_row:
                b.memset(dst=tile[: self.shift_row], value=0.0, engine=Engine.GPSIMD)
            if self.fused and name == "kT":
                b.memset(dst=tile[self.shift_row :], value=1.0, engine=Engine.GPSIMD)
        return pools

    def _open_lanes(self, lanes: HeadLanes, heads: int) -> None:
        """Operands in lanes, as tokens and transposed. What no head fills is zero."""
        b, t, groups = self.b, self.task, -(-heads // lanes.count)
        names = ("kT", t.keys, LEAD), ("qT", t.queries, LEAD), ("shifted qT", t.queries, 1)
        pools = [b.pool((P, groups, n), t.dtype, bufs=self._bufs(jobs), name=name) for name, n, jobs in names]
        self.kt_pools, self.qt_pools, self.shifted_pools = ([pool] for pool in pools)
        parts = ("k", t.keys, 1, 1.0), ("q", t.queries, LEAD, 0.0)  # superblocks until they are done with
        self.lane_pools = []
        for name, tokens, jobs, first in parts:
            shape = (P, count_blocks(tokens), groups * P)
            pool = b.pool(shape, t.dtype, bufs=self._bufs(jobs), name=f"{name} lanes")
            self.lane_pools.append(pool)
            for tile in pool.tiles:
                b.memset(dst=tile, value=0.0, engine=Engine.GPSIMD)
                if first:
                    every = lanes.in_tokens(tile, groups * lanes.count)[:, :, :, :1]
                    b.memset(dst=every, value=first, engine=Engine.GPSIMD)

    def _value_pool(self, heads: int, bufs: int) -> TilePool:
        """Tiles [128, heads, blocks, E + 1] whose last column is one."""
        b, t = self.b, self.task
        n, size = count_blocks(t.keys), t.value_depth
        pool = b.pool((P, heads, n, size + 1), t.dtype, bufs=bufs, name="values")
        for tile in pool.tiles:
            b.memset(dst=tile[:, :, :, size : size + 1], value=1.0, engine=Engine.GPSIMD)
        return pool
