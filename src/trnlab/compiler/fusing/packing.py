# SPDX-License-Identifier: Apache-2.0
"""Which groups are one call: small loops that wait for nothing, and updates of the optimizer; see also
`compiler.siblings` and `compiler.interleaving`."""

from __future__ import annotations

from collections.abc import Sequence

from trnlab.compiler.fusing.fusion import Partition
from trnlab.compiler.fusing.groups import FusionGroup, GroupKind

Unit = list[FusionGroup]  # groups that share one routine, run as one call


class InterleavedUnit(list[FusionGroup]):
    """A unit of several, whose groups it has in their order."""

    def __init__(self, parts: Sequence[Unit]) -> None:
        super().__init__(group for part in parts for group in part)
        self.parts = tuple(parts)


def pack(groups: list[FusionGroup], part: Partition) -> list[Unit]:
    """Make one unit of all flat loops at the start that wait for nothing (casts of parameters), and one of all
    updates of the optimizer that do not wait for each other. Many small tensors then cost one start, and overlap."""
    flat = [g for g in groups if g.cols is None and g.kind is GroupKind.ROWS]
    first = [g for g in flat if not g.update and not part.dependencies.of(g.id)]
    updates = [g for g in flat if g.update]
    last = [
        g
        for g in updates
        if not any(part.dependencies.runs_before(other.id, g.id) for other in updates if other is not g)
    ]
    together = {*first, *(last if len(last) > 1 else ())}
    units: list[Unit] = [first] if first else []
    held: list[FusionGroup] = []
    left = len(last) if len(last) > 1 else 0
    for group in groups:
        if group in together:
            left -= group.update
            if group.update and left == 0:
                units.append(last)
                units.extend([g] for g in held)
        elif left and any(part.dependencies.runs_before(g.id, group.id) for g in last):
            held.append(group)
        else:
            units.append([group])
    return units


def are_siblings(unit: Unit) -> bool:
    """Whether a unit is several products that are one call."""
    return len(unit) > 1 and unit[0].kind is GroupKind.DOT


def label(unit: Unit) -> str:
    """What a call is shown as: its kind and the operators of its first group, or of all that are interleaved."""
    groups = unit if isinstance(unit, InterleavedUnit) else unit[:1]
    names = list(dict.fromkeys(op.origin or op.name for group in groups for op in group.ops))
    text = f"{unit[0].kind}: " + " ".join(names[:6]) + (" ..." if len(names) > 6 else "")
    return f"{text} (x{len(unit)})" if len(unit) > 1 else text
