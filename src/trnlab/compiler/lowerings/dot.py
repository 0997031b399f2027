# SPDX-License-Identifier: Apache-2.0
"""Matrix products: dot_general with its epilogue.

Letters: M rows of the result, N its columns, K contraction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, TypeVar

from trnlab.compiler.fusing.fusion import Partition
from trnlab.compiler.fusing.groups import FusionGroup, GroupKind
from trnlab.compiler.lowerings.context import Lowering
from trnlab.compiler.lowerings.row_epilogue import RowSink, needs_rows, row_sink
from trnlab.compiler.lowerings.sinks import EpilogueSink, sinks_of
from trnlab.graph.ir import Value
from trnlab.isa.base import Engine
from trnlab.kernels import residence
from trnlab.kernels.blocking.problem import MatmulProblem
from trnlab.kernels.blocks import (
    BlockSource,
    JoinedSource,
    P,
    Sink,
    ViewSource,
    WidenedSource,
    Workspace,
    casts_freely,
)
from trnlab.kernels.few_rows import MOST_ROWS, SpreadMatrix, SpreadRows, WideSink, result_tiles
from trnlab.kernels.matmul import BatchedProduct, batch_matmul, pairs_of, problem_of
from trnlab.kernels.matmul_mx import MxOperand as MxOperand
from trnlab.kernels.matmul_mx import matmul_mx
from trnlab.kernels.view import HbmView
from trnlab.program import AP, Builder
from trnlab.program.strided import Strided
from trnlab.stacks import TURNED

View = TypeVar("View", bound=Strided[Any])


def lower_dot(low: Lowering) -> None:
    """Record a group that begins with a dot_general, or with a sum of several."""
    op = low.group.anchor
    if op.name == "trn.dot_sum":
        _lower_sum(low)
        return
    lhs, rhs = _operands(low, *op.operands)
    batch = tuple(op.operands[0].shape[d] for d in op.attrs.get("lhs_batching_dimensions", ()))
    rows = low.group.size // (low.group.cols or 1) // prod(batch)
    of_rhs = op.attrs.get("summed") == "rhs"
    if _casts_to_turn(low, lhs, rhs, len(batch)):
        low.storing = Engine.SYNC  # GpSimdE triggers all loads: none waits for a result
    if rows <= MOST_ROWS and _contracts_spread(low, lhs, rhs):
        lhs, rhs = _SpreadOperand(lhs, SpreadRows), _SpreadOperand(rhs, SpreadMatrix)

    def item(index: tuple[int, ...], sink: Sink) -> BatchedProduct:
        return BatchedProduct(lhs.source(index), rhs.source(index), sink, sums=_sums(low), sums_of_rhs=of_rhs)

    def problem(sink: Sink) -> MatmulProblem:
        return problem_of(low.b, item((0,) * len(batch), sink), lhs.k_rows, rhs.k_rows)

    plain = isinstance(lhs, _SpreadOperand) and len(low.group.ops) == 1 and batch
    sinks: Iterator[Sink]
    if needs_rows(low.group):
        sinks = iter([row_sink(low, rows, problem)])
    elif plain:
        sinks = _wide_sinks(low, batch)
    else:
        sinks = sinks_of(low, rows, prod(batch), None if op.attrs.get("lhs_mx") else problem)
    items, last = [], None
    for index, sink in zip(product(*(range(n) for n in batch)), sinks):
        last = sink
        if op.attrs.get("lhs_mx"):
            left = MxOperand(lhs.given(index), lhs.k_rows, op.attrs["lhs_mx"])
            matmul_mx(low.b, left, MxOperand(rhs.given(index), rhs.k_rows, op.attrs["rhs_mx"]), sink)
            continue
        items.append(item(index, sink))
    batch_matmul(low.b, items, lhs_k_rows=lhs.k_rows, rhs_k_rows=rhs.k_rows)
    if isinstance(last, EpilogueSink | RowSink):
        last.finish()


def _casts_to_turn(low: Lowering, lhs: _Operand, rhs: _Operand, batch: int) -> bool:
    """Whether transfers widen FP8, which the PE array transposes in 16 bits; pairs of it need not be."""
    chip, first = low.b.chip, (0,) * batch
    if lhs.k_rows or rhs.k_rows or casts_freely(chip) or lhs.view.dtype.itemsize != 1:
        return False
    return any(pairs_of(side.source(first), chip) is None for side in (lhs, rhs))


def _sums(low: Lowering) -> HbmView | None:
    """Where sums of an operand over the contraction go, if they are asked for."""
    sums = low.group.anchor.results[1:]
    return low.view(sums[0]) if sums and sums[0] in low.stores else None


def _lower_sum(low: Lowering) -> None:
    """Record one product of matrices, whose contraction goes from one pair of operands to the next."""
    op = low.group.anchor
    pairs = [_operands(low, *op.operands[i : i + 2]) for i in range(0, len(op.operands), 2)]
    assert len({(lhs.k_rows, rhs.k_rows) for lhs, rhs in pairs}) == 1, "pairs lie in memory alike"
    lhs, rhs = (JoinedSource([side.source(()) for side in sides], sides[0].k_rows) for sides in zip(*pairs))
    k_rows = pairs[0][0].k_rows, pairs[0][1].k_rows
    rows = low.group.size // (low.group.cols or 1)

    def problem(sink: Sink) -> MatmulProblem:
        return problem_of(low.b, BatchedProduct(lhs, rhs, sink), *k_rows)

    sink = row_sink(low, rows, problem) if needs_rows(low.group) else next(sinks_of(low, rows, 1, problem))
    batch_matmul(low.b, [BatchedProduct(lhs, rhs, sink)], lhs_k_rows=k_rows[0], rhs_k_rows=k_rows[1])
    sink.finish()


class JoinedSink(Sink):
    """Results of several products side by side: each has its columns. parts: their sinks and how many columns."""

    def __init__(self, parts: Sequence[tuple[EpilogueSink, int]]) -> None:
        self.sinks = [sink for sink, _ in parts]
        self.widths = [width for _, width in parts]
        self.cost = max(sink.cost for sink in self.sinks)
        self.moved = max(sink.moved for sink in self.sinks) if self.cost else 0
        self._last: EpilogueSink | None = None

    def open(self, b: Builder, work: Workspace, width: int) -> None:
        """Their tiles were placed before the kernel began."""

    def _shares(self, col: int, cols: int) -> Iterator[tuple[EpilogueSink, int, int, int]]:
        """How columns [col, +cols) are divided: a sink, the first of its columns among them, how many, and where they
        begin in its result."""
        start = 0
        for sink, width in zip(self.sinks, self.widths):
            low, high = max(col, start), min(col + cols, start + width)
            if low < high:
                yield sink, low - col, high - low, low - start
            start += width

    def announce(self, b: Builder, row: int, col: int, rows: int, cols: int) -> None:
        """To each sink its share."""
        for sink, _, count, start in self._shares(col, cols):
            sink.announce(b, row, start, rows, count)

    def store(self, b: Builder, acc: AP, row: int, col: int) -> None:
        """To each sink its share. A tile that waits for the next one waits for none of another sink: its bank may be
        written before that comes."""
        for sink, first, count, start in self._shares(col, acc.free):
            if self._last is not None and self._last is not sink:
                self._last.close(b)
            sink.store(b, acc[:, first : first + count], row, start)
            self._last = sink

    def close(self, b: Builder) -> None:
        """Those of all."""
        for sink in self.sinks:
            sink.close(b)


def lower_siblings(lows: Sequence[Lowering]) -> None:
    """Record products of one left operand by several others as one (see `compiler.siblings`)."""
    first = lows[0]
    lhs = _operand(first, first.group.anchor.operands[0], "lhs")
    sides = [_operand(low, low.group.anchor.operands[1], "rhs") for low in lows]
    k_rows = lhs.k_rows, sides[0].k_rows
    assert all(_operand(low, low.group.anchor.operands[0], "lhs").k_rows == k_rows[0] for low in lows)
    assert all(side.k_rows == k_rows[1] for side in sides)
    rhs = JoinedSource([side.source(()) for side in sides], not k_rows[1])
    left, rows = lhs.source(()), first.group.size // (first.group.cols or 1)

    def problem(sink: Sink) -> MatmulProblem:
        return problem_of(first.b, BatchedProduct(left, rhs, sink), *k_rows)

    sinks = [next(sinks_of(low, rows, 1, problem)) for low in lows]
    sink = JoinedSink([(each, low.group.cols or 1) for each, low in zip(sinks, lows)])
    batch_matmul(first.b, [BatchedProduct(left, rhs, sink)], lhs_k_rows=k_rows[0], rhs_k_rows=k_rows[1])
    for each in sinks:
        each.finish()


class _Operand:
    """One side of a product: a view with batch dimensions first, then the rows of a block, then its columns."""

    def __init__(self, view: HbmView, batch: int, rows: int, k_rows: bool, cast: str) -> None:
        """`k_rows`: whether the rows are the contraction. `cast`: format on chip, if it is another."""
        self.view, self.batch, self.rows, self.k_rows, self.cast = view, batch, rows, k_rows, cast

    def may_be_spread(self, low: Lowering) -> bool:
        """Whether it comes from memory as it is, its one contracted dimension is as many rows for each partition, and
        all else of it is one stride apart: see `kernels.few_rows`."""
        shape, first = self.view.shape, self.batch
        contracted = first if self.k_rows else len(shape) - 1
        one = self.rows == (1 if self.k_rows else contracted - first)
        others = self.view.collapsed(first + 1) if self.k_rows else self.view.collapsed(first, contracted)
        if self.cast or residence.of(low.b, self.view.base) is not None:
            return False
        return one and shape[contracted] % P == 0 and len(others or ()) <= 1

    def source(self, index: tuple[int, ...]) -> BlockSource:
        """The matrix of one batch element."""
        if self.cast and self.view.dtype.itemsize == 1:
            return WidenedSource(self.view[index] if index else self.view, rows=self.rows, dt=self.cast)
        return self.given(index)

    def given(self, index: tuple[int, ...]) -> ViewSource:
        """The same as transfers bring it."""
        return ViewSource(self.view[index] if index else self.view, rows=self.rows, dt=self.cast or None)


class _SpreadOperand(_Operand):
    """A side of a product of few rows, which contracts in the order of `kernels.few_rows`."""

    def __init__(self, given: _Operand, kind: type[SpreadRows | SpreadMatrix]) -> None:
        super().__init__(given.view, given.batch, given.rows, True, "")
        self._kind = kind

    def source(self, index: tuple[int, ...]) -> BlockSource:
        """See `_Operand`."""
        return self._kind(self.view[index] if index else self.view)


def _contracts_spread(low: Lowering, lhs: _Operand, rhs: _Operand) -> bool:
    """Whether a product of few rows may contract in the order of `kernels.few_rows`."""
    attrs = low.group.anchor.attrs
    if (
        low.chosen["few_rows"] == TURNED
        or any(attrs.get(name) for name in ("lhs_mx", "summed"))
        or lhs.k_rows
        or not rhs.k_rows
        or lhs.view.strides[-1] != 1
    ):
        return False
    return lhs.may_be_spread(low) and rhs.may_be_spread(low)


def _wide_sinks(low: Lowering, batch: tuple[int, ...]) -> Iterator[WideSink]:
    """Sinks that store a result as it is."""
    result = low.group.anchor.result
    view, tiles = low.view(result), result_tiles(low.b, low.group.cols or 1, result.dtype)
    rows = len(view.shape) - len(batch) - 1
    return (WideSink(view[index], rows, tiles) for index in product(*(range(n) for n in batch)))


def _operands(low: Lowering, lhs: Value, rhs: Value) -> tuple[_Operand, _Operand]:
    """Both sides of a product of the group's op."""
    return _operand(low, lhs, "lhs"), _operand(low, rhs, "rhs")


