# SPDX-License-Identifier: Apache-2.0
"""Which groups must run before which: sets of groups as integers, the bit of a group's number set."""

from __future__ import annotations

from collections.abc import Iterator


class GroupDependencies:
    """What each group waits for, directly or not. Groups are numbered as they come."""

    def __init__(self) -> None:
        self._before: list[int] = []
        self._awaited = 0  # groups that any other waits for, and perhaps some that are merged

    def new(self) -> None:
        """One more group, which waits for nothing."""
        self._before.append(0)

    def of(self, group: int) -> int:
        """The set of groups that must have run before a group."""
        return self._before[group]

    def upto(self, group: int) -> int:
        """That set, and the group."""
        return self._before[group] | 1 << group

    def runs_before(self, first: int, then: int) -> bool:
        """Whether a group must have run before another."""
        return bool(self._before[then] >> first & 1)

    def require(self, before: int, group: int) -> None:
        """Have a group wait for a set of groups with all that those wait for, and so have those that wait for it."""
        if not before & ~self._before[group]:
            return
        self._awaited |= before
        self._before[group] |= before
        if self._awaited >> group & 1:
            for number, waits in enumerate(self._before):
                if waits >> group & 1:
                    self._before[number] = waits | before

    def merge(self, gone: int, into: int) -> None:
        """Have one group do what another did."""
        both = 1 << gone | 1 << into
        before = (self._before[gone] | self._before[into]) & ~both
        self._before[into] = before
        if not self._awaited & both:
            return
        self._awaited |= before | 1 << into
        for number, waits in enumerate(self._before):
            if number != into and waits & both:
                self._before[number] = waits & ~both | 1 << into | before

    def between(self, first: int, then: int) -> bool:
        """Whether any group waits for the first, and `then` for it."""
        if not self.runs_before(first, then):
            return False
        return any(self.runs_before(first, g) for g in _members(self._before[then] & ~self.upto(first)))


def _members(groups: int) -> Iterator[int]:
    """The numbers of a set, the last first: what is late is what was found late."""
    while groups:
        number = groups.bit_length() - 1
        yield number
        groups ^= 1 << number
