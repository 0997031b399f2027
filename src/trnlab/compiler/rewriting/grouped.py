# SPDX-License-Identifier: Apache-2.0
"""Products of groups of rows: which rows the kernel's items have (`kernels.grouped`), as tables that the chip
computes from where groups end. They are a few numbers for each row, and products of the same groups share them.

Items have B rows. Those of a group follow each other, and begin with its first row. How large B is decides what the
time is: a group's matrix is loaded for each of its items, and the last item of each group has rows to spare.

Letters: M rows, G groups, T items of B rows; H partitions of an item's blocks, 128 or B; J blocks of all items.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from trnlab.chips.spec import Chip
from trnlab.compiler.analysis.strided import view_of_origin
from trnlab.errors import CapacityError
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.composites import expand
from trnlab.graph.flops import GROUPED
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.passes.rewrite import rewrite
from trnlab.kernels.blocking.choose import least_seconds
from trnlab.kernels.blocking.problem import MatmulProblem
from trnlab.kernels.blocks import P
from trnlab.kernels.grouped.items import EXACT
from trnlab.kernels.grouped.products import slab
from trnlab.kernels.grouped.sinks import seconds_of_sums
from trnlab.numerics.dtypes import float32, int32

# Rows of an item. With more, sums leave SBUF too little room to load ahead.
LARGEST = {"trn.grouped_dot": 2048, "trn.grouped_outer": 512}
ROOM = 2 / 3  # of SBUF, for what products are estimated in


def tabulate_groups(graph: Graph, chip: Chip | None) -> None:
    """Give products of groups of rows their tables; those that no kernel takes are written out, every group's matrix
    with all rows. chip: None of a graph that is divided before it is compiled, which leaves them as they are."""
    if chip is None:
        return
    users = graph.users()
    rewrite(graph, {"trn.grouped_outer": lambda op, b: _turned(op, b, users, graph.wanted())})
    rewrite(graph, dict.fromkeys(GROUPED, lambda op, b: _tabulated(op, b, chip)))


def _turned(op: Op, b: GraphBuilder, users: Mapping[Value, list[Op]], kept: set[Value]) -> Value | None:
    """x^T y turned, where that is all that anyone reads: it is y^T x then, and nothing is turned. A layer's weights
    lie [G, N, K], and their gradient is wanted like that."""
    x, y, ends = op.operands[:3]
    readers = users.get(op.result, ())
    if (
        not readers
        or op.result in kept
        or any(u.name != "transpose" or u.attrs["permutation"] != (0, 2, 1) for u in readers)
    ):
        return None
    return b.transpose(b.append(op.name, (y, x, ends), op.attrs).results[0], (0, 2, 1))


def _tabulated(op: Op, b: GraphBuilder, chip: Chip) -> Value | tuple[Value, ...] | None:
    x, y, ends = op.operands[:3]
    if len(op.operands) > 3:
        return None
    (rows, size), groups = x.shape, ends.shape[0]
    matrix = y.shape[1] * y.shape[2] if op.name == "trn.grouped_dot" else size * y.shape[1]
    if not op.result.type.size or not rows * size or groups * matrix // min(size, y.shape[-1]) >= EXACT:
        return expand(op, b)
    of_rows = op.name == "trn.grouped_dot"
    items = _Items.of(rows, groups, every=not of_rows, block=_rows_of_item(op, chip))
    tables = items.of_results(b, ends) if of_rows else items.of_terms(b, ends)
    return b.append(op.name, (x, y, ends, *tables), op.attrs).results


@dataclass(frozen=True)
class _Items:
    """How rows are shared out. every: whether groups without a row have an item, too."""

    rows: int
    groups: int
    every: bool
    block: int
    count: int

    @staticmethod
    def of(rows: int, groups: int, *, every: bool, block: int) -> _Items:
        """As many items as it may take. However many rows each group has, one more row makes an item more only where
        B others have made one before."""
        first = groups if every else min(groups, rows)
        filled = (rows - 1) // block if every else (rows - first) // block
        return _Items(rows, groups, every, block, first + filled)

    def of_results(self, b: GraphBuilder, ends: Value) -> list[Value]:
        """The tables of `kernels.grouped.products.RowTables`. Rows behind the last group are those of its items."""
        given = _Groups(self, b, ends)
        row, inside = given.rows_of_blocks()
        read = b.minimum(row, float(self.rows - 1))
        write = b.select(inside, row, float(self.rows))
        keep = b.select(b.compare(row, "LT", b.broadcast_to(given.last, row.shape)), _all_bits(b, row.shape), 0)
        return [b.convert(read, int32), b.convert(write, int32), keep, b.convert(given.group, int32)]

    def of_terms(self, b: GraphBuilder, ends: Value) -> list[Value]:
        """The tables of `kernels.grouped.products.TermTables`."""
        given = _Groups(self, b, ends)
        row, inside = given.rows_of_blocks()
        inside = b.and_(inside, b.compare(row, "LT", b.broadcast_to(given.last, row.shape)))
        read = b.select(inside, row, float(self.rows))
        goes_on = b.select(given.first, 0, _all_bits(b, (self.count,)))
        return [b.convert(read, int32), b.convert(given.group, int32), goes_on]


class _Groups:
    """What is known of items on chip, [T] each, in float32, which holds numbers of rows exactly."""

    def __init__(self, items: _Items, b: GraphBuilder, ends: Value) -> None:
        self.items, self.b = items, b
        count, groups, rows = items.count, items.groups, float(items.rows)
        self.ends = b.clamp(0.0, b.convert(ends, float32), rows)
        self.last = b.slice_dim(self.ends, 0, groups - 1, groups)
        starts, stops = self._from_to()
        blocks = self._blocks(starts, stops)
        before = self._sums_before(blocks)
        # item t is of the one group with before <= t < before + blocks; of the last group, without rows, if none is
        shape = (count, groups)
        item = b.iota(shape, float32, 0)
        first, behind = (b.broadcast_in_dim(v, shape, (1,)) for v in (before, b.add(before, blocks)))
        mine = b.and_(b.compare(item, "GE", first), b.compare(item, "LT", behind))

        def picked(of_groups: Value) -> Value:
            return b.reduce(b.select(mine, b.broadcast_in_dim(of_groups, shape, (1,)), 0.0), (1,))

        from_last = b.subtract(float(groups - 1), b.iota((groups,), float32))
        self.group = b.subtract(float(groups - 1), picked(from_last))
        item = b.iota((count,), float32)
        self.start = b.add(
            picked(b.subtract(starts, b.multiply(before, float(items.block)))), b.multiply(item, float(items.block))
        )
        self.stop = picked(stops)
        self.first = b.compare(picked(b.add(before, 1.0)), "EQ", b.add(item, 1.0))

    def _from_to(self) -> tuple[Value, Value]:
        """Where groups begin and end; the last one at the end of all rows."""
        b, groups = self.b, self.items.groups
        ends = b.slice_dim(self.ends, 0, 0, groups - 1) if groups > 1 else None
        zero, rows = b.constant(0.0, float32, (1,)), b.constant(float(self.items.rows), float32, (1,))
        if ends is None:
            return zero, rows
        return b.concatenate([zero, ends], 0), b.concatenate([ends, rows], 0)

    def _blocks(self, starts: Value, stops: Value) -> Value:
        """How many items each group has."""
        b, block = self.b, self.items.block
        more = b.add(b.maximum(b.subtract(stops, starts), 0.0), float(block - 1))
        blocks = b.floor(b.multiply(more, 1.0 / block))  # B is a power of two: nothing is rounded
        return b.maximum(blocks, 1.0) if self.items.every else blocks

    def _sums_before(self, x: Value) -> Value:
        """For each group the sum of all groups before it."""
        b, shape = self.b, (self.items.groups, self.items.groups)
        before = b.compare(b.iota(shape, int32, 1), "LT", b.iota(shape, int32, 0))
        return b.reduce(b.select(before, b.broadcast_in_dim(x, shape, (1,)), 0.0), (1,))

    def rows_of_blocks(self) -> tuple[Value, Value]:
        """The rows of all blocks [H, J], and whether they are rows of the item's group."""
        b, items = self.b, self.items
        height, each = min(items.block, P), ceil(items.block / P)
        shape, whole = (items.count, each), (height, items.count * each)
        starts, stops = (b.broadcast_in_dim(v, shape, (0,)) for v in (self.start, self.stop))
        starts = b.add(starts, b.multiply(b.iota(shape, float32, 1), float(P)))
        starts, stops = (b.broadcast_in_dim(b.reshape(v, (whole[1],)), whole, (1,)) for v in (starts, stops))
        row = b.add(starts, b.iota(whole, float32, 0))
        return row, b.compare(row, "LT", stops)


