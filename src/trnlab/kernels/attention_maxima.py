# SPDX-License-Identifier: Apache-2.0
"""The first stage of attention forward: the maximum m of each query's scores, as a row of -m beside Q^T.

    S = Q K^T              [128 queries, keys] in PSUM, the scores of several heads or query blocks side by side
    m = max S              VectorE, from PSUM, or from a copy in the format of the operands that ScalarE made
    -m as a row            transposed by the PE array, copied by ScalarE

m is rounded to the format of the operands, and rounding keeps the order of numbers, so both ways give the same m.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import groupby, product
from typing import NamedTuple

from trnlab.isa.base import Engine
from trnlab.kernels.attention_memory import AttentionMemory, Pack, Superblock
from trnlab.kernels.attention_tiles import (
    LEAST_MAXIMUM,
    DeferredInstructions,
    Term,
    accumulate,
    block_runs,
    pieces,
    transpose_tokens,
)
from trnlab.kernels.blocks import BANK, P
from trnlab.kernels.heads.lanes import HeadLanes
from trnlab.program.access import AP


class _Strip(NamedTuple):
    """Scores of n queries each of some (head of a pack, query block), of keys [k0, +keys), whose maxima go to dst."""

    rows: list[tuple[int, int]]
    n: int
    k0: int
    keys: int
    dst: AP
    whole: bool  # there are no other keys: dst is -m

    def parts(self, first: int, count: int) -> Iterator[tuple[int, int, int, int, int]]:
        """Scores [first, +count) of all of them side by side, cut at the ends of rows and of banks: head, query
        block, first key, keys, first score."""
        at, end = first, first + count
        while at < end:
            row, key = divmod(at, self.keys)
            length = min(self.keys - key, end - at, BANK - (at - first) % BANK)
            yield *self.rows[row], self.k0 + key, length, at - first
            at += length


class Maxima:
    """Records the maxima of superblocks."""

    def __init__(self, memory: AttentionMemory) -> None:
        self.b, self.task, self.memory = memory.b, memory.task, memory
        self._waiting: list[tuple[_Strip, AP]] = []  # a strip's copied scores, while VectorE adds a bias to others

    def steps(self, job: Superblock) -> list[DeferredInstructions]:
        """Find the maxima of all queries of the superblock."""
        m = self.memory
        if m.bias is not None:
            heads = range(job.pack.head, job.pack.head + job.pack.heads)
            job.bias = [m.bias.tile(job.pack.group.batch, head, job.q0, job.q1) for head in heads]
        steps = []
        for first, n, count in block_runs(job.q0, job.q1):
            for number, run in groupby(range(first, first + count), key=lambda i: self._strips(i * P + n)):
                for strip in self._run(job, list(run), n, number):
                    steps += self._strip_steps(job, strip)
        if m.lanes is not None and self._is_early(job):
            steps.append(DeferredInstructions(0, partial(self._into_lanes, job, m.lanes)))
        return steps

    def reduce(self, job: Superblock) -> list[DeferredInstructions]:
        """-m of queries that see several strips."""
        self._flush()
        return [
            DeferredInstructions(0, partial(self.b.tensor_reduce, dst=dst, data=parts, op="max", negate=True))
            for dst, parts in job.reductions
        ]

    def shift(self, job: Superblock) -> None:
        """-m from a column per query block to a row. A transpose, in which a NaN does not reach other queries."""
        m, pack, width = self.memory, job.pack, job.q1 - job.q0
        if m.lanes is not None:
            self._shift_lanes(job, m.lanes)
            return
        if m.bias is not None:
            self._limit_shift(job)
        bank = m.shift_banks.next()[:1].with_dims((width, pack.heads), (1, width))
        for i in range(pack.heads):
            for q0, n in pieces(job.q0, job.q1, P):
                column = m.shift_all[:n, m.column(pack) + i, q0 // P : q0 // P + 1]
                self.b.nc_transpose(dst=bank[:, i, q0 - job.q0 : q0 - job.q0 + n], data=column)
        if m.shifts is None:
            job.shift = pack.qt[-1][m.shift_row : m.shift_row + 1, :, job.q0 : job.q1]
        else:
            job.shift = m.shifts.next().with_dims((width, pack.heads), (1, width))
        self.b.activation(dst=job.shift, data=bank, op="copy")

    def _shift_lanes(self, job: Superblock, lanes: HeadLanes) -> None:
        """Tokens with -m in the first column of each head's lane, transposed once more."""
        b, m, pack = self.b, self.memory, job.pack
        if not self._is_early(job):
            self._into_lanes(job, lanes)
        if job.q0 == 0:
            pack.shifted = [pool.next()[:, : pack.qt[0].dims[0][1]] for pool in m.shifted_pools]
        (shifted,) = pack.shifted
        dst, tokens = shifted[:, :, job.q0 : job.q1], pack.q_lanes[:, job.q0 // P :]
        for step in transpose_tokens(b, m.shift_banks, dst, tokens, 0, Engine.SCALAR):
            step.record()

    def _is_early(self, job: Superblock) -> bool:
        """Whether -m of a superblock is there as soon as its scores are: nothing is joined or waits."""
        return not job.reductions and self.memory.added is None

    def _into_lanes(self, job: Superblock, lanes: HeadLanes) -> None:
        """-m of each head beside its queries."""
        m, pack, row = self.memory, job.pack, self.memory.column(job.pack)
        if m.bias is not None:
            self._limit_shift(job)
        for block, n, count in block_runs(job.q0, job.q1):
            src = m.shift_all[:n, row : row + pack.heads, block : block + count].permute(1, 0)
            dst = lanes.in_tokens(pack.q_lanes[:n, block : block + count], pack.heads)[:, :, :, 0]
            self.b.tensor_copy(dst=dst, src=src, engine=Engine.GPSIMD)

    def _limit_shift(self, job: Superblock) -> None:
        """Let queries that see no key have exponentials of zero."""
        row = self.memory.column(job.pack)
        for block, n, count in block_runs(job.q0, job.q1):
            shift = self.memory.shift_all[:n, row : row + job.pack.heads, block : block + count]
            self.b.tensor_scalar(dst=shift, data=shift, operand0=-LEAST_MAXIMUM, op0="min")

    def _strips(self, q_end: int) -> int:
        return -(-self.task.span(q_end) // self.memory.row_length)

    def _run(self, job: Superblock, blocks: list[int], n: int, strips: int) -> Iterator[_Strip]:
        """The strips of query blocks of n rows that see so many of them."""
        m, pack, row = self.memory, job.pack, self.memory.column(job.pack)
        total = m.shift_all[:n, row : row + pack.heads, blocks[0] : blocks[-1] + 1]
        if strips == 1:
            for heads, some, keys in self._rectangles(pack, blocks, n):
                dst = total[:, heads[0] : heads[-1] + 1, some[0] - blocks[0] : some[-1] - blocks[0] + 1]
                yield _Strip(list(product(heads, some)), n, 0, keys, dst, whole=True)
            return
        items = len(blocks) * pack.heads
        parts = m.partial_max.next()[:n, : items * strips].split(0, pack.heads, len(blocks), strips)
        job.reductions.append((total, parts))
        for (i, block), head in product(enumerate(blocks), range(pack.heads)):
            for strip, (k0, keys) in enumerate(pieces(0, self.task.span(block * P + n), m.row_length)):
                yield _Strip([(head, block)], n, k0, keys, parts[:, head, i, strip], whole=False)

    def _rectangles(self, pack: Pack, blocks: list[int], n: int) -> Iterator[tuple[range, range, int]]:
        """Heads and query blocks that see the same number of keys, together at most a row of scores."""
        for keys, run in groupby(blocks, key=lambda i: self.task.span(i * P + n)):
            some, most = list(run), self.memory.row_length // keys
            if most >= len(some):
                for head, heads in pieces(0, pack.heads, most // len(some)):
                    yield range(head, head + heads), range(some[0], some[-1] + 1), keys
            else:
                for head, (block, count) in product(range(pack.heads), pieces(some[0], some[-1] + 1, most)):
                    yield range(head, head + 1), range(block, block + count), keys

    def _strip_steps(self, job: Superblock, strip: _Strip) -> list[DeferredInstructions]:
        m, columns = self.memory, len(strip.rows) * strip.keys
        row = m.row_pool.next()[: strip.n, :columns] if m.copies else None
        return [
            DeferredInstructions(count, partial(self._scores, job, strip, first, count, row))
            for first, count in pieces(0, columns, m.banks * BANK)
        ]

    def _scores(self, job: Superblock, strip: _Strip, first: int, count: int, row: AP | None) -> None:
        """Scores [first, +count) of a strip, in PSUM, and after the last of them the maxima of its rows."""
        m, task, pack, n = self.memory, self.task, job.pack, strip.n
        scores = m.maxima.next()[:n]
        firsts: list[Term] = []
        more: list[Term] = []
        for head, block, k0, keys, at in strip.parts(first, count):
            q0, dst = block * P, scores[:, at : at + keys]
            operands = zip(m.of_head(pack.qt, head, shift=False), m.of_head(pack.kt, pack.key(head), shift=False))
            one, *others = ((dst, qt[:, q0 : q0 + n], kt[:, k0 : k0 + keys]) for qt, kt in operands)
            firsts.append(one)
            more += others
            start = max(q0, k0)
            if task.causal and k0 + keys > start:
                mask = m.constants.mask_keys_after()[:n, start - q0 : k0 + keys - q0]
                more.append((dst[:, start - k0 :], m.constants.identity()[:n, :n], mask))
            if m.bias is not None:
                more += m.bias.to_queries(dst, job.bias[head], (q0 - job.q0) // P, k0)
        accumulate(self.b, firsts, more, in_lanes=m.lanes is not None)
        if row is not None:
            self.b.activation(dst=row[:, first : first + count], data=scores[:, :count], op="copy")
        if first + count == len(strip.rows) * strip.keys:
            if row is None or m.added is None:
                self._maximum(strip, scores[:, first : first + count] if row is None else row)
                return
            self._flush()
            self._waiting.append((strip, row))

    def _flush(self) -> None:
        while self._waiting:
            self._maximum(*self._waiting.pop())

    def _maximum(self, strip: _Strip, scores: AP) -> None:
        rows = scores.with_dims((strip.keys, len(strip.rows)), (1, strip.keys))
        self.b.tensor_reduce(dst=strip.dst, data=rows, op="max", negate=strip.whole)
