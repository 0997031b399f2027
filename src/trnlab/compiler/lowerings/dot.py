# SPDX-License-Identifier: Apache-2.0
"""Matrix products: dot_general with its epilogue.

Letters: M rows of the result, N its columns, K contraction.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

from trnlab.compiler.emitter import Emitter
from trnlab.compiler.lowerings.context import Lowering
from trnlab.compiler.sweep import sweep
from trnlab.compiler.tiles import TileSpace, make_plan
from trnlab.compiler.tilesource import Domain, Frame, Loader
from trnlab.graph.ir import Value
from trnlab.isa.base import Memory
from trnlab.kernels.blocks import Sink, ViewSource, Workspace
from trnlab.kernels.matmul import Product, batch_matmul
from trnlab.kernels.view import View
from trnlab.numerics.dtypes import float32
from trnlab.program import AP, Builder

BANK = 512
BUFFERS = 3  # sweeps of the epilogue that may be in flight


class EpilogueSink(Sink):
    """Finished PSUM tiles go through the group's elementwise ops and out. `first_row`: of this product in the
    result."""

    def __init__(self, emitter: Emitter, low: Lowering, domain: Domain, first_row: int) -> None:
        self.emitter, self.low, self.domain, self.first_row = emitter, low, domain, first_row
        self.plan = make_plan(low.group, low.group.ops[1:], low.stores)

    def open(self, b: Builder, work: Workspace, width: int) -> None:
        """Its tiles were placed before the kernel began."""

    def store(self, b: Builder, acc: AP, row: int, col: int) -> None:
        """One sweep over the tile."""
        frame = Frame(self.domain, self.first_row + row, acc.partitions, col, acc.free)
        sweep(self.emitter, self.plan, frame, {self.low.group.anchor.result: acc})
        self.emitter.end_row()

    def close(self, b: Builder) -> None:
        """Nothing is held back."""


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
    EpilogueSink(measured, trial, domain, 0).store(trial.b, acc, 0, 0)
    counts = (
        {size: BUFFERS * n for size, n in measured.wide.peak.items()},
        {size: BUFFERS * n for size, n in measured.narrow.peak.items()},
    )
    emitter = _emitter(low, width, counts, measured.loader)
    return (EpilogueSink(emitter, low, domain, i * rows) for i in range(batch))


def _emitter(
    low: Lowering, width: int, counts: tuple[dict[int, int], dict[int, int]] | None, trial: Loader | None
) -> Emitter:
    wide = TileSpace(low.b, width, counts and counts[0], "tile")
    narrow = TileSpace(low.b, 1, counts and counts[1], "row")
    loader = Loader(low.b, low.group, low.part, low.ports, wide, narrow)
    if trial is not None:
        loader.prepare(trial)
    return Emitter(low.b, low.group, low.part, loader, wide, narrow)
