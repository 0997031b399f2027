# SPDX-License-Identifier: Apache-2.0
"""In which order samples are used: known for every place of every epoch without reading what comes before it.

Each epoch puts the blocks of a data set, which are what one request reads, into an order of its own, and cuts the
row of their samples into `lanes` of equal length (but for one sample). Each lane is walked in groups of `together`
blocks, whose samples are mixed. A lane belongs to one rank; which one does not change what is in it, so that another
number of ranks goes on with the same global batches.

The order comes from a hash of its own, for NumPy does not promise that its generators stay as they are (NEP 19).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
_STEP = 0x9E3779B97F4A7C15  # splitmix64: Steele, Lea, Flood, Fast Splittable Pseudorandom Number Generators, 2014
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class BlockSlice:
    """Samples `first` to `last` (exclusive) of a block."""

    block: int
    first: int
    last: int

    @property
    def count(self) -> int:
        """How many samples."""
        return self.last - self.first


@dataclass(frozen=True)
class ShuffleGroup:
    """Pieces of a lane that are mixed. before: samples of the lane in the groups before this one."""

    pieces: tuple[BlockSlice, ...]
    number: int
    before: int

    @property
    def count(self) -> int:
        """How many samples."""
        return sum(piece.count for piece in self.pieces)


@dataclass(frozen=True)
class Order:
    """See the module."""

    counts: tuple[int, ...]  # samples of each block
    lanes: int = 1
    together: int = 8
    seed: int | None = 0  # None for no shuffling: samples as they lie

    @cached_property
    def samples(self) -> int:
        """How many samples there are in all."""
        return sum(self.counts)

    @property
    def lane_samples(self) -> int:
        """How many samples of every lane are used in an epoch: as many as the shortest has."""
        return self.samples // self.lanes

    def groups(self, epoch: int, lane: int) -> list[ShuffleGroup]:
        """What a lane reads in an epoch, in this order."""
        pieces, found, before = self._pieces(epoch, lane), [], 0
        for number, first in enumerate(range(0, len(pieces), self.together)):
            found.append(ShuffleGroup(tuple(pieces[first : first + self.together]), number, before))
            before += found[-1].count
        return found

    def mixed(self, epoch: int, lane: int, group: ShuffleGroup) -> Ints:
        """The order of a group's samples, as places in its pieces one behind the other."""
        if self.seed is None:
            return np.arange(group.count)
        return _shuffled(group.count, self.seed, epoch, 1 + lane, group.number)

    def _pieces(self, epoch: int, lane: int) -> list[BlockSlice]:
        begin, end = (self.samples * each // self.lanes for each in (lane, lane + 1))
        blocks, ends = self._epoch(epoch)
        at = int(np.searchsorted(ends, begin, "right"))
        found = []
        while begin < end:
            block = int(blocks[at])
            start = int(ends[at]) - self.counts[block]
            stop = min(int(ends[at]), end)
            found.append(BlockSlice(block, begin - start, stop - start))
            begin, at = stop, at + 1
        return found

    def _epoch(self, epoch: int) -> tuple[Ints, Ints]:
        """The blocks of an epoch in order, and how many samples there are up to the end of each."""
        count = len(self.counts)
        blocks = np.arange(count) if self.seed is None else _shuffled(count, self.seed, epoch, 0, 0)
        return blocks, np.cumsum(np.array(self.counts, np.int64)[blocks])


def _shuffled(count: int, *key: int) -> Ints:
    """Places 0 to count in an order that the key decides: sorted by their hashes."""
    state = 0
    for part in key:
        state = int(_hash(np.array([(state + part + 1) & _MASK], np.uint64))[0])
    hashes = _hash(np.arange(count, dtype=np.uint64) + np.uint64(state))
    return np.argsort(hashes, kind="stable")


def _hash(values: NDArray[Any]) -> NDArray[Any]:
    """splitmix64 of each; it is one to one, so that equal hashes do not occur."""
    with np.errstate(over="ignore"):
        z = values * np.uint64(_STEP) + np.uint64(_STEP)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(z ^ (z >> np.uint64(31)))
