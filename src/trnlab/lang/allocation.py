# SPDX-License-Identifier: Apache-2.0
"""From what a kernel recorded to a routine whose tiles have addresses: the passes, placement, and what makes room."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from trnlab.isa.base import Memory
from trnlab.lang.placement import Demand, DoesNotFitError, place
from trnlab.policy import Policy
from trnlab.program import passes
from trnlab.program.builder import Builder
from trnlab.program.changes import PassChange, Spill, together
from trnlab.program.passes.spill import AHEAD
from trnlab.program.routine import Routine

_ROUNDS = 8  # of spilling and placing


@dataclass(eq=False)
class FullError(Exception):
    """A memory of `limit` bytes per partition, and what found no room in it. off: options that could have helped."""

    memory: Memory
    error: DoesNotFitError
    limit: int
    off: tuple[str, ...] = ()


def finished(b: Builder, given: Mapping[int, int], policy: Policy) -> Routine:
    """The routine that the compiler makes of a recording. given: addresses that the kernel chose, by buffer id.

    Raises FullError where the tiles do not fit, whatever the policy allows.
    """
    fitting = _Fitting(b, given, policy)
    fitting.run()
    return replace(b.build(), changes=tuple(fitting.changes), spills=together(fitting.spills))


class _Fitting:
    """What is done to a recording until its tiles fit. changes, spills: what it was."""

    def __init__(self, b: Builder, given: Mapping[int, int], policy: Policy) -> None:
        self.b, self.given, self.policy = b, given, policy
        self.changes: list[PassChange] = []
        self.spills: list[Spill] = []

    def run(self) -> None:
        """Passes, placement; where it fails, what saves room. Raises FullError."""
        recorded, too_small = self.b.state(), set[Memory]()
        self.changes = passes.run(self.b, self._movable, self.policy)
        full = self._place()
        while full is not None and full.memory not in too_small:
            too_small.add(full.memory)
            self.b.restore(recorded)
            self.changes = passes.run(self.b, self._movable, self.policy, full=too_small)
            full = self._place()
        if full is not None and full.error.demand.size <= full.limit:
            full = self._make_room(full)
        if full is not None:
            off = tuple(name for name in ("demand", "spill") if not getattr(self.policy, name))
            raise replace(full, off=() if self.given else off)

    def _make_room(self, full: FullError) -> FullError | None:
        """Spill in the order of the kernel; but what does not fit into PSUM is ordered by demand where nothing has to
        go to HBM then, and so is what nobody could spill.

        Reloads that run ahead take room, from which others leave, and come back ahead in turn; where that has no end,
        they come when they are needed.
        """
        if not self.policy.spill or self.given:
            return self._by_demand(full)
        as_written, passed = self.b.state(), self.changes
        attempts = [self._spill, self._by_demand, self._spill_with_late_reloads]
        for attempt in [self._only_by_demand, *attempts] if full.memory is Memory.PSUM else attempts:
            self.b.restore(as_written)
            self.spills, self.changes = [], passed[:]
            left = attempt(full)
            if left is None:
                break
        return left

    def _only_by_demand(self, full: FullError) -> FullError | None:
        """Order by demand, and take it as failed where something has to go to HBM nevertheless."""
        left = self._by_demand(full)
        return full if any(s.target == "hbm" for s in self.spills) else left

    def _by_demand(self, full: FullError) -> FullError | None:
        """Order by demand, and spill where that is not enough."""
        change = passes.order_for_room(self.b, self._movable, self.policy) if self.policy.demand else None
        if change is not None:
            self.changes.append(change)
        left = full if change is None else self._place()
        return self._spill(left) if left is not None and self.policy.spill and not self.given else left

    def _spill_with_late_reloads(self, full: FullError) -> FullError | None:
        return self._spill(full, ahead=0)

    def _spill(self, full: FullError, ahead: int = AHEAD) -> FullError | None:
        """Spill and place again; where what is alive fits and the gaps between do not, spill as if for less room."""
        gaps = 0
        for _ in range(_ROUNDS):
            unit = 64 if full.memory is Memory.SBUF else self.b.chip.psum.bank_bytes_per_partition
            room = full.limit - gaps
            left = passes.spill_tiles(self.b, self._movable, self.policy, full.memory, room, unit, ahead)
            self.spills += left
            if not left:
                gaps += full.error.demand.size
                continue
            again = self._place()
            if again is None:
                return None
            full = again
        return full

    @property
    def _movable(self) -> frozenset[int]:
        """The tiles whose address is the compiler's choice."""
        return frozenset(x.id for x in self.b.buffers if x.memory is not Memory.HBM and x.id not in self.given)

    def _place(self) -> FullError | None:
        """Give all tiles addresses; else what found no room."""
        uses, _ = self.b.uses()
        psum = self.b.chip.psum
        limits = {
            Memory.SBUF: (self.b.sbuf_limit, 64),
            Memory.PSUM: (psum.num_banks * psum.bank_bytes_per_partition, psum.bank_bytes_per_partition),
        }
        for memory, (limit, align) in limits.items():
            used = [x for x in self.b.buffers if x.memory is memory and x.id in uses]
            try:
                demands = [Demand(x.id, x.name, x.nbytes, *uses[x.id], self.given.get(x.id)) for x in used]
                self.b.settle(place(demands, limit, align))
            except DoesNotFitError as error:
                return FullError(memory, error, limit)
        return None
