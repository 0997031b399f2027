# SPDX-License-Identifier: Apache-2.0
"""Matrix products: dot_general with its epilogue.

Letters: M rows of the result, N its columns, K contraction.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import product
from math import prod

from trnlab.compiler.emitter import Emitter
from trnlab.compiler.groups import Class
from trnlab.compiler.lowerings.context import Lowering
from trnlab.compiler.sweep import steps, take_turns
from trnlab.compiler.tiles import Plan, TileSpace, make_plan, origin
from trnlab.compiler.tilesource import Domain, Frame, Loader
from trnlab.graph.ir import Value
from trnlab.isa.base import Memory
from trnlab.kernels.blocks import ANNOUNCED, Sink, ViewSource, Workspace
from trnlab.kernels.matmul import Product, batch_matmul
from trnlab.kernels.matmul_mx import Operand as MxOperand
from trnlab.kernels.matmul_mx import matmul_mx
from trnlab.kernels.view import View
from trnlab.numerics.dtypes import float32
from trnlab.program import AP, Builder

BANK = 512
MANY_OPS = 6  # of a group: its epilogue is a chain of instructions that wait for each other


class EpilogueSink(Sink):
    """Finished PSUM tiles go through the group's elementwise ops and out. `first_row`: of this product in the
    result.

    What the ops read of a tile is loaded when the tile is announced. Where there are many ops, a tile waits for the
    next one: they are a chain of instructions that wait for each other, and two chains fill each other's pauses.
    """

    def __init__(
        self, emitters: deque[Emitter], low: Lowering, domain: Domain, first_row: int, cost: float = 0.0
    ) -> None:
        """`emitters`: taken in turn, one for each tile that is announced or waits."""
        self.cost = cost
        self.emitters, self.low, self.domain, self.first_row = emitters, low, domain, first_row
        self.plan = make_plan(low.group, low.group.ops[1:], low.stores)
        self.loads = loaded_values(low, self.plan)
        self.together = tiles_together(low)
        self.moved = sum(v.dtype.itemsize for v in (*self.loads, *low.stores)) if cost else 0
        self._announced: deque[tuple[Frame, Emitter]] = deque()
        self._waiting: list[tuple[Frame, Emitter, AP]] = []

    def open(self, b: Builder, work: Workspace, width: int) -> None:
        """Its tiles were placed before the kernel began."""

    def announce(self, b: Builder, row: int, col: int, rows: int, cols: int) -> None:
        """Load what the ops will read."""
        if self.loads:
            frame, emitter = self._frame(row, col, rows, cols), self._next()
            for value in self.loads:
                emitter.loader.load(value, frame)
            self._announced.append((frame, emitter))

    def store(self, b: Builder, acc: AP, row: int, col: int) -> None:
        """One sweep over the tile."""
        frame = self._frame(row, col, acc.partitions, acc.free)
        expected, emitter = self._announced.popleft() if self._announced else (frame, self._next())
        assert expected == frame, f"{frame} was not announced, {expected} was"
        self._waiting.append((frame, emitter, acc))
        if len(self._waiting) == self.together:
            self.close(b)

    def close(self, b: Builder) -> None:
        """Sweeps over the tiles that wait."""
        result = self.low.group.anchor.result
        take_turns([steps(e, self.plan, frame, {result: acc}) for frame, e, acc in self._waiting])
        for _, emitter, _ in self._waiting:
            emitter.end_row()
        self._waiting = []

    def _frame(self, row: int, col: int, rows: int, cols: int) -> Frame:
        return Frame(self.domain, self.first_row + row, rows, col, cols)

    def _next(self) -> Emitter:
        self.emitters.rotate(-1)
        return self.emitters[-1]


def loaded_values(low: Lowering, plan: Plan) -> list[Value]:
    """What an epilogue reads of each tile from memory."""
    read = dict.fromkeys(origin(v, low.group) for op in plan.ops for v in op.operands)
    outer = {v: c for v, c in low.group.outer.items() if v not in low.group.classes}
    return [v for v in read if outer.get(v) is Class.FULL and low.part.splat(v) is None]


def tiles_together(low: Lowering) -> int:
    """How many tiles go through an epilogue side by side."""
    return 2 if len(low.group.ops) > MANY_OPS else 1


def lower_dot(low: Lowering) -> None:
    """Record a group that begins with a dot_general."""
    op = low.group.anchor
    lhs, lhs_k_rows = _operand(
        low, op.operands[0], op.attrs["lhs_batching_dimensions"], op.attrs["lhs_contracting_dimensions"]
    )
    rhs, rhs_k_rows = _operand(
        low, op.operands[1], op.attrs["rhs_batching_dimensions"], op.attrs["rhs_contracting_dimensions"]
    )
    batch = tuple(op.operands[0].shape[d] for d in op.attrs["lhs_batching_dimensions"])
    rows = low.group.size // (low.group.cols or 1) // prod(batch)
    sinks = sinks_of(low, rows, prod(batch))
    items = []
    for index, sink in zip(product(*(range(n) for n in batch)), sinks):
        if op.attrs["lhs_mx"]:
            left = MxOperand(lhs.source(index), lhs_k_rows, op.attrs["lhs_mx"])
            matmul_mx(low.b, left, MxOperand(rhs.source(index), rhs_k_rows, op.attrs["rhs_mx"]), sink)
            continue
        items.append(Product(lhs.source(index), rhs.source(index), sink))
    batch_matmul(low.b, items, lhs_k_rows=lhs_k_rows, rhs_k_rows=rhs_k_rows)


class _Operand:
    """One side of a product: a view with batch dimensions first, then the rows of a block, then its columns."""

    def __init__(self, view: View, batch: int, rows: int) -> None:
        self.view, self.batch, self.rows = view, batch, rows

    def source(self, index: tuple[int, ...]) -> ViewSource:
        """The matrix of one batch element."""
        return ViewSource(self.view[index] if index else self.view, rows=self.rows)


def _operand(low: Lowering, value: Value, batch: tuple[int, ...], contract: tuple[int, ...]) -> tuple[_Operand, bool]:
    """The operand with what is contiguous in memory as columns; True when the contraction is its rows."""
    view = low.view(value)
    free = tuple(d for d in range(len(view.shape)) if d not in batch and d not in contract)
    k_rows = _step(view, contract) >= _step(view, free)
    order = (*batch, *contract, *free) if k_rows else (*batch, *free, *contract)
    view = view.permute(*order)
    rows = contract if k_rows else free
    if not rows or not (free if k_rows else contract):  # a vector: give the matrix a dimension of one
        at = len(batch) if not rows else len(view.shape)
        view = view.expand(at, 1)
    return _Operand(view, len(batch), max(len(rows), 1)), k_rows


def _step(view: View, dims: tuple[int, ...]) -> int:
    """Smallest distance between elements along some dimensions; large when there is nothing to step over."""
    return min((abs(view.strides[d]) for d in dims if view.shape[d] > 1 and view.strides[d]), default=1 << 40)


def sinks_of(low: Lowering, rows: int, batch: int) -> Iterator[EpilogueSink]:
    """A sink for each product of the batch; they share tiles, sized by a trial run of one sweep."""
    cols = low.group.cols or 1
    domain = Domain(rows * batch, cols)
    width = min(cols, BANK)
    trial = low.fresh()
    measured = _emitter(trial, width, None, None)
    acc = trial.b.tile((min(rows, 128), width), float32, memory=Memory.PSUM)
    sink = EpilogueSink(deque([measured]), trial, domain, 0)
    sink.store(trial.b, acc, 0, 0)
    sink.close(trial.b)
    count = ANNOUNCED + tiles_together(low)
    counts = [{size: count * n for size, n in space.peak.items()} for space in (measured.wide, measured.narrow)]
    emitter = _emitter(low, width, counts, measured.loader)
    emitters = deque([emitter, *(emitter.sibling() for _ in range(1, count))])
    cost = max(measured.busy.values()) if len(low.group.ops) > MANY_OPS else 0.0
    return (EpilogueSink(emitters, low, domain, i * rows, cost) for i in range(batch))


def _emitter(low: Lowering, width: int, counts: list[dict[int, int]] | None, trial: Loader | None) -> Emitter:
    wide = TileSpace(low.b, width, counts[0] if counts else None, "tile")
    narrow = TileSpace(low.b, 1, counts[1] if counts else None, "row")
    loader = Loader(low.b, low.group, low.part, low.ports, wide, narrow)
    if trial is not None:
        loader.prepare(trial)
    return Emitter(low.b, low.group, low.part, loader, wide, narrow)
