# SPDX-License-Identifier: Apache-2.0
"""What the hardware's compiler makes of a kernel before it places tiles, as passes over what was recorded.

Each pass takes a builder whose tiles have no addresses yet and changes what is recorded, never what it computes: the
routine that comes out is the one that is executed and timed. They run in the order of `PASSES`.

    versions    a tile that is overwritten as a whole is a new tile from there on
"""

from __future__ import annotations

from collections.abc import Callable

from trnlab.program.builder import Builder
from trnlab.program.passes.versions import rename_overwritten

Pass = Callable[[Builder, frozenset[int]], None]
PASSES: dict[str, Pass] = {"versions": rename_overwritten}


def run(b: Builder, movable: frozenset[int]) -> None:
    """Run all passes. movable: tiles (by buffer id) whose address the kernel leaves to the compiler."""
    for change in PASSES.values():
        change(b, movable)
