# SPDX-License-Identifier: Apache-2.0
"""Ops of one group that compute the same: what was written once more for each reader far away (`recompute`), and came
to lie in one loop all the same, is computed, and stored, once."""

from __future__ import annotations

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
    for group in part.groups:
        first: dict[Key, Op] = {}
        gone: dict[Value, Value] = {}
        for op in group.ops:
            if OPS[op.name].kind != ELEMENTWISE or op.result in kept:
                continue
            original = first.setdefault(_key(op, part, gone), op)
            if original is not op:
                gone[op.result] = original.result
        if gone:
            _replace(part, group, gone)


def _key(op: Op, part: Partition, gone: dict[Value, Value]) -> Key:
    """Equal for ops that compute the same of the same elements, in the same order."""
    looks = [part.strided(value) for value in op.operands]
    operands = [(id(gone.get(seen.base, seen.base)), seen.offset, seen.shape, seen.strides) for seen in looks]
    return op.name, op.result.type, attrs_key(op), *(sorted(operands) if OPS[op.name].commutative else operands)


def _replace(part: Partition, group: FusionGroup, gone: dict[Value, Value]) -> None:
    """Take values out of a group, and have others read in their places."""
    group.ops = [op for op in group.ops if op.results[0] not in gone]
    for op in part.graph.ops:
        if any(value in gone for value in op.operands):
            op.operands = tuple(gone.get(value, value) for value in op.operands)
    part.graph.ops = [op for op in part.graph.ops if not op.results or op.results[0] not in gone]
    for value, seen in part.views.items():
        if seen.base in gone:
            part.views[value] = ValueView(gone[seen.base], seen.offset, seen.shape, seen.strides)
    for value, other in gone.items():
        del group.classes[value], part.owner[value]
        part.views[value] = part.strided(other)
        for reader in part.groups:
            if value in reader.outer:
                reader.outer.setdefault(other, reader.outer.pop(value))
            if value in reader.loads:
                reader.loads = reader.loads - {value} | {other}
