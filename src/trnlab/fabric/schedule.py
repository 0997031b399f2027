# SPDX-License-Identifier: Apache-2.0
"""What a collective does, as a schedule of transfers in steps: one description with two readings.

A rank's buffer is cut into numbered slots of equal size. A `Phase` is a step, or a step that is repeated with other
slots: transfers between positions of a group, each of some units, where a unit stands for slots. `values` moves and
adds arrays in exactly this order; `timing` runs the same transfers as flows over links. Phases are written once for
the positions of one group (`Algorithm`) and laid over many groups by `Phase.over`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def ints(values: object) -> Ints:
    """An array of integers."""
    return np.asarray(values, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Moves:
    """The transfers of one repetition, one row per unit. All are read before any is written, then written in order.

    `add` says whether what arrives is reduced onto what lies there, or replaces it.
    """

    src: Ints  # positions
    dst: Ints
    src_unit: Ints
    dst_unit: Ints
    add: npt.NDArray[np.bool_]


def moves(src: object, dst: object, unit: object, add: bool | object = False, dst_unit: object = None) -> Moves:
    """Transfers that keep their unit, unless `dst_unit` says another; scalars stand for all rows."""
    unit = ints(unit)
    source, target, to, adds = np.broadcast_arrays(
        ints(src), ints(dst), unit if dst_unit is None else ints(dst_unit), np.asarray(add, dtype=bool)
    )
    return Moves(source, target, np.broadcast_to(unit, source.shape), to, adds)


@dataclass(frozen=True, eq=False)
class Phase:
    """One step, or `times` steps that differ only in the units that they carry."""

    name: str
    # src, dst, units: who sends how many units to whom in each repetition, in positions of the group
    src: Ints
    dst: Ints
    units: Ints
    # reads, writes: how often each byte touches the HBM of the sender's and of the receiver's chip
    reads: Ints
    writes: Ints
    times: int
    moves: Callable[[int], Moves]
    members: Ints  # the rank of each position, a row per group
    # makes the slots that each unit stands for, per group [G, units, slots_per_unit], when values ask for them:
    # timing needs `slots_per_unit` only
    slots: Callable[[], Ints]
    slots_per_unit: int = 1
    level: str = ""  # which part of a hierarchy it belongs to
    adds: int = 0  # steps at the receivers once all is there: 1 where they add up what has come
    # each position sends as much to every one, itself included; `src` to `writes` are [n, n] then, and take no memory
    complete: bool = False

    def over(self, members: Ints, slots: Callable[[], Ints], per_unit: int = 1, level: str = "") -> Phase:
        """This phase of one group laid over the groups `members` [G, n], whose unit u is `slots()[g, u]` [G, U, k].

        A phase that has groups already keeps them inside of each of the new ones.
        """
        ranks = members[:, self.members]  # [G, g, n]

        def table() -> Ints:
            inner = slots()[:, self.slots()]  # [G, g, U, k', k]
            return inner.reshape(inner.shape[0] * inner.shape[1], inner.shape[2], -1)

        return replace(
            self,
            members=ranks.reshape(-1, ranks.shape[-1]),
            slots=table,
            slots_per_unit=self.slots_per_unit * per_unit,
            level=level or self.level,
        )


def phase(
    name: str,
    first: Moves,
    *,
    units: int,
    positions: int,
    times: int = 1,
    again: Callable[[int], Moves] | None = None,
    reads: object = None,
    writes: object = 1,
) -> Phase:
    """A phase of one group of `positions`, with `units` units per rank, from its first repetition.

    A byte that is added is read twice, once where it comes from and once where it is added; unless `reads` says
    otherwise, per row of `first`. Rows with equal ends are one transfer.
    """
    touched = np.where(first.add, 2, 1) if reads is None else np.broadcast_to(ints(reads), first.src.shape)
    written = np.broadcast_to(ints(writes), first.src.shape)
    keys = np.stack([first.src, first.dst, touched, written], axis=1)
    pairs, counts = np.unique(keys, axis=0, return_counts=True) if len(keys) else (keys, ints([]))
    src, dst, pairs_reads, pairs_writes = pairs.T
    return patterned(
        name,
        again or (lambda _: first),
        src,
        dst,
        ints(counts),
        pairs_reads,
        pairs_writes,
        units=units,
        positions=positions,
        times=times,
    )


def patterned(
    name: str,
    moves: Callable[[int], Moves],
    src: Ints,
    dst: Ints,
    counts: Ints,
    reads: Ints,
    writes: Ints,
    *,
    units: int,
    positions: int,
    times: int = 1,
) -> Phase:
    """A phase of one group whose pattern is known: `counts` units from `src` to `dst` in each repetition."""
    return Phase(
        name=name,
        src=src,
        dst=dst,
        units=counts,
        reads=reads,
        writes=writes,
        times=times,
        moves=moves,
        members=np.arange(positions)[None],
        slots=lambda: np.arange(units)[None, :, None],
    )


class Algorithm:
    """How a group of `n` positions gathers and scatters; `channels` parts of each chunk go different ways.

    Unit `p * channels + c` is part c of the chunk of position p. After `all_gather` everybody has what each position
    had in its own chunk; after `reduce_scatter` each position has the sum of everybody's parts of its own chunk.
    """

    name = ""

    def __init__(self, n: int, channels: int = 1) -> None:
        self.n, self.channels = n, channels

    def all_gather(self) -> list[Phase]:
        """From own chunks to all chunks."""
        raise NotImplementedError

    def reduce_scatter(self) -> list[Phase]:
        """From everybody's chunks to sums of the own chunk."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Schedule:
    """What one collective does on the ranks of a world. `begin[r]`, `end[r]`: the slots that matter there."""

    operation: str
    algorithm: str
    ranks: int
    slots: int  # how many a rank has
    phases: tuple[Phase, ...]
    begin: Ints
    end: Ints
    # slots are copies of whole buffers, which each rank reduces in their order at the end, into its first slot
    # (single-step mesh)
    folds: bool = False
    group: int = 2  # ranks that take part together

    @cached_property
    def steps(self) -> int:
        """Steps one after the other."""
        return sum(phase.times for phase in self.phases)

    def sent(self, slot_bytes: float) -> npt.NDArray[np.float64]:
        """Bytes that each rank sends, of slots of this size."""
        total = np.zeros(self.ranks)
        for part in self.phases:
            amount = (part.units * part.slots_per_unit * slot_bytes * part.times).reshape(-1)
            for row in part.members:
                np.add.at(total, row[part.src].reshape(-1), amount)
        return total

    def levels(self) -> Iterator[tuple[str, list[Phase]]]:
        """The phases, those of one level of a hierarchy after the other."""
        level, found = "", list[Phase]()
        for part in self.phases:
            if found and part.level != level:
                yield level, found
                found = []
            level = part.level
            found.append(part)
        if found:
            yield level, found
