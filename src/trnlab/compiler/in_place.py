# SPDX-License-Identifier: Apache-2.0
"""Which outputs of a step may overwrite inputs: no group reads the old value after the new one is written."""

from __future__ import annotations

from trnlab.compiler.fusing.fusion import Partition
from trnlab.compiler.fusing.groups import FusionGroup, GroupKind
from trnlab.compiler.lowerings.rows import CHUNKS
from trnlab.graph.ir import Value


def _read(group: FusionGroup) -> set[Value]:
    """What a group reads that others have computed, or the user has given."""
    return {v for op in group.ops for v in op.operands} - set(group.classes)


def _reads_in_step(group: FusionGroup, new: Value, old: Value, part: Partition) -> bool:
    """Whether a group that reads `old` has read each element before it writes the new one there, and not again after.

    It has when the new value is computed from the old one, so that its store waits for the load, and when all of a
    row is done in one sweep. Rows that are put into a table leave the others where they lie.
    """
    if group.anchor.name == "trn.put_rows":
        return group.anchor.result is new and all(part.root(v) is not old for v in group.anchor.operands[1:])
    staged = (group.cols or 1) > CHUNKS[-1] and any(op.name == "reduce" for op in group.ops)
    if staged or not _depends_on(new, old, group, part):
        return False
    for op in group.ops:
        for value in op.operands:
            if part.root(value) is old:
                seen = part.strided(value)
                elementwise = group.kind is GroupKind.ROWS or op is not group.anchor
                if not (elementwise and seen.is_contiguous and op.name not in ("gather", "reduce")):
                    return False
    return True


def _depends_on(value: Value, old: Value, group: FusionGroup, part: Partition) -> bool:
    """Whether the ops of a group compute `value` from `old`."""
    reached = {old}
    for op in group.ops:
        if any(part.root(v) in reached for v in op.operands):
            reached.update(op.results)
    return value in reached
