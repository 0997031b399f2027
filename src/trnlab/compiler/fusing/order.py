# SPDX-License-Identifier: Apache-2.0
"""Where groups stand in the order of a program, beyond what they wait for."""

from __future__ import annotations

from collections.abc import Mapping

from trnlab.compiler.fusing.groups import FusionGroup, GroupKind


def bring_forward(last: dict[int, float], direct: Mapping[int, set[int]], readers: Mapping[int, set[int]]) -> None:
    """Give each group the place of the first that waits for it, where that comes before its own.

    A loop that merged with later ones would else hold up its readers, and what nothing holds up would all run, and
    be kept, meanwhile.
    """
    waiting = {g: len(r) for g, r in readers.items()}
    ready = [g for g, count in waiting.items() if count == 0]
    while ready:
        group = ready.pop()
        for before in direct[group]:
            last[before] = min(last[before], last[group])
            waiting[before] -= 1
            if waiting[before] == 0:
                ready.append(before)


def gathered_when_read(ordered: list[FusionGroup], direct: Mapping[int, set[int]]) -> list[FusionGroup]:
    """The order with each gather in front of what waits for it first: gathers of parameters wait for nothing, and all
    of them would hold their results from the beginning. direct: what each group waits for, by number."""
    held = {g.id: g for g in ordered if g.kind is GroupKind.COLLECTIVE and g.anchor.name == "all_gather"}
    found: list[FusionGroup] = []

    def put(group: FusionGroup) -> None:
        for number in sorted(direct[group.id] & held.keys()):
            if number in held:
                put(held.pop(number))
        found.append(group)

    for group in ordered:
        if group.id not in held and (group.kind is not GroupKind.COLLECTIVE or group.anchor.name != "all_gather"):
            put(group)
    while held:  # nobody reads these but the user
        put(held.pop(next(iter(held))))
    return found
