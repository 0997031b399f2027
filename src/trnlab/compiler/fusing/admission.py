# SPDX-License-Identifier: Apache-2.0
"""Which loops can compute an op too: its columns there, and how the loop meets the op's operands and result."""

from __future__ import annotations

from math import prod

from trnlab.compiler.convolutions import has_epilogue
from trnlab.compiler.fusing.classes import Classes
from trnlab.compiler.fusing.groups import STATISTICS, FusionGroup, GroupKind, ValueClass, join, sums_over_rows
from trnlab.graph.ir import Op, Value
from trnlab.graph.ops import ELEMENTWISE, OPS, ROWWISE
from trnlab.kernels.blocks import P
from trnlab.numerics.dtypes import bfloat16, float32

# Full tensors that the epilogue of a matmul may read: more, and the PE array would wait for them.
MAX_EPILOGUE_LOADS = 2
# Of a loop whose ops are of rows of their own: columns at most, and rows at least, so that tiles overlap.
MOST_COLS, LEAST_ROWS = 4096, 512
PSUM_BANKS, BANK_COLS = 8, 512  # sums over rows stay in PSUM for the whole loop


class Admission(Classes):
    """Verdicts on an op in a group that computes one of its operands or reads what it reads: the columns of the
    group's loop and the class of the op's result, or None."""

    def admitted(self, group: FusionGroup, op: Op) -> tuple[int | None, ValueClass] | None:
        """The verdict on any op whose other operands are there before the group runs."""
        if op.name in ("trn.rng_uniform", "trn.rng_philox"):
            return self._admit_random(group, op)
        if op.name == "reduce":
            return self._admit_reduce(group, op)
        if op.name in STATISTICS:
            return self._admit_statistics(group, op)
        if op.name == "gather":
            return self._admit_gather(group, op)
        if OPS[op.name].kind == ROWWISE:
            return self._admit_rows(group, op)
        return self._admit_elementwise(group, op)

    def _admit_elementwise(self, group: FusionGroup, op: Op) -> tuple[int | None, ValueClass] | None:
        cols = group.cols
        size = op.result.type.size
        whole = group.kind is not GroupKind.CONVOLUTION or has_epilogue(group.anchor)
        if OPS[op.name].kind != ELEMENTWISE or not whole:
            return None
        inner: list[ValueClass] = []
        outer: list[Value] = []
        for value in op.operands:
            if self.inside(value, group):
                seen = self.class_of(value, group, cols)
                if seen is None or seen[1] is ValueClass.FINAL:
                    return None
                cols = seen[0]
                inner.append(seen[1])
            else:
                outer.append(value)
        if size != group.size:
            narrow = inner and all(c in (ValueClass.ROW, ValueClass.SCALAR) for c in inner)
            if not (narrow and cols is not None and size * cols == group.size):
                return None
            found = {v: ValueClass.SCALAR if self.is_scalar(v) else ValueClass.ROW for v in outer}
            group.outer = {**found, **group.outer}
            return cols, join(*inner, *found.values())
        loads = set()
        found = {}
        for value in outer:
            cols, cls = (cols, group.outer[value]) if value in group.outer else self.outer_class(value, cols)
            inner.append(cls)
            found[value] = cls
            if cls is ValueClass.FULL:
                if group.ops and cols is not None and not self.has_rows(value, group.size // cols, cols):
                    return None
                loads.add(self.root(value))
        most = {GroupKind.DOT: MAX_EPILOGUE_LOADS, GroupKind.CONVOLUTION: 0}
        if len(group.loads | loads) > most.get(group.kind, len(group.loads | loads)):
            return None
        group.loads |= loads
        group.outer.update(found)
        return cols, join(*inner)

    def _admit_reduce(self, group: FusionGroup, op: Op) -> tuple[int | None, ValueClass] | None:
        value, dims = op.operands[0], op.attrs["dimensions"]
        cols = reduced_cols(op)
        if group.kind is GroupKind.DOT:
            return self._admit_extremes(group, op, cols)
        if group.kind is not GroupKind.ROWS or value.type.size != group.size or group.cols not in (None, cols):
            return None
        if self.inside(value, group):
            seen = self.class_of(value, group, cols)
            if seen is None or seen[1] is not ValueClass.FULL:
                return None
        else:
            group.outer.setdefault(value, ValueClass.FULL)
        sums = sums_over_rows(group)
        if _is_trailing(dims, value.type.rank):
            return (cols, ValueClass.ROW) if fits_psum(sums, cols) else None
        has_rows = any(c is ValueClass.ROW for c in group.classes.values())
        if op.attrs["kind"] != "add" or (has_rows and not fits_psum(sums + 1, cols)) or sums + 1 > PSUM_BANKS:
            return None
        return cols, ValueClass.FINAL

    def _admit_statistics(self, group: FusionGroup, op: Op) -> tuple[int | None, ValueClass] | None:
        value, cols = op.operands[0], reduced_cols(op)
        if value.type.size != group.size or group.cols not in (None, cols) or not self._has_rows(group):
            return None
        if self.inside(value, group):
            seen = self.class_of(value, group, cols)
            return None if seen is None or seen[1] is not ValueClass.FULL else (cols, ValueClass.FINAL)
        if group.kind is not GroupKind.ROWS:
            return None
        group.outer.setdefault(value, ValueClass.FULL)
        return cols, ValueClass.FINAL

    def _admit_extremes(self, group: FusionGroup, op: Op, cols: int) -> tuple[int | None, ValueClass] | None:
        """Admit the largest element of each row of a product, or the smallest: a float on its way out."""
        value, dims = op.operands[0], op.attrs["dimensions"]
        fits = (
            op.attrs["kind"] in ("maximum", "minimum") and value.dtype in (float32, bfloat16) and group.cols == cols
        )
        if not fits or value.type.size != group.size or not _is_trailing(dims, value.type.rank):
            return None
        if not self._has_rows(group) or not self.inside(value, group):
            return None
        seen = self.class_of(value, group, cols)
        return None if seen is None or seen[1] is not ValueClass.FULL else (cols, ValueClass.FINAL)

    def _has_rows(self, group: FusionGroup) -> bool:
        """Whether the rows of a product's result are whole: of one product, and in the order of memory."""
        if group.kind is GroupKind.DOT:
            return not group.anchor.attrs.get("lhs_batching_dimensions")
        return group.kind is GroupKind.ROWS or has_epilogue(group.anchor)

    def _admit_random(self, group: FusionGroup, op: Op) -> tuple[int | None, ValueClass] | None:
        (seed,) = op.operands
        if self.inside(seed, group) or op.result.type.size != group.size or group.kind is not GroupKind.ROWS:
            return None
        group.outer[seed] = ValueClass.SCALAR
        return group.cols, ValueClass.FULL

    def _admit_gather(self, group: FusionGroup, op: Op) -> tuple[int | None, ValueClass] | None:
        table, ids = op.operands
        cols = prod(op.attrs["slice_sizes"]) or 1
        if self.inside(table, group) or self.inside(ids, group) or group.kind is not GroupKind.ROWS:
            return None
        if op.result.type.size != group.size or group.cols not in (None, cols):
            return None
        group.outer[ids] = ValueClass.ROW
        return cols, ValueClass.FULL

    def _admit_rows(self, group: FusionGroup, op: Op) -> tuple[int | None, ValueClass] | None:
        """Admit an op of whole rows of its own, several of which may lie side by side in a row of the loop. Tiles of
        products begin at multiples of P columns."""
        (value,), size = op.operands, op.result.shape[-1]
        cols = group.cols or side_by_side(op.result.shape)
        fits = group.kind is GroupKind.ROWS or (group.kind is GroupKind.DOT and P % size == 0)
        if not fits or cols % size or value.type.size != group.size:
            return None
        outer = [v for v, cls in group.outer.items() if cls is ValueClass.FULL]
        if group.cols is None and not all(self.has_rows(v, group.size // cols, cols) for v in outer):
            return None
        if self.inside(value, group):
            seen = self.class_of(value, group, cols)
            return None if seen is None or seen[1] is not ValueClass.FULL else (cols, ValueClass.FULL)
        if group.kind is not GroupKind.ROWS or not self.has_rows(value, group.size // cols, cols):
            return None
        group.outer.setdefault(value, ValueClass.FULL)
        return cols, ValueClass.FULL

    # -- second thoughts, once all readers are known ------------------------------------------------------------


def side_by_side(shape: tuple[int, ...]) -> int:
    """Columns of a loop over rows of the last dimension: several of them, where rows are left for all partitions and
    no dimension is cut elsewhere than in equal parts."""
    size, rows, found = shape[-1], prod(shape[:-1]), 1
    for count in reversed(shape[:-1]):
        most = min(MOST_COLS // (found * size), rows // (found * LEAST_ROWS))
        part = max(n for n in range(1, count + 1) if count % n == 0 and n <= max(most, 1))
        found *= part
        if part < count:
            break
    return found * size


def fits_psum(sums: int, cols: int) -> bool:
    """Whether so many sums over rows of so many columns have room for the whole loop."""
    return sums * -(-cols // BANK_COLS) <= PSUM_BANKS


def _is_trailing(dims: tuple[int, ...], rank: int) -> bool:
    return sorted(dims) == list(range(rank - len(dims), rank))


def reduced_cols(op: Op) -> int:
    """Columns of the loop that computes a reduction: the reduced dims if they are last, the kept ones if first."""
    shape, dims = op.operands[0].shape, op.attrs["dimensions"]
    if _is_trailing(dims, len(shape)):
        return prod(shape[d] for d in dims)
    assert sorted(dims) == list(range(len(dims))), "canonical reductions are over leading or trailing dimensions"
    return prod(shape[len(dims) :])


def dot_cols(op: Op) -> int:
    """Columns of the loop that computes a product: what is left of its right operand."""
    rhs = op.operands[1]
    taken = {*op.attrs.get("rhs_batching_dimensions", ()), *op.attrs.get("rhs_contracting_dimensions", (0,))}
    return prod(count for axis, count in enumerate(rhs.shape) if axis not in taken)