def _operand(low: Lowering, value: Value, side: str) -> _Operand:
    """The operand with what is contiguous in memory as columns."""
    attrs = low.group.anchor.attrs
    return _Operand(*arranged(low.view(value), attrs, side), attrs.get(f"{side}_cast", ""))


def arranged(view: View, attrs: Mapping[str, Any], side: str) -> tuple[View, int, int, bool]:
    """An operand with batch dimensions first, then rows, then columns: how many are batch, and rows, and whether the
    rows are the contraction."""
    batch, contract = attrs.get(f"{side}_batching_dimensions", ()), attrs.get(f"{side}_contracting_dimensions", (0,))
    free = tuple(d for d in range(len(view.shape)) if d not in batch and d not in contract)
    k_rows = _step(view, contract) >= _step(view, free)
    order = (*batch, *contract, *free) if k_rows else (*batch, *free, *contract)
    view = view.permute(*order)
    rows = contract if k_rows else free
    if not rows or not (free if k_rows else contract):  # a vector: give the matrix a dimension of one
        at = len(batch) if not rows else len(view.shape)
        view = view.expand(at, 1)
    return view, len(batch), max(len(rows), 1), k_rows


def product_of(group: FusionGroup, part: Partition) -> MatmulProblem | None:
    """The product of two matrices, or of several pairs, that a group begins with; None for any other, and where the
    right operand is widened."""
    op, attrs = group.anchor, group.anchor.attrs
    batched = attrs.get("lhs_mx") or attrs.get("lhs_batching_dimensions")
    if group.kind is not GroupKind.DOT or op.name not in ("dot_general", "trn.dot_sum") or batched:
        return None
    lhs, rhs = op.operands[:2]
    if rhs.dtype.itemsize == 1:
        return None
    k_rows = (arranged(part.strided(value), attrs, side)[-1] for value, side in ((lhs, "lhs"), (rhs, "rhs")))
    cols = group.cols or 1
    contracted = sum(value.type.size for value in op.operands[1::2]) // cols
    return MatmulProblem(group.size // cols, cols, contracted, attrs.get("rhs_cast") or rhs.dtype.name, *k_rows)


def _step(view: Strided[Any], dims: tuple[int, ...]) -> int:
    """Smallest distance between elements along some dimensions; large when there is nothing to step over."""
    return min((abs(view.strides[d]) for d in dims if view.shape[d] > 1 and view.strides[d]), default=1 << 40)
