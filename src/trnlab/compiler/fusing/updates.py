# SPDX-License-Identifier: Apache-2.0
"""Updates of the optimizer that belong to the matmul which computes their gradient.

A gradient that nobody but its own update reads need never be in memory: finished tiles of it go through the update
while the PE array is at the next ones. The transfers of the state, which an update is bound by, then hide what the
array does, or the other way round. Where gradients are clipped, all of them must be known before, and nothing is
joined.
"""

from __future__ import annotations

from trnlab.compiler.fusing.fusion import Partition
from trnlab.compiler.fusing.groups import FusionGroup, GroupKind, ValueClass
from trnlab.graph.ir import Value


def join_updates(part: Partition) -> None:
    """Move every update that a matmul can take along into that matmul's group."""
    outputs = {part.root(v) for v in part.graph.outputs}
    for update in [g for g in part.groups if g.ops and g.update and g.kind is GroupKind.ROWS]:
        owners = {part.owner[v] for v in _roots(part, update) if v in part.owner} - {update}
        dots = [g for g in owners if g.kind is GroupKind.DOT and g.size == update.size]
        if len(dots) == 1 and _can_join(part, update, dots[0], outputs):
            part.merge(update, dots[0])


def _roots(part: Partition, group: FusionGroup) -> dict[Value, None]:
    """What a group reads, views looked through."""
    return dict.fromkeys(part.root(v) for op in group.ops for v in op.operands)


def _can_join(part: Partition, update: FusionGroup, dot: FusionGroup, outputs: set[Value]) -> bool:
    """Whether the loop over a matmul's tiles can compute the update, and nobody else needs the gradient."""
    if update.cols is not None or any(c not in (ValueClass.FULL, ValueClass.SCALAR) for c in update.classes.values()):
        return False
    gradients = [v for v in _roots(part, update) if part.owner.get(v) is dot]
    for value in gradients:
        alone = value not in outputs and part.readers_of(value) == {update}
        whole = dot.classes[value] is ValueClass.FINAL  # a sum over all tiles, which no tile has
        if not alone or whole or not part.read_in_step(update, value):
            return False
    rows = update.size // (dot.cols or 1)
    for value, cls in update.outer.items():
        owner = part.owner.get(part.root(value))
        if owner is dot:
            continue
        if owner is not None and part.dependencies.runs_before(dot.id, owner.id):
            return False
        if cls is ValueClass.FULL and not part.has_rows(value, rows, dot.cols or 1):
            return False
    return True
