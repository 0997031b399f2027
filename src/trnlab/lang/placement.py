# SPDX-License-Identifier: Apache-2.0
"""Where tiles lie: addresses in SBUF and PSUM, decided when the whole kernel is recorded.

A tile occupies its bytes from the first instruction that names it to the last. Tiles go round the memory as in a
ring, each behind the one before, so that what is reused has been free for longest, and neighbours in time do not wait
for each other's bytes; where that fragments the memory, they are packed: small ones go round a sixteenth of it
then, or, where even that fragments it, none do.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

ALIGN = 64
_NEAR = 16  # part of the memory that packed tiles go round


@dataclass(slots=True, eq=False)
class Demand:
    """`size` bytes per partition during instructions first..last; `address` when the kernel says where."""

    id: int
    name: str
    size: int
    first: int
    last: int
    address: int | None = None


class DoesNotFitError(Exception):
    """The tile that found no room, and the tiles alive at that moment."""

    def __init__(self, demand: Demand, alive: list[Demand]) -> None:
        super().__init__(demand.name)
        self.demand, self.alive = demand, alive


def place(demands: Sequence[Demand], limit: int, align: int = ALIGN) -> dict[int, int]:
    """An address for each demand. Raises DoesNotFitError when even packed tiles do not fit."""
    for reach in (limit, limit // _NEAR):
        try:
            return _Placer(limit, align, reach).run(demands)
        except DoesNotFitError:
            pass
    return _Placer(limit, align, 0).run(demands)


class _Placer:
    """One sweep over time. Live tiles are kept sorted by address."""

    def __init__(self, limit: int, align: int, reach: int) -> None:
        self.limit, self.align, self.reach = limit, align, reach
        self.live: list[tuple[int, int, Demand]] = []  # address, end
        self.ending: list[tuple[int, int, int, Demand]] = []  # last, address, end
        self.after = 0  # where the last tile ends

    def run(self, demands: Sequence[Demand]) -> dict[int, int]:
        fixed = [d for d in demands if d.address is not None]
        out = {d.id: d.address for d in fixed if d.address is not None}
        for demand in sorted(demands, key=lambda d: (d.first, d.id)):
            self._retire(demand.first)
            if demand.address is not None:
                continue
            size = -(-demand.size // self.align) * self.align
            blocked = [
                (d.address, d.address + d.size, d)
                for d in fixed
                if d.address is not None and d.first <= demand.last and demand.first <= d.last
            ]
            address = self._find(size, blocked)
            if address is None:
                raise DoesNotFitError(demand, [d for _, _, d in [*self.live, *blocked]])
            out[demand.id] = address
            insort(self.live, (address, address + size, demand), key=lambda item: item[0])
            insort(self.ending, (demand.last, address, address + size, demand), key=lambda item: item[0])
            self.after = address + size
        return out

    def _retire(self, now: int) -> None:
        while self.ending and self.ending[0][0] < now:
            _, address, _, demand = self.ending.pop(0)
            at = bisect_left(self.live, address, key=lambda item: item[0])
            assert self.live[at][2] is demand
            del self.live[at]

    def _find(self, size: int, blocked: list[tuple[int, int, Demand]]) -> int | None:
        """The lowest gap behind the last tile, else the lowest of all. Not behind it where that is out of reach."""
        taken = sorted([*self.live, *blocked], key=lambda item: item[0]) if blocked else self.live
        behind = self._gap(size, taken, self.after, bool(blocked)) if self.reach else None
        if behind is not None and self.reach == self.limit:
            return behind
        lowest = self._gap(size, taken, 0, bool(blocked))
        near = behind is not None and lowest is not None and behind + size <= lowest + self.reach
        return behind if near else lowest

    def _gap(self, size: int, taken: list[tuple[int, int, Demand]], address: int, overlaps: bool) -> int | None:
        """The lowest address from `address` on with `size` bytes that nobody has taken. Live tiles are disjoint, so
        that only the last one below matters; tiles with given addresses may overlap."""
        first = 0 if overlaps else max(bisect_left(taken, address, key=lambda item: item[0]) - 1, 0)
        for start, end, _ in taken[first:]:
            if end <= address:
                continue
            if start - address >= size:
                return address
            address = -(-end // self.align) * self.align
        return address if address + size <= self.limit else None
