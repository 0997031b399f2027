# SPDX-License-Identifier: Apache-2.0
"""SBUF tiles that values of a group pass through, and the plan of what to compute in one sweep over a tile."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

from trnlab.compiler.fusing.groups import FusionGroup, GroupKind, ValueClass
from trnlab.graph.ir import Op, Value
from trnlab.numerics.dtypes import DType, bfloat16, float32
from trnlab.program import AP, Buffer, Builder

READ_ANY_FLOAT = frozenset(
    {
        "add",
        "subtract",
        "multiply",
        "maximum",
        "minimum",
        "divide",
        "clamp",
        "compare",
        "negate",
        "reduce",
        "convert",
        "exponential",
        "tanh",
        "sqrt",
        "rsqrt",
        "logistic",
        "erf",
        "trn.silu",
        "trn.silu_dx",
        "trn.gelu",
        "trn.gelu_dx",
    }
)
"""Ops whose rules take operands of any float format."""


_LOOKS = ("reshape", "broadcast_in_dim"), ("reshape", "broadcast_in_dim", "transpose")
"""Ops through which a group's own values are seen; a convolution's in the order of memory too."""


class TileSpace:
    """Tiles of up to `width` elements, taken and given back; the one given back longest ago is taken next.

    First in, first out: a value rarely gets the tile that its neighbour has just left, so engines do not wait for
    each other. Without `counts` it hands out as many as asked for and records how many were in use at once, per item
    size.
    """

    def __init__(self, b: Builder, width: int, counts: dict[int, int] | None = None, name: str = "v") -> None:
        self.b, self.width, self.name = b, width, name
        self.peak: Counter[int] = Counter()
        self.early: Counter[int] = Counter()  # the same if what a sweep loads were there when it begins
        self.expected: Counter[int] = Counter()  # tiles that the sweep at hand will load
        self._used: Counter[int] = Counter()
        self.measuring = counts is None
        self._free: dict[int, deque[Buffer]] = {}
        self._patterns: dict[tuple[int, int, int, int], AP] = {}  # that were handed out, which come again and again
        for size, count in (counts or {}).items():
            self._free[size] = deque(self._make(size) for _ in range(count))

    def _make(self, itemsize: int) -> Buffer:
        kind = {4: "float32", 2: "bfloat16", 1: "uint8"}[itemsize]
        return self.b.tile((128, self.width), kind, name=self.name).buffer

    def take(self, partitions: int, free: int, dtype: DType) -> AP:
        """A tile [partitions, free]."""
        size = dtype.itemsize
        self._used[size] += 1
        self.peak[size] = max(self.peak[size], self._used[size])
        self.early[size] = max(self.early[size], self._used[size] + self.expected[size])
        pool = self._free.setdefault(size, deque())
        if not pool:
            assert self.measuring, f"{self.name}: more tiles in use than planned"
            pool.append(self._make(size))
        buffer = pool.popleft()
        key = buffer.id, dtype.code, partitions, free
        tile = self._patterns.get(key)
        if tile is None:
            tile = self._patterns[key] = AP(buffer, dtype, 0, partitions, 0, 0, ((1, free),))
        return tile

    def give(self, tile: AP) -> None:
        """Done with a tile that `take` gave."""
        size = tile.dtype.itemsize
        self._used[size] -= 1
        self._free[size].append(tile.buffer)


def tiles_bytes(counts: Mapping[int, int], width: int) -> int:
    """Bytes of a partition that so many tiles of each item size take."""
    return sum(n * (-(-size * width // 64) * 64) for size, n in counts.items())


class PsumSpace:
    """Tiles of PSUM for values that a two-operand instruction of Vector reads: it is twice as fast when one of its
    operands is there. There are few, so a value may have to do without; in 16 bits it takes half as many banks."""

    def __init__(self, b: Builder, width: int, banks: int) -> None:
        """`banks`: how many of PSUM's are free, from the first on."""
        self.width, self._size = width, int(b.chip.psum.bank_bytes_per_partition)
        self._free = [True] * banks
        self._tiles = {
            (dtype, start): b.psum((128, width), dtype, name="operand", bank=start)
            for dtype in (float32, bfloat16)
            for start in self._starts(dtype)
        }
        self._patterns: dict[tuple[int, int, int, int], AP] = {}  # that were handed out
        self._next = 0  # banks in turn, so that a value rarely gets those that its neighbour has just left

    def take(self, partitions: int, free: int, dtype: DType) -> AP | None:
        """A tile [partitions, free], if there is one left."""
        count, starts = self._banks(dtype), self._starts(dtype)
        turned = -(-self._next // count)  # how many of them lie before the bank whose turn it is
        for start in (*starts[turned:], *starts[:turned]):
            if all(self._free[start : start + count]):
                self._free[start : start + count] = [False] * count
                self._next = start + count
                return self._pattern(dtype, start, partitions, free)
        return None

    def _pattern(self, dtype: DType, start: int, partitions: int, free: int) -> AP:
        key = dtype.code, start, partitions, free
        tile = self._patterns.get(key)
        if tile is None:
            tile = self._patterns[key] = self._tiles[dtype, start][:partitions, :free]
        return tile

    def give(self, tile: AP) -> None:
        """Done with a tile that `take` gave."""
        assert tile.buffer.address is not None
        start, count = tile.buffer.address // self._size, self._banks(tile.buffer.dtype)
        self._free[start : start + count] = [True] * count

    def _banks(self, dtype: DType) -> int:
        return -(-dtype.itemsize * self.width // self._size)

    def _starts(self, dtype: DType) -> range:
        count = self._banks(dtype)
        return range(0, len(self._free) - count + 1, count)


@dataclass
class TilePlan:
    """What one sweep over a tile computes: ops in order, what it stores, who folds into whom."""

    ops: list[Op]
    stores: set[Value]
    per_row: bool = False  # row values only, computed once for the rows at hand and kept for the sweeps that follow
    uses: Counter[Value] = field(default_factory=Counter)  # how often each value is still read (a store counts once)
    reader: dict[Value, Op] = field(default_factory=dict)  # the last of them
    readers: dict[Value, list[Op]] = field(default_factory=dict)  # by whom
    # a value whose one reader is a `convert` that the instruction computing it can do on its way out
    converted: dict[Value, Op] = field(default_factory=dict)
    summed: dict[Value, Op] = field(default_factory=dict)  # a value whose row sum the same instruction gives
    may_be_paired: dict[Value, bool] = field(default_factory=dict)  # what emitters found out, see `Emitter.dst`


def origin(value: Value, group: FusionGroup) -> Value:
    """The value computed by the group that `value` is a look at; from outside, the value that is loaded for it."""
    seen = value
    while seen not in group.classes or seen in group.exact:
        if seen in group.exact:
            value = seen = group.exact[seen]
            continue
        if seen.op is None or seen.op.name not in _LOOKS[group.kind is GroupKind.CONVOLUTION]:
            return group.same.get(value, value)
        seen = seen.op.operands[0]
    return seen


def is_seen(value: Value, root: Value, kind: GroupKind) -> bool:
    """Whether a group of this kind that computes `root` finds it when an op of it reads `value`, a look at it."""
    while value is not root:
        if value.op is None or value.op.name not in _LOOKS[kind is GroupKind.CONVOLUTION]:
            return False
        value = value.op.operands[0]
    return True


def exact_converts(group: FusionGroup, stores: Container[Value]) -> dict[Value, Value]:
    """The results of converts to fp32 that nobody needs as such, by what they convert: instructions read any format
    and compute in fp32. What a product makes is not in its format yet."""
    product = group.kind is not GroupKind.ROWS
    converts = {
        op.result: op.operands[0]
        for op in group.ops
        if op.name == "convert"
        and op.result.dtype is float32
        and op.operands[0].dtype is bfloat16
        and op.result not in stores
        and not (product and is_seen(op.operands[0], group.anchor.result, group.kind))
    }
    for op in group.ops if converts else ():
        for value in op.operands:
            seen: Value | None = value
            while seen is not None and seen not in group.classes:
                looks = seen.op is not None and seen.op.name in ("reshape", "broadcast_in_dim")
                seen = seen.op.operands[0] if looks and seen.op is not None else None
            if seen in converts and op.name not in READ_ANY_FLOAT:
                del converts[seen]
    return converts


def make_plan(group: FusionGroup, ops: Iterable[Op], stores: Iterable[Value], *, per_row: bool = False) -> TilePlan:
    """The plan for computing `ops` (in program order) and storing `stores`."""
    plan = TilePlan([op for op in ops if op.result not in group.exact], set(stores), per_row)
    for op in plan.ops:
        for value in op.operands:
            seen = origin(value, group)
            plan.uses[seen] += 1
            plan.reader[seen] = op
            plan.readers.setdefault(seen, []).append(op)
    plan.uses.update(plan.stores)
    for op in plan.ops:
        source = origin(op.operands[0], group) if op.operands else None
        if source is None or source not in group.classes or source.dtype is not float32:
            continue
        folds = not per_row and plan.uses[source] == 1  # what belongs to a whole row, other sweeps may read as it is
        if op.name == "convert" and folds and op.attrs["dtype"].is_float:
            plan.converted[source] = op
        if op.name == "reduce" and op.attrs["kind"] == "add" and group.classes[op.result] is ValueClass.ROW:
            plan.summed.setdefault(source, op)
    return plan
