# SPDX-License-Identifier: Apache-2.0
"""The algorithms of the vendor's collectives library, on the positions of one group.

Sources: neuron-runtime/explore/intranode-collective-comm.rst and internode-collective-comm.rst of
aws-neuron/aws-neuron-sdk at 81ce03ae: ring, mesh, KangaRing (here `PairedRing`), recursive doubling and halving, and
their hierarchy. Where these leave a detail open (in which order parts of a mesh are added, which units a step of the
paired ring carries first) the choice is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import lcm
from typing import Any

import numpy as np

from trnlab.fabric.schedule import Algorithm, Ints, Moves, Phase, ints, moves, patterned, phase


class SingleRank(Algorithm):
    """A group of one: nothing to do."""

    name = "none"

    def all_gather(self) -> list[Phase]:
        """Nothing."""
        return []

    reduce_scatter = all_gather


class DirectMesh(Algorithm):
    """Mesh: everybody sends to everybody in one step.

    apart: positions are on different chips, so that parts to be added are written to their owner first, who adds them
    up in a step of its own; ranks of a chip read each other's as they add (the vendor counts so: "scatters ..., and
    then locally reduces", and "reads 4 on-chip chunks, ... reduces them, and writes").
    """

    name = "mesh"

    def __init__(self, n: int, apart: bool = False) -> None:
        super().__init__(n)
        self.apart = apart

    def all_gather(self) -> list[Phase]:
        """Own chunk to all others."""
        src, dst = self._pairs()
        return [phase("mesh", moves(src, dst, src), units=self.n, positions=self.n)]

    def reduce_scatter(self) -> list[Phase]:
        """Everybody's part of a chunk to its owner, who adds them in the order of positions."""
        src, dst = self._pairs()
        found = phase("mesh", moves(src, dst, dst, add=True), units=self.n, positions=self.n)
        return [replace(found, adds=int(self.apart))]

    def _pairs(self) -> tuple[Ints, Ints]:
        src, dst = (axis.reshape(-1) for axis in np.meshgrid(np.arange(self.n), np.arange(self.n), indexing="ij"))
        return src[src != dst], dst[src != dst]


class Recursive(Algorithm):
    """Recursive doubling and halving among 2^p positions: in each step with the position that differs in one bit.

    With `everywhere`, p parts of each chunk go through the bits in p orders, so that all axes of a hypercube are used
    at once (assumed: the vendor says "sequentially" of each of the groups that share a chip, not in which order).
    """

    name = "rdh"

    def __init__(self, n: int, everywhere: bool = False) -> None:
        self.bits = n.bit_length() - 1
        super().__init__(n, max(self.bits, 1) if everywhere else 1)

    def all_gather(self) -> list[Phase]:
        """Pairs exchange all that they have; twice as much in each step."""
        return [self._step(step, add=False) for step in range(self.bits)]

    def reduce_scatter(self) -> list[Phase]:
        """Pairs exchange the half that the other one needs; half as much in each step."""
        return [self._step(step, add=True) for step in reversed(range(self.bits))]

    def _step(self, step: int, add: bool) -> Phase:
        positions, channels = np.arange(self.n), np.arange(self.channels)
        orders = (channels[:, None] + np.arange(self.bits)) % self.bits  # [channel, step]: which bit
        partner = positions ^ (1 << orders[:, step, None])  # [channel, position]

        def moved(_: int) -> Moves:
            # Adding sends the receiver's chunks.
            whose = partner if add else np.broadcast_to(positions, partner.shape)
            have = _spanned(orders[:, :step])  # [channel, 2^step]
            unit = (whose[:, :, None] ^ have[:, None]) * self.channels + channels[:, None, None]
            src, dst = (np.broadcast_to(end[..., None], unit.shape).reshape(-1) for end in (positions[None], partner))
            return moves(src, dst, unit.reshape(-1), add)

        source, ones = np.broadcast_to(positions, partner.shape).reshape(-1), np.ones(partner.size, np.int64)
        return patterned(
            f"rdh {1 << step}",
            moved,
            source,
            partner.reshape(-1),
            ones << step,
            ones + add,
            ones,
            units=self.n * self.channels,
            positions=self.n,
        )


