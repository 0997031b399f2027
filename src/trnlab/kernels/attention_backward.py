# SPDX-License-Identifier: Apache-2.0
"""Attention backward: gradients of q, k and v from that of the output, scores recomputed on chip.

Letters: B batch, H heads, T queries, S keys, D head size, E that of values.

    P  = exp(scale * Q K^T + bias - lse)      lse of the forward pass: no maximum, no sums
    dV = P^T dO,   dP = dO V^T
    dS = P * (dP - delta),   delta = rowsum(dO * O)
    dQ = scale * dS K,   dK = scale * dS^T Q

Everything is computed with queries on partitions: lse and delta are then one value per partition, which ScalarE and
VectorE apply for free; P and dS are, as they are, the stationary operands of dV and dK. Only dQ contracts over keys
and needs dS transposed, 128 columns of the PE array per block.

dK and dV of a segment of keys (512 / max(D, E) blocks, what a PSUM bank holds) accumulate in PSUM over all queries of
a head, dQ over the keys of the segment. What must be summed further (dQ over segments; dK and dV over the query heads
that share a key head) is summed in SBUF, in fp32.

A tile of scores [128 queries, up to 512 keys] passes through three stages: scores, dP and dS; then dV, dK and the
transposes two tiles later; then dQ. Meanwhile the operands of the next heads are transposed, several narrow heads
at once on different partitions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from trnlab.errors import CapacityError
from trnlab.isa.base import Engine
from trnlab.kernels.attention_bias import BiasGradient, HidingBias, ShiftedRows
from trnlab.kernels.attention_tiles import (
    Constants,
    DeferredInstructions,
    HeadGroup,
    HeadTiles,
    Task,
    Term,
    accumulate,
    block_runs,
    copier,
    count_blocks,
    evacuate,
    load_statistics,
    load_tokens,
    pieces,
    plan_groups,
    store_tokens,
    token_pool,
    transpose_tokens,
    weave,
)
from trnlab.kernels.blocks import BANK, P
from trnlab.kernels.heads.gradients import GradientUnit, GroupTokens, ScoreTile
from trnlab.kernels.view import HbmView, full
from trnlab.numerics.dtypes import DType, float32
from trnlab.program.access import AP
from trnlab.program.builder import Builder
from trnlab.program.pool import TilePool

LOOKAHEAD = 2  # tiles between dS and its use
IN_FLIGHT = LOOKAHEAD + 2  # tiles whose gradients are not all done, the one at hand among them
QUADRANT = 32
_LATER = 8 * 1024  # bytes of a partition for statistics as they come, delta, and the products that it is the sum of
# PSUM banks: the last ones for dS^T, dQ, dK and dV, those before for S and dP (and transposed operands) in turn.
OF_RESULTS, LEAST_SCORES = 4, 2


def attention_backward(
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
    shifted: bool = False,
    heard: HbmView | None = None,
    dbias: HbmView | None = None,
) -> None:
    """Record the gradients of `attention_forward` with respect to q, k and v, given that of its `out`, not the Nones
    among them, and into dbias that of scores. heard, dbias: see `ShiftedRows` and `BiasGradient`.

    Shapes, formats and limits as in `attention_forward`; `out` and `lse` are its results. SBUF holds the operands of
    the heads at hand whole, in natural and in transposed order: CapacityError beyond about 4000 tokens of
    128 values in bf16.
    """
    task = Task(q, k, v, bias, causal, scale, shifted)
    with b.scope():
        _Backward(b, task, dout, out, lse, (dq, dk, dv), heard, dbias).run()


def has_room_backward(b: Builder, task: Task, longest: int, dbias: HbmView | None = None) -> bool:
    """Whether `attention_backward` has room, in what is free in `b`, for at most so many tokens of a task, results in
    float32."""
    trial = Builder(b.name, b.chip, sbuf_limit=b.sbuf_free, banks=b.banks)
    less = task.at_most(trial, longest)
    grads = tuple(full(trial.param("gradient", x.shape, float32)) for x in (less.q, less.k, less.v))
    try:
        _Backward(trial, less, less.q, less.q, less.q, grads, None, dbias)
    except CapacityError:
        return False
    return True


class _Backward:
    """The state of one call while it is recorded."""

    def __init__(
        self,
        b: Builder,
        task: Task,
        dout: HbmView,
        out: HbmView,
        lse: HbmView,
        grads: tuple[HbmView | None, ...],  # of q, k and v
        heard: HbmView | None,
        dbias: HbmView | None,
    ) -> None:
        self.b, self.task, self.dout, self.out, self.lse, self.grads = b, task, dout, out, lse, grads
        self.constants = Constants(b, task.dtype)
        self.bias = HidingBias(b, task, self.constants, 1) if task.hides else None
        self.rows = ShiftedRows(b, task, heard) if task.shifted else None
        self.dbias = None if dbias is None else BiasGradient(b, task, dbias)
        self.copier = copier(b.chip)
        sizes = task.depth, task.value_depth
        self.segment = BANK // max(sizes) * P  # keys whose dK or dV fills a bank
        # Heads that share keys come singly.
        several = all(P % size == 0 == size % QUADRANT for size in sizes) and task.shared == 1
        self.side_by_side = P // max(sizes) if several else 1
        self.tokens: dict[HeadGroup, GroupTokens] = {}
        self.results: dict[HeadGroup, tuple[AP, ...]] = {}
        self.waiting, self.products, self.queries = (deque[Callable[[], None]]() for _ in range(3))
        self._open_psum()
        self._open_sbuf()

    def _units(self, group: HeadGroup) -> list[GradientUnit]:
        t = self.task
        if t.shared > 1:
            heads = range(group.head, group.head + group.heads)
            return [GradientUnit(group, h, 1, h // t.shared, 1, h == group.head) for h in heads]
        runs = pieces(group.head, group.head + group.heads, self.side_by_side)
        return [GradientUnit(group, h, n, h, n, h == group.head) for h, n in runs]

    # -- memory -----------------------------------------------------------------------------------------------------
    def _open_psum(self) -> None:
        b, dt = self.b, self.task.dtype
        columns, rest = BANK * float32.itemsize // dt.itemsize, max(b.banks - OF_RESULTS, LEAST_SCORES)
        self.scores = TilePool([b.psum((P, BANK), bank=i, name="scores") for i in range(rest)])
        self.operands = TilePool([b.psum((P, columns), dt, bank=i, name="operand") for i in range(rest)])
        self.ds_t = b.psum((P, BANK // P, P), dt, bank=rest, name="dsT")
        self.dq = b.psum((P, self.task.depth), bank=rest + 1, name="dq")
        blocks = self.segment // P
        self.dk = b.psum((P, blocks, self.task.depth), bank=rest + 2, name="dk")
        self.dv = b.psum((P, blocks, self.task.value_depth), bank=rest + 3, name="dv")

    def _open_sbuf(self) -> None:
        b, t = self.b, self.task
        nq, nk = count_blocks(t.queries), count_blocks(t.keys)
        sizes = t.depth, t.value_depth
        self.qt_pools = [self._transposed_pools(n, size, t.queries) for n, size in zip(("qT", "doutT"), sizes)]
        self.kt_pools = [self._transposed_pools(n, size, t.keys) for n, size in zip(("kT", "vT"), sizes)]
        self.p_pool = b.pool((P, BANK), t.dtype, bufs=LOOKAHEAD + 2, name="p")
        self.ds_pool = b.pool((P, BANK), t.dtype, bufs=LOOKAHEAD + 2, name="ds")
        self.ds_t_pool = b.pool((P, BANK // P, P), t.dtype, bufs=3, name="dsT")
        self.minus_lse = b.tile((P, t.batch * t.heads, nq), float32, name="minus_lse")
        self.dq_sum = b.tile((P, nq, t.depth), float32, name="dq_sum") if t.keys > self.segment else None
        sums = zip(("dk_sum", "dv_sum"), sizes)
        self.k_sums = [b.tile((P, nk, size), float32, name=n) for n, size in sums] if t.shared > 1 else []
        self.groups = plan_groups(b, t, b.sbuf_free - _LATER, self._tiles(nq > IN_FLIGHT))
        self.units = [unit for g in self.groups.all for unit in self._units(g)]
        few = len(self._items(self.units[0])) <= IN_FLIGHT  # then several groups are in flight
        self.short, self.waits = few and self.groups.of_keys > 1, few and self.groups.of_keys == 1
        self._open_tokens(min(len(self.groups.all), IN_FLIGHT + 1) if self.short else 0)

    def _tiles(self, apart: bool) -> HeadTiles:
        """apart: tiles of dk and dv may be one group's, for the next has none to store before they are."""
        sizes = self.task.depth, self.task.value_depth
        in_operands = [-(-self._form(grad).itemsize // self.task.dtype.itemsize) for grad in self.grads]
        dq, dk, dv = (n * size for n, size in zip(in_operands, (sizes[0], *sizes)))
        of_keys = (sum(sizes), dk + dv) if apart else (sum(sizes) + dk + dv, 0)
        return HeadTiles(sum(sizes) + dq, *of_keys, once=sizes[1])

    def _open_tokens(self, most: int) -> None:
        """most: groups in flight, where more are than have room side by side."""
        b, t, g = self.b, self.task, self.groups.all[0]
        of_queries, of_keys, of_results = self.groups.of_queries, self.groups.of_keys, self.groups.of_results
        sizes, loads = (t.depth, t.value_depth), most or of_queries
        q_width, out_width = (g.heads * size for size in sizes)
        k_widths = [g.kvs * size for size in sizes]
        # Nobody needs `out` once there is delta.
        tiles = ("q", q_width, loads), ("dout", out_width, loads), ("out", out_width, most or 1)
        self.q_pools = [token_pool(b, n, t.queries, width, t.dtype, bufs) for n, width, bufs in tiles]
        keys = zip(("k", "v"), k_widths)
        self.k_pools = [token_pool(b, n, t.keys, width, t.dtype, most or of_keys) for n, width in keys]
        self.deltas = b.pool((P, g.heads, count_blocks(t.queries)), float32, bufs=loads, name="delta")
        self.dot_product = b.pool((P, out_width), float32, bufs=2, name="dout_out")
        forms = [self._form(grad) for grad in self.grads]
        self.dq_pool = token_pool(b, "dq", t.queries, q_width, forms[0], of_queries)
        results = zip(("dk", "dv"), k_widths, forms[1:])
        self.dk_pools = [token_pool(b, n, t.keys, width, dt, of_results) for n, width, dt in results]

    def _form(self, grad: HbmView | None) -> DType:
        """The format of a gradient's tiles."""
        return self.task.dtype if grad is None else grad.dtype

    def _transposed_pools(self, name: str, size: int, tokens: int) -> list[TilePool]:
        """Tiles for the heads of a unit, of so many values each, side by side; for each chunk of a wider one."""
        t = self.task
        heads, bufs = min(self.side_by_side, t.heads), min(t.batch * t.heads, 2)
        chunks = [n for _, n in pieces(0, heads * size, P)]
        return [self.b.pool((rows, tokens), t.dtype, bufs=bufs, name=name) for rows in chunks]

    # -- the order of things ----------------------------------------------------------------------------------------
    def run(self) -> None:
        """Record the whole call."""
        self._load(self.groups.all[0])
        load_statistics(self.b, self.scores, self.minus_lse, self.lse, -1.0)
        weave([], self._prepare(self.units[0]))
        for unit, following in zip(self.units, [*self.units[1:], None]):
            main = [DeferredInstructions(item.width, partial(self._advance, item)) for item in self._items(unit)]
            next_group = self._after(unit.group)
            if unit.starts and next_group is not None and self._is_ahead(next_group):
                # Into the tiles of the last group, which is done with after a few items of this one.
                load = partial(self._load, next_group)
                main.insert(0 if self.short else IN_FLIGHT, DeferredInstructions(0, load))
            half = max(len(main) // 2, IN_FLIGHT + 1)  # by then what the next unit needs is being loaded
            weave(main[:half], [])
            if following is None or not (self._is_ahead(following.group) or not following.starts):
                weave(main[half:], [])
                self._drain(following)
            else:
                weave(main[half:], self._prepare(following))

    def _is_ahead(self, group: HeadGroup) -> bool:
        """Whether a group is loaded and prepared while the one before is at work."""
        return self.groups.is_ahead(group) and not self.waits

    def _after(self, group: HeadGroup) -> HeadGroup | None:
        """The next group, if there is one."""
        return next(iter(self.groups.all[self.groups.all.index(group) + 1 :]), None)

    def _drain(self, following: GradientUnit | None) -> None:
        """Finish all that is in flight; then load what does not fit beside it."""
        while self.products or self.queries:
            self._retire(0)
        if following is not None:
            self._load(following.group)
            weave([], self._prepare(following))

    def _advance(self, item: ScoreTile) -> None:
        self._scores(item)
        self.products.append(partial(self._products, item))
        self._retire(LOOKAHEAD)

    def _retire(self, ahead: int) -> None:
        """One later stage each of two earlier items, dQ an item behind dK and dV."""
        while self.waiting and not ahead:
            self.waiting.popleft()()
        if len(self.products) > ahead:
            self.products.popleft()()
        if len(self.queries) > 1 or (self.queries and not self.products):
            self.queries.popleft()()

    def _items(self, unit: GradientUnit) -> list[ScoreTile]:
        t = self.task
        items = []
        for index in range(unit.heads):
            for segment, (start, length) in enumerate(pieces(0, t.keys, self.segment)):
                for q0, rows in pieces(0, t.queries, P):
                    strips = list(pieces(start, min(start + length, t.span(q0 + rows)), BANK))
                    for k0, width in strips:
                        last = (k0, width) == strips[-1]
                        items.append(ScoreTile(unit, index, q0 // P, rows, k0, width, segment, last))
        return items

    # -- operands ---------------------------------------------------------------------------------------------------
    def _load(self, g: HeadGroup) -> None:
        t = self.task
        q, dout, out = (pool.next() for pool in self.q_pools)
        if self.groups.brings_keys(g):
            k, v = (pool.next() for pool in self.k_pools)
            for tile, view in ((k, t.k), (v, t.v)):
                load_tokens(self.b, tile, view[g.batch, g.kv : g.kv + g.kvs])
        else:
            before = self.tokens[self.groups.all[self.groups.all.index(g) - 1]]
            k, v = before.k, before.v
        for tile, view in ((q, t.q), (dout, self.dout), (out, self.out)):
            load_tokens(self.b, tile, view[g.batch, g.head : g.head + g.heads])
        self.tokens[g] = GroupTokens(q, k, v, dout, out, self.deltas.next())

    def _prepare(self, unit: GradientUnit) -> list[DeferredInstructions]:
        """delta of a new group; K^T, V^T, Q^T and dO^T of the unit."""
        t, g = self.task, unit.group
        tokens, sizes = self.tokens[g], (t.depth, t.value_depth)
        steps: list[DeferredInstructions] = []
        before = self.units[self.units.index(unit) - 1]
        follows = not unit.starts or not self.groups.brings_keys(g)
        if follows and before.kv == unit.kv:
            unit.kt, unit.vt = before.kt, before.vt
        else:
            unit.kt, unit.vt = (self._turned(p, unit.kvs * n) for p, n in zip(self.kt_pools, sizes))
            for dst, tile, size in zip((unit.kt, unit.vt), (tokens.k, tokens.v), sizes):
                steps += self._transpose(dst, tile, (unit.kv - g.kv) * size)
        unit.qt, unit.dot = (self._turned(p, unit.heads * n) for p, n in zip(self.qt_pools, sizes))
        for dst, tile, size in zip((unit.qt, unit.dot), (tokens.q, tokens.dout), sizes):
            steps += self._transpose(dst, tile, (unit.head - g.head) * size)
        if unit.starts:
            width = tokens.dout.free // tokens.dout.dims[0][1]
            steps += [
                DeferredInstructions(width, partial(self._delta, tokens, q0 // P, n))
                for q0, n in pieces(0, t.queries, P)
            ]
        return steps

    def _turned(self, pools: list[TilePool], width: int) -> list[AP]:
        """The next tiles for so many columns turned."""
        return [pool.next()[:n] for pool, (_, n) in zip(pools, pieces(0, width, P))]

    def _transpose(self, to: list[AP], tokens: AP, col: int) -> list[DeferredInstructions]:
        """Columns of a tile of tokens, from `col` on."""
        b, free, steps = self.b, to[0].free, []
        for i, dst in enumerate(to):
            steps += transpose_tokens(b, self.operands, dst.split(0, 1, free), tokens, col + i * P, self.copier)
        return steps

    def _delta(self, tokens: GroupTokens, block: int, rows: int) -> None:
        """delta = rowsum(dO * O) of one query block of all heads of the group."""
        product = self.dot_product.next()[:rows]
        dout, out = tokens.dout[:rows, block], tokens.out[:rows, block]
        self.b.tensor_tensor(dst=product, data1=dout, data2=out, op="multiply", engine=Engine.GPSIMD)
        heads = tokens.delta.dims[0][1]
        data = product.split(0, heads, self.task.value_depth)
        self.b.tensor_reduce(dst=tokens.delta[:rows, :, block], data=data, op="add")

    # -- the stages of a tile of scores -----------------------------------------------------------------------------
    def _scores(self, item: ScoreTile) -> None:
        """P and dS of the tile."""
        b, t, unit, n, width = self.b, self.task, item.unit, item.rows, item.width
        q0, batch, head = item.block * P, unit.group.batch, unit.head + item.index
        scores = self.scores.next()[:n, :width]
        one, *more = self._terms(item, scores, unit.qt, unit.kt, t.depth)
        if t.causal and item.k0 + width > q0:
            at, seen = q0 - item.k0, min(n, item.k0 + width - q0)
            mask = self.constants.mask_keys_after()[:n, :seen]
            more.append((scores[:, at : at + seen], self.constants.identity()[:n, :n], mask))
        if self.bias is not None:
            more += self.bias.to_queries(scores, self.bias.tile(batch, head, q0, q0 + n), 0, item.k0)
        accumulate(b, [one], more)
        item.p, item.ds = self.p_pool.next()[:n, :width], self.ds_pool.next()[:n, :width]
        minus_lse, scale = self.minus_lse[:n, batch * t.heads + head, item.block : item.block + 1], t.scale
        if self.rows is not None:
            scores, scale = self.rows.added(scores, batch, head, q0, item.k0), 1.0
        b.activation(dst=item.p, data=scores, bias=minus_lse, scale=scale, op="exp")
        self.waiting.append(partial(self._gradient, item, head))
        if self.rows is None or len(self.waiting) > 1:  # VectorE adds a bias while ScalarE makes exponentials
            self.waiting.popleft()()

    def _terms(self, item: ScoreTile, dst: AP, rows: list[AP], columns: list[AP], size: int) -> list[Term]:
        """Products of transposed operands whose sum is a tile: of the partitions of the head, or of each chunk."""
        first, q0, k0 = item.index * size, item.block * P, item.k0
        chunks = [slice(first, first + n) for _, n in pieces(0, size, P)]
        return [
            (dst, left[part, q0 : q0 + item.rows], right[part, k0 : k0 + item.width])
            for left, right, part in zip(rows, columns, chunks)
        ]

    def _gradient(self, item: ScoreTile, head: int) -> None:
        b, unit, n, width = self.b, item.unit, item.rows, item.width
        dp = self.scores.next()[:n, :width]
        one, *more = self._terms(item, dp, unit.dot, unit.vt, self.task.value_depth)
        accumulate(b, [one], more)
        delta = self.tokens[unit.group].delta[:n, head - unit.group.head, item.block : item.block + 1]
        b.scalar_tensor_tensor(dst=item.ds, data=dp, operand0=delta, operand1=item.p, op0="subtract", op1="multiply")
        if self.dbias is not None:
            self.dbias.add(item.ds, unit.group.batch, head, item.block, item.k0)

    def _products(self, item: ScoreTile) -> None:
        """Add to dV and dK, and transpose dS."""
        b, t, n = self.b, self.task, item.rows
        tokens = self.tokens[item.unit.group]
        head, sizes = item.unit.head + item.index - item.unit.group.head, (t.value_depth, t.depth)
        dout, q = (
            tile[:n, item.block, head * size : (head + 1) * size]
            for tile, size in zip((tokens.dout, tokens.q), sizes)
        )
        last = item.block == count_blocks(t.queries) - 1
        item.transposed = self.ds_t_pool.next()
        for at, keys in pieces(0, item.width, P):
            block = (item.k0 + at) // P
            first = item.block == (block if t.causal else 0)
            place = block - item.segment * self.segment // P
            for dst, left, right in ((self.dv, item.p, dout), (self.dk, item.ds, q)):
                b.nc_matmul(
                    dst=dst[:keys, place],
                    stationary=left[:, at : at + keys],
                    moving=right,
                    accumulate=not first,
                    stop=last,
                )
        for at, keys in pieces(0, item.width, P):
            b.nc_transpose(dst=self.ds_t[:keys, at // P, :n], data=item.ds[:, at : at + keys])
        for block, keys, count in block_runs(0, item.width):
            dst, src = (tile[:keys, block : block + count, :n] for tile in (item.transposed, self.ds_t))
            b.activation(dst=dst, data=src, op="copy")
        if last and item.last_strip:
            self._finish_keys(item)
        self.queries.append(partial(self._queries, item))

    def _queries(self, item: ScoreTile) -> None:
        """Add to dQ of the query block."""
        t, unit, n = self.task, item.unit, item.rows
        start = item.segment * self.segment
        col = (unit.kv + (item.index if t.shared == 1 else 0) - unit.group.kv) * t.depth
        for at, keys in pieces(0, item.width, P):
            k0 = item.k0 + at
            self.b.nc_matmul(
                dst=self.dq[:n],
                stationary=item.transposed[:keys, at // P, :n],
                moving=self.tokens[unit.group].k[:keys, k0 // P, col : col + t.depth],
                accumulate=k0 > start,
                stop=item.last_strip and at + keys == item.width,
            )
        if item.last_strip:
            self._finish_queries(item)

    # -- results ----------------------------------------------------------------------------------------------------
    def _finish_queries(self, item: ScoreTile) -> None:
        t, unit, n = self.task, item.unit, item.rows
        head = unit.head + item.index - unit.group.head
        dst = self._results(unit)[0][:n, item.block, head * t.depth : (head + 1) * t.depth]
        total = self.dq_sum[:n, item.block] if self.dq_sum is not None else None
        last_segment = (t.span(item.block * P + n) - 1) // self.segment
        self._fold(dst, total, self.dq[:n], t.scale, item.segment == 0, item.segment == last_segment, Engine.SCALAR)
        done = item.block == count_blocks(t.queries) - 1 and item.segment == last_segment
        if done and head == unit.group.heads - 1:
            self._store(unit.group)

    def _finish_keys(self, item: ScoreTile) -> None:
        """dK and dV of a segment, of one head: what the other query heads of the key head add, in SBUF."""
        t, unit = self.task, item.unit
        head = unit.head + item.index
        kv, turn = divmod(head, t.shared)
        start = item.segment * self.segment
        ends = turn == 0, turn == t.shared - 1
        tiles, sizes = self._results(unit)[1:], (t.depth, t.value_depth)
        for i, (psum, factor, engine) in enumerate(((self.dk, t.scale, self.copier), (self.dv, 1.0, Engine.SCALAR))):
            col = (kv - unit.group.kv) * sizes[i]
            for block, rows, count in block_runs(start, min(start + self.segment, t.keys)):
                dst = tiles[i][:rows, block : block + count, col : col + sizes[i]] if tiles else None
                total = self.k_sums[i][:rows, block : block + count] if self.k_sums else None
                place = block - start // P
                self._fold(dst, total, psum[:rows, place : place + count], factor, *ends, engine)

    def _fold(
        self, dst: AP | None, total: AP | None, part: AP, factor: float, first: bool, last: bool, engine: Engine
    ) -> None:
        """dst = factor * (sum of the parts), the sum so far kept in `total`; `engine` empties what needs no sum."""
        target = dst if last else total
        assert target is not None
        if not first:
            assert total is not None
            self.b.scalar_tensor_tensor(
                dst=target, data=part, operand0=factor, operand1=total, op0="multiply", op1="add"
            )
        else:
            evacuate(self.b, target, part, engine, factor)

    def _results(self, unit: GradientUnit) -> tuple[AP, ...]:
        """Tiles of dq of the unit's group, and of dk and dv where it has the last query head of its key heads."""
        g = unit.group
        if g not in self.results:
            ends = (g.head + g.heads) % self.task.shared == 0
            self.results[g] = self.dq_pool.next(), *(pool.next() for pool in self.dk_pools if ends)
        return self.results[g]

    def _store(self, g: HeadGroup) -> None:
        ranges = ((g.head, g.heads), (g.kv, g.kvs), (g.kv, g.kvs))
        for grad, tile, (first, count) in zip(self.grads, self.results.pop(g), ranges):
            if grad is not None:
                store_tokens(self.b, grad[g.batch, first : first + count], tile)
