# SPDX-License-Identifier: Apache-2.0
"""What the hardware's compiler makes of a kernel before it places tiles, as passes over what was recorded.

Each pass changes what a builder has recorded, whose tiles have no addresses yet. The routine that comes out is the
one that is executed and timed. They run in the order of `PASSES`; each has the name of the option of `trnlab.policy`
that switches it, where it is described, and finds further options in `Draft.policy`.

Where tiles do not fit as the kernel orders its instructions, `order_for_room` does what costs time to save memory
(`demand`), and, where that is not enough, `spill_tiles` (`spill`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from trnlab.isa.base import Memory
from trnlab.policy import Policy
from trnlab.program.builder import Builder
from trnlab.program.changes import PassChange, Spill
from trnlab.program.passes.accumulate import accumulate_in_psum
from trnlab.program.passes.coalesce import coalesce_transfers
from trnlab.program.passes.dead import delete_overwritten
from trnlab.program.passes.demand import order_by_demand
from trnlab.program.passes.draft import Draft
from trnlab.program.passes.forward import forward_copies
from trnlab.program.passes.loads import keep_loaded
from trnlab.program.passes.merge import merge_iterations
from trnlab.program.passes.rearranged import keep_rearranged
from trnlab.program.passes.reuse import reuse_results
from trnlab.program.passes.spill import spill
from trnlab.program.passes.versions import rename_overwritten


@dataclass(frozen=True)
class Pass:
    """A pass of the compiler over the draft of a kernel."""

    change: Callable[[Draft], None]  # what it does to a draft
    # in these memories tiles live longer, so it is left out where they do not fit
    takes_room: tuple[Memory, ...] = ()
    middle_end: bool = False  # `nki.compiler.skip_middle_end_transformations` leaves it out


PASSES: dict[str, Pass] = {
    "versions": Pass(rename_overwritten),
    "accumulate": Pass(accumulate_in_psum),
    "loads": Pass(keep_loaded, takes_room=(Memory.SBUF,)),
    # It takes room, too, but what it keeps is spilled where there is none (ADR 125).
    "rearranged": Pass(keep_rearranged, middle_end=True),
    "reuse": Pass(reuse_results, takes_room=(Memory.SBUF,), middle_end=True),
    # It changes the order, by which later passes must go; `forward` counts banks in that order.
    "merge": Pass(merge_iterations, takes_room=(Memory.SBUF, Memory.PSUM), middle_end=True),
    "forward": Pass(forward_copies, takes_room=(Memory.PSUM,), middle_end=True),
    "dead": Pass(delete_overwritten, middle_end=True),
    "coalesce": Pass(coalesce_transfers, takes_room=(Memory.SBUF,), middle_end=True),
}
MIDDLE_END = tuple(name for name, each in PASSES.items() if each.middle_end)


def run(b: Builder, movable: frozenset[int], policy: Policy, *, full: Collection[Memory] = ()) -> list[PassChange]:
    """Run the passes that `policy` has on; returns what each did.

    movable: tiles (by buffer id) whose address the kernel leaves to the compiler. full: memories in which the
    tiles did not fit; passes that take room there are left out.
    """
    draft = Draft(b, movable, policy)
    changes, before = [], draft.size()
    for name, each in PASSES.items():
        if getattr(policy, name) and not set(full) & set(each.takes_room):
            each.change(draft)
            after = draft.size()
            changes.append(PassChange(name, before, after))
            before = after
    draft.commit()
    return changes


def order_for_room(b: Builder, movable: frozenset[int], policy: Policy) -> PassChange | None:
    """Order instructions so that fewer tiles are alive at a time; None where the kernel leaves nothing to order."""
    draft = Draft(b, movable, policy)
    if not order_by_demand(draft):
        return None
    draft.commit()
    return PassChange("demand", draft.size(), draft.size())


def spill_tiles(
    b: Builder, movable: frozenset[int], policy: Policy, memory: Memory, limit: int, unit: int, ahead: int
) -> list[Spill]:
    """Let tiles leave `memory` of `limit` bytes, in multiples of `unit`; returns those that did.

    ahead: reloads that are under way at a time; where that is 0, each comes when its tile is needed.
    """
    draft = Draft(b, movable, policy)
    spills = spill(draft, memory, limit, unit, ahead)
    if spills:
        draft.commit()
    return spills
