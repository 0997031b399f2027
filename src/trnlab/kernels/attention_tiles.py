# SPDX-License-Identifier: Apache-2.0
"""What attention forward and backward share: the problem, tiles of tokens, constants, and the weaving of two
streams.

Letters: B batch, H heads, T queries, S keys, D head size, E that of values. A block is 128 tokens. A tile of tokens
[128, blocks, W] holds token `128 * block + partition` with W = heads * D values, so that the rows of its DMA are as
long as memory allows: in the usual layout [B, T, H, D] the heads of one token are adjacent."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import NamedTuple

import ml_dtypes

from trnlab.chips.spec import Chip
from trnlab.errors import CapacityError
from trnlab.isa.base import Engine
from trnlab.kernels import residence
from trnlab.kernels.blocks import BANK, P, dma_load, dma_store
from trnlab.kernels.view import HbmView, full, rectangle
from trnlab.numerics.dtypes import DType, bfloat16, float32
from trnlab.program.access import AP
from trnlab.program.builder import Builder
from trnlab.program.pool import TilePool

RESERVE = 12 * 1024  # bytes of a partition for constants and statistics
DMA_BYTES = 4096  # per partition and transfer: long enough to use the bandwidth, short enough to start early
MIN_RUN_BYTES = 512  # heads are loaded together until the rows of a transfer are this long
BLOCKS = 4  # of queries, of a superblock, at most
LANE = 32  # partitions: engines and the PE array begin at multiples of so many
HIDDEN = -1e37  # stands for minus infinity in a bias: on the PE array, which adds it, 0 * infinity would be NaN
LEAST_MAXIMUM = -1e36  # of a row of raw scores: where it is less all keys are hidden, and exp(HIDDEN - it) is zero

Term = tuple[AP, AP, AP]  # dst, stationary, moving


@dataclass(frozen=True)
class Task:
    """One attention problem: q [B, H, T, D], k [B, Hkv, S, D], v [B, Hkv, S, E], bias [B or 1, H or 1, T or 1, S] or
    None.

    shifted: the bias is in float32, the largest that each query sees is zero, forward it is [B or 1, H or 1, S, T or
    1], and its batch may be any divisor of B, which it is repeated along.
    """

    q: HbmView
    k: HbmView
    v: HbmView
    bias: HbmView | None
    causal: bool
    scale: float
    shifted: bool = False

    def __post_init__(self) -> None:
        assert self.heads % self.kv_heads == 0, "query heads share key heads evenly"
        assert self.k.shape[:3] == self.v.shape[:3]
        assert self.q.dtype is self.k.dtype is self.v.dtype
        assert not self.causal or self.queries >= self.keys, "keys behind the last query are cut off before"

    @property
    def batch(self) -> int:
        """B."""
        return self.q.shape[0]

    @property
    def heads(self) -> int:
        """H."""
        return self.q.shape[1]

    @property
    def kv_heads(self) -> int:
        """Hkv."""
        return self.k.shape[1]

    @property
    def shared(self) -> int:
        """Query heads that share one key head."""
        return self.heads // self.kv_heads

    @property
    def queries(self) -> int:
        """T."""
        return self.q.shape[2]

    @property
    def keys(self) -> int:
        """S."""
        return self.k.shape[2]

    @property
    def depth(self) -> int:
        """D."""
        return self.q.shape[3]

    @property
    def value_depth(self) -> int:
        """E."""
        return self.v.shape[3]

    @property
    def dtype(self) -> DType:
        """The format of q, k and v, and of the probabilities."""
        return self.q.dtype

    @property
    def hides(self) -> bool:
        """Whether there is a bias that holds 0 and minus infinity."""
        return self.bias is not None and not self.shifted

    def at_most(self, trial: Builder, longest: int) -> Task:
        """The same of at most so many tokens, with parameters of another builder."""

        def cut(x: HbmView, *dims: int) -> HbmView:
            shape = [min(n, longest) if d in dims else n for d, n in enumerate(x.shape)]
            return full(trial.param("operand", tuple(shape), x.dtype))

        q, k, v = (cut(x, 2) for x in (self.q, self.k, self.v))
        bias = None if self.bias is None else cut(self.bias, 2, 3)
        return Task(q, k, v, bias, self.causal, self.scale, self.shifted)

    def span(self, q_end: int) -> int:
        """How many keys the queries before `q_end` look at."""
        return min(q_end, self.keys) if self.causal else self.keys


def is_fused(depth: int, value_depth: int, dtype: DType, scale: float, widest: int = P) -> bool:
    """Whether the fused kernels take heads of these sizes, in this format, with this scale.

    They look for the largest score before scaling, and have masks whose values float16 does not reach. widest: the
    largest head, 128 where the bias is shifted.
    """
    return max(depth, value_depth) <= widest and scale > 0 and dtype in (float32, bfloat16)


@dataclass(frozen=True)
class HeadGroup:
    """Heads that are loaded together: key heads [kv, +kvs) of one batch element and the query heads that use them, or
    some of those of one key head."""

    batch: int
    kv: int
    kvs: int
    head: int
    heads: int


@dataclass(frozen=True)
class HeadGroups:
    """All groups in order, and how many of them have tiles at a time, of queries and of keys: two, so that one is
    loaded while one is at work. `of_results`: how many have tiles for what is made of keys."""

    all: list[HeadGroup]
    of_queries: int
    of_keys: int
    of_results: int

    def brings_keys(self, group: HeadGroup) -> bool:
        """Whether the group before has other keys."""
        i = self.all.index(group)
        return i == 0 or (self.all[i - 1].batch, self.all[i - 1].kv) != (group.batch, group.kv)

    def is_ahead(self, group: HeadGroup) -> bool:
        """Whether there is room for a group while the one before is at work."""
        return self.of_queries > 1 and (self.of_keys > 1 or not self.brings_keys(group))


class HeadTiles(NamedTuple):
    """Values, in the format of the operands, that a token of a head has in tiles of tokens."""

    queries: int  # each query head, twice where two groups have tiles
    keys: int  # each key head, likewise
    results: int = 0  # each key head beside them, where two groups have tiles once if there is no room for them twice
    once: int = 0  # each query head, of one group always


def plan_groups(b: Builder, task: Task, room: int, tiles: HeadTiles, together: int | None = None) -> HeadGroups:
    """Groups are the fewest key heads whose rows are worth a DMA, or one where `room` bytes of a partition are few,
    or as many of the query heads that share one as there is room for.

    Raises CapacityError where `b` may have more of SBUF, and no group is loaded while another is at work, or short
    sequences have superblocks with fewer heads than they could: `together`, `heads_together` where it is None.
    """
    together = heads_together(task) if together is None else together
    r = task.shared
    of_query, of_key = (count_blocks(n) * task.dtype.itemsize for n in (task.queries, task.keys))
    wanted = fewest_heads(task) // r
    parts = [n for n in reversed(_divisors(r)) if n < r]
    # key heads, query heads, groups with tiles of queries, of keys, of what is made of keys
    choices = [(wanted, wanted * r, 2, 2, 2), *((1, n, 2, 2, 2) for n in (r, *parts)), (1, r, 2, 2, 1)]
    choices += [(1, n, 2, 1, 1) for n in parts]
    choices += [(1, n, 1, 1, 1) for n in (r, *parts)]

    def needed(kvs: int, heads: int, of_queries: int, of_keys: int, of_results: int) -> int:
        queries = heads * of_query * (of_queries * tiles.queries + tiles.once)
        return queries + kvs * of_key * (of_keys * tiles.keys + of_results * tiles.results)

    kvs, heads, *groups = next((c for c in choices if needed(*c) <= room), choices[-1])
    pairs = [(batch, kv) for batch in range(task.batch) for kv in range(0, task.kv_heads, kvs)]
    if task.shifted and task.bias is not None:  # a bias that elements of the batch share stays on chip
        period = task.bias.shape[0]
        pairs.sort(key=lambda pair: (pair[1], pair[0] % period))
    found = [
        HeadGroup(batch, kv, kvs, head, heads) for batch, kv in pairs for head in range(kv * r, (kv + kvs) * r, heads)
    ]
    if b.may_have_more and (groups[0] < min(2, len(found)) or heads < min(wanted * r, together)):
        raise CapacityError(
            "attention works one head after the other with so little of SBUF",
            code="TRN501",
            limit=f"{room} bytes of a partition for tokens",
            got=f"{needed(*choices[0])} bytes for {wanted * r} heads",
            chip=b.chip.name,
            remedy="have fewer tensors stay in SBUF",
        )
    return HeadGroups(found, *(min(n, len(found)) for n in groups))


def heads_together(task: Task) -> int:
    """Heads of short sequences that a superblock takes, at most."""
    return max(1, BLOCKS // count_blocks(task.queries))


def fewest_heads(task: Task) -> int:
    """Query heads that use the fewest key heads whose rows are worth a DMA."""
    return count_together(task.shared, task.kv_heads, min(task.depth, task.value_depth) * task.dtype.itemsize)


def count_together(shared: int, kv_heads: int, row: int) -> int:
    """The same of so many query heads that share each of so many key heads, a token of which has `row` bytes."""
    return shared * next((n for n in _divisors(kv_heads) if n * row >= MIN_RUN_BYTES), kv_heads)


def _divisors(count: int) -> list[int]:
    return [n for n in range(1, count + 1) if count % n == 0]


def count_blocks(n: int) -> int:
    """Blocks of 128 that cover n."""
    return -(-n // P)


def block_runs(start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """[start, stop), start a multiple of 128, as runs of equally filled blocks: (first block, rows, blocks)."""
    first, full, tail = start // P, (stop - start) // P, (stop - start) % P
    if full:
        yield first, P, full
    if tail:
        yield first + full, tail, 1


def pieces(start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
    """[start, stop) cut into (first, count) of at most `size`."""
    for first in range(start, stop, size):
        yield first, min(size, stop - first)


# -- tiles of tokens ------------------------------------------------------------------------------------------------
def token_pool(b: Builder, name: str, tokens: int, width: int, dt: DType, bufs: int) -> TilePool:
    """`bufs` tiles of tokens whose blocks are waited for one by one."""
    return b.pool((P, count_blocks(tokens), width), dt, bufs=bufs, name=name)


def load_tokens(b: Builder, tile: AP, view: HbmView) -> None:
    """Fill a tile of tokens from a view [heads, tokens, D]."""
    for block, rows, count in _transfers(view):
        dma_load(b, tile[:rows, block : block + count], _token_ap(view, block, rows, count))


def tokens_on_chip(b: Builder, view: HbmView) -> AP | None:
    """The tile of tokens of a view [heads, tokens, D] of a tensor that stays in SBUF; None for others."""
    resident = residence.of(b, view.base)
    return None if resident is None else resident.blocks(view.permute(1, 0, 2), 1)


def store_tokens(b: Builder, view: HbmView, tile: AP) -> None:
    """Write a tile of tokens to a view [heads, tokens, D]."""
    for block, rows, count in _transfers(view):
        dma_store(b, _token_ap(view, block, rows, count), tile[:rows, block : block + count])


def _transfers(view: HbmView) -> Iterator[tuple[int, int, int]]:
    heads, tokens, depth = view.shape
    most = max(1, DMA_BYTES // (heads * depth * view.dtype.itemsize))
    for block, rows, count in block_runs(0, tokens):
        for first, blocks in pieces(block, block + count, most):
            yield first, rows, blocks


def _token_ap(view: HbmView, block: int, rows: int, count: int) -> AP:
    heads, _, depth = view.shape
    head, token, inner = view.strides
    shape, strides = (rows, count, heads, depth), (token, P * token, head, inner)
    return view.like(view.offset + block * P * token, shape, strides).ap()


def transpose_tokens(
    b: Builder, psum: TilePool, dst: AP, tile: AP, col: int, engine: Engine, step: int | None = None
) -> list[DeferredInstructions]:
    """Steps that fill dst [W, heads, tokens]: head i from columns [col + i step, +W) of a tile of tokens. step: W.

    The PE array transposes block by block into `psum`, tiles of the same format; `engine` empties them.
    """
    width, heads, tokens = dst.shape
    apart = width if step is None else step
    blocks, room = count_blocks(tokens), psum.tiles[0].free // P
    per_tile = max(1, room // blocks)

    def fill(head: int, count: int, start: int, length: int) -> None:
        bank = psum.next()
        for i in range(count):
            for block, n in pieces(start, start + length, P):
                at = i * blocks * P + block - start
                first = col + (head + i) * apart
                b.nc_transpose(dst=bank[:width, at : at + n], data=tile[:n, block // P, first : first + width])
        src = bank[:width].with_dims((blocks * P, count), (1, length))
        evacuate(b, dst[:, head : head + count, start : start + length], src, engine)

    return [
        DeferredInstructions(count * length, partial(fill, head, count, start, length))
        for head, count in pieces(0, heads, per_tile)
        for start, length in pieces(0, tokens, room * P)
    ]


def copier(chip: Chip) -> Engine:
    """The engine that copies 16-bit tiles out of PSUM faster: VectorE if it has a mode for them, else ScalarE."""
    return Engine.VECTOR if chip.has("vector_fast_modes") else Engine.SCALAR


def evacuate(b: Builder, dst: AP, src: AP, engine: Engine, factor: float = 1.0) -> None:
    """dst = factor * src, on VectorE or ScalarE: the two that read PSUM."""
    if engine is Engine.SCALAR:
        b.activation(dst=dst, data=src, op="copy", scale=factor)
    elif factor == 1.0:
        b.tensor_copy(dst=dst, src=src)
    else:
        b.tensor_scalar(dst=dst, data=src, operand0=factor, op0="multiply")


# -- per-query statistics: columns [128 queries, heads, blocks] on chip, rows [heads, T] in HBM ---------------------
def load_statistics(b: Builder, psum: TilePool, columns: AP, view: HbmView, factor: float) -> None:
    """columns[p, b*H + h, block] = factor * view[b, h, 128 * block + p], all fp32."""
    view, columns = _many_rows(view, columns)
    heads, tokens = prod(view.shape[:-1]), view.shape[-1]
    rows = b.pool((P, BANK), float32, bufs=2, name="statistics")
    for row, height in pieces(0, heads, P):
        for first, count in pieces(0, tokens, BANK):
            tile = rows.next()
            for piece in rectangle(view, len(view.shape) - 1, row, height, first, count):
                part = tile[piece.partition : piece.partition + piece.partitions, piece.col : piece.col + piece.cols]
                dma_load(b, part, piece.ap)
            for start, n in pieces(first, first + count, P):
                bank = psum.next()[:n, :height]
                b.nc_transpose(dst=bank, data=tile[:height, start - first : start - first + n])
                dst = columns[:n, row : row + height, start // P]
                b.activation(dst=dst, data=bank, op="copy", scale=factor)


def store_statistics(b: Builder, psum: TilePool, view: HbmView, columns: AP) -> None:
    """view[b, h, 128 * block + p] = columns[p, b*H + h, block], all fp32."""
    view, columns = _many_rows(view, columns)
    heads, tokens = prod(view.shape[:-1]), view.shape[-1]
    rows = b.pool((P, BANK), float32, bufs=2, name="statistics")
    for row, height in pieces(0, heads, P):
        for first, count in pieces(0, tokens, BANK):
            bank, tile = psum.next()[:height, :count], rows.next()[:height, :count]
            for start, n in pieces(first, first + count, P):
                data = columns[:n, row : row + height, start // P]
                b.nc_transpose(dst=bank[:, start - first : start - first + n], data=data)
            b.tensor_copy(dst=tile, src=bank)
            for piece in rectangle(view, len(view.shape) - 1, row, height, first, count):
                part = tile[piece.partition : piece.partition + piece.partitions, piece.col : piece.col + piece.cols]
                dma_store(b, piece.ap, part)


def _many_rows(view: HbmView, columns: AP) -> tuple[HbmView, AP]:
    """Statistics of few heads with each block as a head of its own: one transpose takes 128 rows, however many."""
    (batch, heads, tokens), blocks = view.shape, count_blocks(view.shape[2])
    if tokens % P or batch * heads >= P or columns.dims != ((blocks, batch * heads), (1, blocks)):
        return view, columns
    outer, inner, step = view.strides
    rows = view.like(view.offset, (batch, heads, blocks, P), (outer, inner, P * step, step))
    return rows, columns.with_dims((1, batch * heads * blocks), (1, 1))


# -- constants and sums on the PE array -----------------------------------------------------------------------------
class Constants:
    """Small matrices that the PE array multiplies with, made on first use."""

    def __init__(self, b: Builder, dt: DType) -> None:
        self._b, self._dtype = b, dt
        self._made: dict[tuple[str, DType], AP] = {}
        # Far below any score, and small enough that its sums stay finite.
        self._masked = float(ml_dtypes.finfo(dt.numpy).min) / 4  # type: ignore[no-untyped-call]

    def identity(self, dt: DType | None = None) -> AP:
        """Ones on the diagonal [128, 128]."""
        return self._get("identity", dt or self._dtype, self._make_identity)

    def ones(self, dt: DType | None = None) -> AP:
        """A row of ones [1, 512]."""
        return self._get("ones", dt or self._dtype, lambda dt: self._filled((1, BANK), 1.0, dt))

    def mask_keys_after(self) -> AP:
        """[128 queries, 128 keys]: zero where key <= query, far below zero elsewhere."""
        return self._get("mask_queries", self._dtype, lambda dt: self._triangle(0.0, 1, dt, self._masked))

    def mask_queries_before(self) -> AP:
        """[128 keys, 128 queries]: zero where query >= key, far below zero elsewhere."""
        return self._get("mask_keys", self._dtype, lambda dt: self._triangle(0.0, -1, dt, self._masked))

    def _get(self, name: str, dt: DType, make: Callable[[DType], AP]) -> AP:
        if (name, dt) not in self._made:
            self._made[name, dt] = make(dt)
        return self._made[name, dt]

    def _filled(self, shape: tuple[int, ...], value: float, dt: DType) -> AP:
        tile = self._b.tile(shape, dt, name="constant")
        self._b.memset(dst=tile, value=value, engine=Engine.GPSIMD)
        return tile

    def _triangle(self, value: float, sign: int, dt: DType, outside: float) -> AP:
        """`value` where sign * (partition - column) >= 0, `outside` elsewhere."""
        tile = self._filled((P, P), value, dt)
        self._b.affine_select(
            dst=tile,
            on_true=tile,
            pattern=((-sign, P),),
            channel_multiplier=sign,
            cmp_op="greater_equal",
            on_false=outside,
        )
        return tile

    def _make_identity(self, dt: DType) -> AP:
        tile = self._triangle(1.0, 1, dt, 0.0)
        self._b.affine_select(
            dst=tile, on_true=tile, pattern=((1, P),), channel_multiplier=-1, cmp_op="greater_equal", on_false=0.0
        )
        return tile


def accumulate(b: Builder, firsts: list[Term], more: list[Term], *, in_lanes: bool = False) -> None:
    """One accumulation group: `firsts` write disjoint parts of it, each of `more` adds to what is there. in_lanes:
    the operands of firsts lie on the same few partitions, and those on others are multiplied at the same time."""
    for dst, stationary, moving in firsts:
        tile = _rows_of_array(b.chip, stationary) if in_lanes else {}
        b.nc_matmul(dst=dst, stationary=stationary, moving=moving, accumulate=False, stop=not more, **tile)
    for i, (dst, stationary, moving) in enumerate(more):
        b.nc_matmul(dst=dst, stationary=stationary, moving=moving, accumulate=True, stop=i == len(more) - 1)


def _rows_of_array(chip: Chip, stationary: AP) -> dict[str, tuple[int, int]]:
    """The rows of the PE array that an operand on few partitions takes: a tile of all columns."""
    rows = LANE if chip.has("pe_tiles_32") and stationary.partitions <= LANE else 2 * LANE
    return {"tile_position": (stationary.start_partition // rows * rows, 0), "tile_size": (rows, P)}


def by_rows(dst: AP, stationary: AP, moving: AP) -> list[Term]:
    """A term of an accumulation group; one for each row of dst [P, rows, F] when they are not adjacent."""
    (step, rows), (_, length) = dst.dims
    if step == length or rows == 1:
        return [(dst, stationary, moving)]
    return [(dst[:, i], stationary, moving[:, i]) for i in range(rows)]


# -- order ----------------------------------------------------------------------------------------------------------
class DeferredInstructions(NamedTuple):
    """Some instructions yet to be recorded, and about how long they keep an engine: elements streamed."""

    cost: int
    record: Callable[[], None]


def spread(main: list[DeferredInstructions], other: list[DeferredInstructions]) -> list[DeferredInstructions]:
    """Both lists as one, each in its order, such that both get done at the same pace.

    Engines execute in order: what one stream of instructions waits for, another must fill.
    """
    merged: list[DeferredInstructions] = []
    pace = sum(s.cost for s in other) / max(sum(s.cost for s in main), 1)
    due, rest = 0.0, deque(other)
    for step in main:
        merged.append(step)
        due += step.cost * pace
        while rest and rest[0].cost <= 2 * due:  # half of it or more is due
            due -= rest[0].cost
            merged.append(rest.popleft())
    return merged + list(rest)


def weave(main: list[DeferredInstructions], other: list[DeferredInstructions]) -> None:
    """Record two lists of steps at the same pace."""
    for step in spread(main, other):
        step.record()
