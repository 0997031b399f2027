# SPDX-License-Identifier: Apache-2.0
"""What a compiler has in one loop that fuses operators with their neighbours alone: see `stacks.Stack.fusion`.

A product takes along what is elementwise behind it and reads nothing as large as itself (a bias, an activation). A
loop over rows ends with the sums of its rows: what reads them, as the rest of a norm or of a softmax, is a further
pass over memory. Updates of the optimizer, and sums that gradients are added to, are made as elsewhere.
"""

from __future__ import annotations

from trnlab.compiler.fusing.classes import Classes
from trnlab.compiler.fusing.groups import STATISTICS, FusionGroup, GroupKind, ValueClass
from trnlab.graph.ir import Op, Value
from trnlab.graph.ops import OPS, REDUCE


def beside_operators(classes: Classes, group: FusionGroup, op: Op) -> bool:
    """Whether such a compiler computes an op in a group's loop, where the loop could."""
    if not group.ops or group.update:
        return True
    if group.kind is GroupKind.DOT:
        outside = (v for v in op.operands if not classes.inside(v, group))
        return not any(_is_full(classes, group, value) for value in outside)
    return group.kind is not GroupKind.ROWS or _is_sum(op) or not _reads_sums(classes, group, op)


def _is_full(classes: Classes, group: FusionGroup, value: Value) -> bool:
    seen = group.outer.get(value) or classes.outer_class(value, group.cols)[1]
    return seen is ValueClass.FULL


def _is_sum(op: Op) -> bool:
    return OPS[op.name].kind == REDUCE or op.name in STATISTICS


def _reads_sums(classes: Classes, group: FusionGroup, op: Op) -> bool:
    """Whether an op needs a sum of the group's, itself or by what it reads there."""
    waiting, seen = list(op.operands), set[Value]()
    while waiting:
        value = classes.root(waiting.pop())
        maker = value.op
        if value in seen or maker is None or maker not in group.ops:
            continue
        if _is_sum(maker):
            return True
        seen.add(value)
        waiting += maker.operands
    return False
