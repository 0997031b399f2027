# SPDX-License-Identifier: Apache-2.0
"""Products of groups of rows are calls of the library's kernels, with the tables that `rewriting.grouped` made."""

from __future__ import annotations

from trnlab.compiler.lowerings.context import Lowering
from trnlab.compiler.lowerings.move import copy
from trnlab.kernels.grouped.items import addressable
from trnlab.kernels.grouped.products import RowTables, TermTables, grouped_dot, grouped_outer
from trnlab.kernels.view import full


def lower_grouped_dot(low: Lowering) -> None:
    """Record a group that multiplies rows by their groups' matrices."""
    op = low.group.anchor
    x, w, _, *tables = (low.view(v) for v in op.operands)
    if not addressable(w) and not addressable(w.permute(0, 2, 1)):
        dense = full(low.b.scratch("matrices", w.shape, w.dtype), w.shape)
        copy(low, w, dense)
        w = dense
    grouped_dot(low.b, x, w, low.view(op.result), RowTables(*tables))


def lower_grouped_outer(low: Lowering) -> None:
    """Record a group that multiplies the rows of each group with each other."""
    op = low.group.anchor
    x, y, _, *tables = (low.view(v) for v in op.operands)
    grouped_outer(low.b, x, y, low.view(op.result), TermTables(*tables))
