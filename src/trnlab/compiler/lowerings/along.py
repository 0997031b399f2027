# SPDX-License-Identifier: Apache-2.0
"""Elements of rows by number, many of each, and sums by number within rows, are calls of the library's kernels."""

from __future__ import annotations

from trnlab.compiler.lowerings.context import Lowering
from trnlab.kernels.sum_along import sum_along
from trnlab.kernels.take_along import take_along


def lower_take_along(low: Lowering) -> None:
    """Record a group that takes elements of rows."""
    op = low.group.anchor
    take_along(low.b, *(low.view(v) for v in (*op.operands, op.result)))


def lower_sum_along(low: Lowering) -> None:
    """Record a group that sums elements of rows."""
    op = low.group.anchor
    sum_along(low.b, *(low.view(v) for v in (*op.operands, op.result)))