class Ring(Algorithm):
    """Rings in parallel, one per channel: row c of `orders` lists all positions in the order of ring c."""

    name = "ring"

    def __init__(self, orders: Sequence[Sequence[int]]) -> None:
        self.orders = ints(orders)
        super().__init__(self.orders.shape[1], len(self.orders))

    def all_gather(self) -> list[Phase]:
        """Each step hands on the chunk that came last."""
        return self._steps("ring", 0, add=False)

    def reduce_scatter(self) -> list[Phase]:
        """Each step adds the chunk that came last to the own part of it and hands it on."""
        return self._steps("ring", 1, add=True)

    def _steps(self, name: str, behind: int, add: bool) -> list[Phase]:
        index = np.arange(self.n)
        channel = np.repeat(np.arange(self.channels), self.n)

        def step(t: int) -> Moves:
            chunk = self.orders[:, (index - t - behind) % self.n].reshape(-1)
            return moves(
                self.orders.reshape(-1), np.roll(self.orders, -1, 1).reshape(-1), chunk * self.channels + channel, add
            )

        return [phase(name, step(0), units=self.n * self.channels, positions=self.n, times=self.n - 1, again=step)]


class PairedRing(Algorithm):
    """The vendor's KangaRing: `rings[c]` lists the pairs (primary, secondary) in the order of ring c.

    Only primaries are in the ring, and move the chunks of both. What a primary receives it writes to the secondary
    and downstream with one read; when reducing it reads the secondary's part instead of receiving it.
    """

    name = "kangaring"

    def __init__(self, rings: Sequence[Sequence[tuple[int, int]]]) -> None:
        self.rings = ints(rings)  # [channel, pair, 2]
        self.pairs = self.rings.shape[1]
        super().__init__(2 * self.pairs, len(self.rings))

    def all_gather(self) -> list[Phase]:
        """One step in which both own chunks go downstream, then one per pair."""
        primary, secondary = self.rings[:, :, 0], self.rings[:, :, 1]
        down = np.roll(primary, -1, 1)
        own = [self._rows(primary, down, primary), self._rows(secondary, down, secondary)]
        both = [self._rows(primary, secondary, primary), self._rows(secondary, primary, secondary)]
        first = _joined(*own, *both)

        def step(t: int) -> Moves:
            return _joined(*self._both(primary, down, t + 1), *self._both(primary, secondary, t + 1))

        sizes: dict[str, Any] = {"units": self.n * self.channels, "positions": self.n}
        steps = [phase("kangaring", first, reads=_reads(own, 1, both, 0), **sizes)]
        if self.pairs > 2:
            reads = _reads(self._both(primary, down, 1), 1, self._both(primary, secondary, 1), 0)
            steps.append(phase("kangaring", step(0), times=self.pairs - 2, again=step, reads=reads, **sizes))
        last = _joined(*self._both(primary, secondary, self.pairs - 1))
        return (
            [*steps, phase("kangaring", last, **sizes)]
            if self.pairs > 1
            else [phase("pair", _joined(*both), **sizes)]
        )

    def reduce_scatter(self) -> list[Phase]:
        """The mirror image: secondaries' parts join at each primary on the way."""
        primary, secondary = self.rings[:, :, 0], self.rings[:, :, 1]
        down = np.roll(primary, -1, 1)
        join = _joined(*self._both(secondary, primary, 1, add=True))

        def step(t: int) -> Moves:
            ring = self._both(primary, down, t + 1, add=True)
            return _joined(*ring, *self._both(secondary, primary, t + 2, add=True))

        sizes: dict[str, Any] = {"units": self.n * self.channels, "positions": self.n}
        steps = [phase("kangaring", join, reads=1, writes=0, **sizes)]
        if self.pairs > 1:
            ring, local = self._both(primary, down, 1), self._both(secondary, primary, 2)
            steps.append(
                phase(
                    "kangaring",
                    step(0),
                    times=self.pairs - 1,
                    again=step,
                    reads=_reads(ring, 2, local, 1),
                    writes=_reads(ring, 1, local, 0),
                    **sizes,
                )
            )
        return [*steps, phase("kangaring", self._rows(primary, secondary, secondary), **sizes)]

    def _rows(self, src: Ints, dst: Ints, chunk: Ints, add: bool = False) -> Moves:
        """Part c of `chunk` from `src` to `dst`, for each ring c and pair."""
        channel = np.arange(self.channels)[:, None]
        return moves(src.reshape(-1), dst.reshape(-1), (chunk * self.channels + channel).reshape(-1), add)

    def _both(self, src: Ints, dst: Ints, behind: int, add: bool = False) -> list[Moves]:
        """The chunks of the pair that lies `behind` pairs upstream."""
        rolled = np.roll(self.rings, behind, 1)
        return [self._rows(src, dst, rolled[:, :, member], add) for member in (0, 1)]