def _all_bits(b: GraphBuilder, shape: tuple[int, ...]) -> Value:
    return b.constant(-1, int32, shape)


# -- how many rows an item has -------------------------------------------------------------------------------------


def _rows_of_item(op: Op, chip: Chip) -> int:
    """The number of rows, a power of two, with which the products take least time."""
    rows: int = op.operands[0].shape[0]
    most = 1
    while most < min(rows, LARGEST[op.name]):
        most *= 2
    choices = [n for n in (P << i for i in range(8)) if n <= most] or [most]
    return min(choices, key=lambda n: _seconds(op, n, chip))


def _seconds(op: Op, block: int, chip: Chip) -> float:
    """What all items take, by the cost of a product between others of its kind."""
    x, y, ends = op.operands[:3]
    (rows, size), groups, room = x.shape, ends.shape[0], int(chip.sbuf.bytes_per_partition.value * ROOM)
    of_rows = op.name == "trn.grouped_dot"
    items = _Items.of(rows, groups, every=not of_rows, block=block).count
    name, cols = x.dtype.name, y.shape[-1]
    if of_rows:
        k_rows = view_of_origin(y).strides[2] == 1
        problem, times = MatmulProblem(block, cols, size, name, False, k_rows, batch=items), 1
    else:
        height, width = slab(size, cols)
        cost = seconds_of_sums(chip), op.result.dtype.itemsize
        problem = MatmulProblem(height, width, block, name, True, True, *cost, batch=items)
        times = ceil(size / height) * ceil(cols / width)
    try:
        return items * times * least_seconds(problem, room, chip)
    except CapacityError:
        return float("inf")
