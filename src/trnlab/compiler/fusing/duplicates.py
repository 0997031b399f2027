# SPDX-License-Identifier: Apache-2.0
"""Ops of one group that compute the same: what was written once more for each reader far away (`recompute`), and came
to lie in one loop all the same, is computed, and stored, once."""

from __future__ import annotations

from collections.abc import Mapping

from trnlab.compiler.analysis.strided import ValueView
from trnlab.compiler.fusing.fusion import Partition
from trnlab.compiler.fusing.groups import FusionGroup
from trnlab.graph.canonical import attrs_key
from trnlab.graph.ir import Op, Value
from trnlab.graph.ops import ELEMENTWISE, OPS

Key = tuple[object, ...]


def merge_duplicates(part: Partition) -> None:
    """Later ops of a group give way to the first of their kind, for readers in all groups."""
    kept = {*part.graph.outputs, *part.copies}
    gone: dict[Value, Value] = {}
    for group in part.groups:
        first: dict[Key, Op] = {}
        for op in group.ops:
            if OPS[op.name].kind != ELEMENTWISE or op.result in kept:
                continue
            original = first.setdefault(_key(op, part, gone), op)
            if original is not op:
                gone[op.result] = original.result
    if gone:
        _replace(part, gone)


def _key(op: Op, part: Partition, gone: Mapping[Value, Value]) -> Key:
    """Equal for ops that compute the same of the same elements, in the same order."""
    looks = [part.strided(value) for value in op.operands]
    operands = [(id(gone.get(seen.base, seen.base)), seen.offset, seen.shape, seen.strides) for seen in looks]
    return op.name, op.result.type, attrs_key(op), *(sorted(operands) if OPS[op.name].commutative else operands)


def _replace(part: Partition, gone: Mapping[Value, Value]) -> None:
    """Take values out of their groups, and have others read in their places."""
    for op in part.graph.ops:
        if any(value in gone for value in op.operands):
            op.operands = tuple(gone.get(value, value) for value in op.operands)
    part.graph.ops = [op for op in part.graph.ops if not op.results or op.results[0] not in gone]
    for value, seen in part.views.items():
        if seen.base in gone:
            part.views[value] = ValueView(gone[seen.base], seen.offset, seen.shape, seen.strides)
    for value, other in gone.items():
        del part.owner[value]
        part.views[value] = part.strided(other)
    for group in part.groups:
        _replace_in(group, gone)


def _replace_in(group: FusionGroup, gone: Mapping[Value, Value]) -> None:
    group.ops = [op for op in group.ops if op.results[0] not in gone]
    group.classes = {value: cls for value, cls in group.classes.items() if value not in gone}
    for value in [value for value in group.outer if value in gone]:
        group.outer.setdefault(gone[value], group.outer.pop(value))
    group.loads = {gone.get(value, value) for value in group.loads}