class Hierarchy(Algorithm):
    """Groups of groups: position x * inner.n + y is member y of subgroup x; what `outer` joins has equal y.

    Gathering goes through `outer` first, scattering through `inner`, so that what crosses subgroups is as little as
    possible.
    """

    name = "hier"

    def __init__(self, outer: Algorithm, inner: Algorithm, levels: tuple[str, str] = ("inter", "intra")) -> None:
        self.outer, self.inner, self.levels = outer, inner, levels
        super().__init__(outer.n * inner.n, lcm(outer.channels, inner.channels))

    def all_gather(self) -> list[Phase]:
        """`outer` on each member's chunks, then `inner` on all that came."""
        return [*self._outer(self.outer.all_gather()), *self._inner(self.inner.all_gather())]

    def reduce_scatter(self) -> list[Phase]:
        """`inner` on whole columns of chunks, then `outer`."""
        return [*self._inner(self.inner.reduce_scatter()), *self._outer(self.outer.reduce_scatter())]

    def _outer(self, phases: list[Phase]) -> list[Phase]:
        members = self._grid().T  # [y, x]
        per_unit = self.channels // self.outer.channels

        def slots() -> Ints:
            return self._parts(members, self.outer.channels).reshape(len(members), -1, per_unit)

        return [part.over(members, slots, per_unit, self.levels[0]) for part in phases]

    def _inner(self, phases: list[Phase]) -> list[Phase]:
        members = self._grid()  # [x, y]
        per_unit = self.outer.n * self.channels // self.inner.channels

        def slots() -> Ints:
            parts = self._parts(members.T, self.inner.channels)  # [y, x, channel, k]
            column = parts.transpose(0, 2, 1, 3).reshape(-1, per_unit)  # the unit (y, channel)
            return np.broadcast_to(column, (len(members), *column.shape))

        return [part.over(members, slots, per_unit, self.levels[1]) for part in phases]

    def _grid(self) -> Ints:
        return np.arange(self.n).reshape(self.outer.n, self.inner.n)

    def _parts(self, positions: Ints, channels: int) -> Ints:
        """The slots of each position's chunk in `channels` parts: [..., channel, slot]."""
        parts = np.arange(self.channels).reshape(channels, -1)
        return positions[..., None, None] * self.channels + parts


def _joined(*parts: Moves) -> Moves:
    columns = (
        np.concatenate(column) for column in zip(*((m.src, m.dst, m.src_unit, m.dst_unit, m.add) for m in parts))
    )
    return Moves(*columns)


def _reads(first: list[Moves], one: int, second: list[Moves], other: int) -> Ints:
    """How often rows of each kind touch memory, in the order of `_joined(*first, *second)`."""
    return np.repeat(ints([one, other]), [sum(len(m.src) for m in first), sum(len(m.src) for m in second)])


def _spanned(bits: Ints) -> Ints:
    """All numbers that have only these bits: [..., 2^k] of [..., k]."""
    found = np.zeros((*bits.shape[:-1], 1), np.int64)
    for place in range(bits.shape[-1]):
        found = np.concatenate([found, found ^ (1 << bits[..., place, None])], axis=-1)
    return found
