# SPDX-License-Identifier: Apache-2.0
"""What the hardware's compiler makes of a kernel before it places tiles, as passes over what was recorded.

Each pass changes what a builder has recorded, whose tiles have no addresses yet. The routine that comes out is the
one that is executed and timed. They run in the order of `PASSES`.

    versions      a tile that is overwritten as a whole is a new tile from there on
    accumulate    products that are only added to a sum in PSUM are accumulated there
    reuse         what was computed from the same operands before is not computed again

Where tiles do not fit as the kernel orders its instructions, `make_room` runs what costs time to save memory:

    demand        what makes a tile moves to where it is first used

and, where that is not enough, `spill_tiles`:

    spill         tiles leave the memory between two of their uses
"""

from __future__ import annotations

from collections.abc import Callable

from trnlab.isa.base import Memory
from trnlab.program.builder import Builder
from trnlab.program.passes.accumulate import accumulate_in_psum
from trnlab.program.passes.demand import order_by_demand
from trnlab.program.passes.draft import Draft
from trnlab.program.passes.reuse import reuse_results
from trnlab.program.passes.spill import spill
from trnlab.program.passes.versions import rename_overwritten

PASSES: dict[str, Callable[[Draft], None]] = {
    "versions": rename_overwritten,
    "accumulate": accumulate_in_psum,
    "reuse": reuse_results,
}
TAKES_ROOM = frozenset({"reuse"})  # results live longer


def run(b: Builder, movable: frozenset[int], *, save_room: bool = False) -> None:
    """Run all passes. movable: tiles (by buffer id) whose address the kernel leaves to the compiler. save_room: leave
    out those that keep tiles for longer.
    """
    draft = Draft(b, movable)
    for name, change in PASSES.items():
        if not (save_room and name in TAKES_ROOM):
            change(draft)
    draft.commit()


def make_room(b: Builder, movable: frozenset[int]) -> bool:
    """Order instructions so that fewer tiles are alive at a time; False where the kernel leaves nothing to order."""
    draft = Draft(b, movable)
    moved = order_by_demand(draft)
    draft.commit()
    return moved


def spill_tiles(b: Builder, movable: frozenset[int], memory: Memory, limit: int, unit: int) -> bool:
    """Let tiles leave `memory` of `limit` bytes, in multiples of `unit`; False where none can."""
    draft = spill(Draft(b, movable), memory, limit, unit)
    if draft is None:
        return False
    draft.commit()
    return True
