# SPDX-License-Identifier: Apache-2.0
"""Classes of values: how the loop of a group over rows and columns meets each value that its ops read."""

from __future__ import annotations

from math import prod

from trnlab.compiler.analysis.strided import ValueView, identity, is_filled, split_rows
from trnlab.compiler.fusing.groups import FusionGroup, GroupKind, ValueClass
from trnlab.graph.ir import Op, Value
from trnlab.numerics.dtypes import bfloat16, float32


class Classes:
    """Which group computes each value (`owner`), what values look at (`looks`), and their classes in loops."""

    def __init__(self, looks: dict[Value, ValueView]) -> None:
        self.views = looks
        self.owner: dict[Value, FusionGroup] = {}
        self._identities: dict[Value, ValueView] = {}  # of values in memory, which every tile of a loop asks for

    def root(self, value: Value) -> Value:
        """The value in memory (or in a group) that `value` is a look at."""
        return self.views[value].base if value in self.views else value

    def inside(self, value: Value, group: FusionGroup) -> bool:
        """Whether `value`, or what it looks at, is computed by the group; what others compute, too, it may compute
        again."""
        root = self.root(value)
        return self.owner.get(root) is group or root in group.classes

    def splat(self, value: Value) -> float | None:
        """The number that a value is everywhere, if it is a constant one."""
        root = self.root(value)
        return float(root.op.attrs["value"]) if root.op is not None and is_filled(root) else None

    def is_scalar(self, value: Value) -> bool:
        """One element repeated: a splat constant or a single number."""
        if self.splat(value) is not None or self.root(value).type.size == 1:
            return True
        seen = self.strided(value)
        return all(stride == 0 or count == 1 for count, stride in zip(seen.shape, seen.strides))

    def strided(self, value: Value) -> ValueView:
        """How a value lies in memory. An iota lies in 0, 1, 2, ...: strides along its dimension only."""
        if value in self.views:
            return self.views[value]
        seen = self._identities.get(value)
        if seen is None:
            seen = self._identities[value] = identity(value)
        return seen

    def class_of(self, value: Value, group: FusionGroup, cols: int | None) -> tuple[int | None, ValueClass] | None:
        """Class of an inside value, through views; None when the group's loop cannot follow the view."""
        if value in group.classes:
            return cols, group.classes[value]
        op = value.op
        assert op is not None
        if group.kind is GroupKind.CONVOLUTION:  # of which the first two dimensions are exchanged in memory
            return (cols, ValueClass.FULL) if self.strided(value).is_contiguous else None
        if op.name not in ("reshape", "broadcast_in_dim"):
            return None
        seen = self.class_of(op.operands[0], group, cols)
        if seen is None or op.name == "reshape":
            return seen
        return _broadcast_class(op, seen[0], seen[1], group.size)

    def outer_class(self, value: Value, cols: int | None) -> tuple[int | None, ValueClass]:
        """Class of a value from outside that has the full shape; fixes the columns when only that makes it cheap."""
        if self.is_scalar(value):
            return cols, ValueClass.SCALAR
        seen = self.strided(value)
        dims = [(count, stride) for count, stride in zip(seen.shape, seen.strides) if count > 1]
        last, lead_zero = dims[-1][0], not any(stride for _, stride in dims[:-1])
        before, width = _suffix(dims, zero=True)
        if width > 1 and cols in (None, width) and all(stride for _, stride in before):
            return width, ValueClass.ROW
        if lead_zero and len(dims) > 1 and dims[-1][1] and cols in (None, last):
            return last, ValueClass.COL
        before, width = _suffix(dims, zero=False)
        if before and 1 < width == cols and not lead_zero and not any(stride for _, stride in before):
            return cols, ValueClass.COL
        return cols, ValueClass.FULL

    def has_rows(self, value: Value, rows: int, cols: int) -> bool:
        """Whether a loop over so many rows and columns can follow how a value lies in memory."""
        return split_rows(self.strided(value), rows, cols) is not None


def _broadcast_class(op: Op, cols: int | None, cls: ValueClass, size: int) -> tuple[int | None, ValueClass] | None:
    if cls is ValueClass.SCALAR:
        return cols, cls
    operand, shape = op.operands[0], op.result.shape
    kept = [d for axis, d in enumerate(op.attrs["broadcast_dimensions"]) if operand.shape[axis] > 1]
    if operand.type.size == op.result.type.size:
        return cols, cls
    if op.result.type.size != size or cls not in (ValueClass.ROW, ValueClass.COL):
        return None
    new = [d for d in range(len(shape)) if d not in kept and shape[d] > 1]
    if cls is ValueClass.ROW and (not kept or min(new) > max(kept)):
        width = prod(shape[d] for d in new)
        return (width, cls) if cols in (None, width) else None
    if cls is ValueClass.COL and (not kept or max(new) < min(kept)):
        return cols, cls
    return None


def _suffix(dims: list[tuple[int, int]], *, zero: bool) -> tuple[list[tuple[int, int]], int]:
    """How many elements the last dimensions have whose strides are all zero, or all not; and the dimensions before.

    One, with all dimensions before it, where the last is not of that kind: then it says nothing of any columns.
    """
    first = len(dims)
    while first and (dims[first - 1][1] == 0) is zero:
        first -= 1
    return dims[:first], prod(count for count, _ in dims[first:])


def widens(op: Op) -> bool:
    """Whether an op writes the same numbers in more bytes."""
    return op.name == "convert" and (op.operands[0].dtype, op.result.dtype) == (bfloat16, float32)


def narrows(op: Op) -> bool:
    """Whether an op writes what it reads in fewer bytes."""
    return op.name == "convert" and op.result.dtype.itemsize < op.operands[0].dtype.itemsize
