# SPDX-License-Identifier: Apache-2.0
"""Faults drawn from a seed: packages in turn, so that none is left out, then a kind, then a place."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from tools.faults.kinds import Fault, faults


def draw(sources: Path, count: int, seed: int, reached: Iterable[tuple[str, int]] | None = None) -> list[Fault]:
    """`count` faults in the package below `sources`; fewer where there are no more.

    `reached`: files and lines that tests run. A fault on any other line can be noticed by nobody and is not drawn.
    """
    lines = None if reached is None else set(reached)
    groups: dict[str, dict[str, list[Fault]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted(sources.rglob("*.py")):
        file = path.relative_to(sources).as_posix()
        for fault in faults(file, path.read_text()):
            if lines is None or (file, fault.line) in lines:
                groups[package(file)][fault.kind].append(fault)
    generator = random.Random(seed)
    names = sorted(groups)
    generator.shuffle(names)
    drawn: list[Fault] = []
    while len(drawn) < count and any(found for kinds in groups.values() for found in kinds.values()):
        for name in names:
            kinds = {kind: found for kind, found in groups[name].items() if found}
            if kinds and len(drawn) < count:
                found = kinds[generator.choice(sorted(kinds))]
                drawn.append(found.pop(generator.randrange(len(found))))
    return drawn


def package(file: str) -> str:
    """What a file is drawn for: its package, two levels deep where that has packages itself."""
    parts = file.split("/")[:-1]
    deep = 3 if parts[1:2] in (["frontends"], ["sim"]) else 2
    return "/".join(parts[:deep])
