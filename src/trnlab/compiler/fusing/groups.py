# SPDX-License-Identifier: Apache-2.0
"""Groups: ops that become one routine, in one loop over rows and columns.

A group computes full values of `size` elements, row-major, `cols` of them to a row (a row lies on one partition).
What varies only along rows or only along columns is computed, or loaded, once.

    full    one element per row and column        row     one element per row ([P, 1] tiles)
    scalar  one element                           col     one element per column (the same in all partitions)
    final   complete only when all rows are done (sums over rows): readable by other groups alone
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from trnlab.graph.ir import Op, Value

# Ops that find out a number of each row, or two.
STATISTICS = frozenset(("trn.moments", "trn.softmax_statistics", "trn.sum_of_squares"))
RESIDENT_COL_BYTES = 16 * 1024  # what varies along columns only stays in SBUF up to this size


class GroupKind(enum.StrEnum):
    """What loop a group is."""

    ROWS = "rows"
    DOT = "dot"
    ATTENTION = "attention"
    CONVOLUTION = "convolution"
    POOL = "pool"
    GATHER = "gather"
    SCATTER = "scatter"
    GROUPED = "grouped"  # products of groups of rows
    MOVE = "move"
    CALL = "call"  # a routine that was made elsewhere
    LOOP = "loop"  # rounds of calls
    COLLECTIVE = "collective"  # done by the CC cores


class ValueClass(enum.StrEnum):
    """Along what a value varies within its group."""

    FULL = "full"
    ROW = "row"
    COL = "col"
    SCALAR = "scalar"
    FINAL = "final"


@dataclass(eq=False)
class FusionGroup:
    """Ops that become one routine."""

    id: int
    kind: GroupKind
    # size, cols: see the module; cols is None while nothing has fixed it
    size: int
    cols: int | None = None
    update: bool = False  # computes nothing but in-place updates of the state (the optimizer)
    ops: list[Op] = field(default_factory=list)
    classes: dict[Value, ValueClass] = field(default_factory=dict)
    loads: set[Value] = field(default_factory=set)  # full values read from outside
    outer: dict[Value, ValueClass] = field(default_factory=dict)  # classes of the values read from outside
    same: dict[Value, Value] = field(default_factory=dict)  # for full values from outside: the look they share
    # Results of converts that lose nothing: what they convert.
    exact: dict[Value, Value] = field(default_factory=dict)

    @property
    def anchor(self) -> Op:
        """The op that gives a group of another kind than ROWS its loop."""
        return self.ops[0]


def sums_over_rows(group: FusionGroup) -> int:
    """How many sums over rows a group keeps in PSUM."""
    return sum(
        op.name == "reduce" and op.attrs["kind"] == "add" and group.classes[op.result] is ValueClass.FINAL
        for op in group.ops
    )


def join(*classes: ValueClass) -> ValueClass:
    """Along what the result of an elementwise op varies."""
    found = {c for c in classes if c is not ValueClass.SCALAR}
    if not found:
        return ValueClass.SCALAR
    return found.pop() if len(found) == 1 else ValueClass.FULL


def resident(value: Value, group: FusionGroup) -> bool:
    """Whether a value that varies along columns only stays in SBUF while the group's loop runs."""
    return group.cols is not None and group.cols * value.dtype.itemsize <= RESIDENT_COL_BYTES
