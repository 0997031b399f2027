# SPDX-License-Identifier: Apache-2.0
"""What a group of ranks is asked to do together, whoever asks: an op of a graph, a call of a program, a script.

Buffers are flat here: the parts of all ranks lie one behind the other, in the order of the group. Several tensors of
one format are one buffer (`packed`, `unpacked`), so that they are moved, reduced and timed as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, Any]
Groups = tuple[tuple[int, ...], ...]
KINDS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "collective_permute",
    "collective_broadcast",
)
REDUCTIONS = ("sum", "max", "min", "prod")
# What a collective is for. gradient: sums of gradients; parameter: gathers parameters; tensor: activations that the
# ranks of a product share; sequence: activations of which each rank has a part; pipeline: between stages; expert:
# tokens on their way to experts and back.
PURPOSES = ("gradient", "parameter", "tensor", "sequence", "pipeline", "expert", "checkpoint", "other")


@dataclass(frozen=True)
class Collective:
    """One of `KINDS` over groups of ranks of the world, all of one size, each rank in at most one."""

    kind: str
    groups: Groups = ()
    reduction: str = "sum"  # one of `REDUCTIONS`, of all_reduce and reduce_scatter
    # (source, target) ranks of collective_permute, which has no groups; who is no target receives zeros
    pairs: tuple[tuple[int, int], ...] = ()
    root: int = 0  # the position in its group of the rank that has what collective_broadcast sends
    # gives, takes: of an all_to_all whose parts differ, how many elements this rank, at `position` of its group,
    # sends to each position and receives from it; of the others it knows nothing
    gives: tuple[int, ...] = ()
    takes: tuple[int, ...] = ()
    position: int = 0

    @property
    def ranks(self) -> int:
        """Ranks of a group."""
        return len(self.groups[0]) if self.groups else 1

    def group_of(self, rank: int) -> tuple[int, ...]:
        """The group that has `rank`; the rank alone where none has it."""
        return next((group for group in self.groups if rank in group), (rank,))

    def count(self, given: int) -> int:
        """Elements of the result for so many of the input."""
        if self.takes:
            return max(sum(self.takes), 1)
        if self.kind == "all_gather":
            return given * self.ranks
        return given // self.ranks if self.kind == "reduce_scatter" else given


def like_parts(request: Collective, nbytes: int) -> tuple[Collective, int]:
    """What takes the time of a collective of so many bytes (of the larger of input and output), and of how many.

    An all-to-all whose parts differ takes that of a permutation where this rank sends to one other and receives from
    one, all ranks to those at the same distances; else that of equal parts as large as its largest (assumed: the
    vendor says of its AllToAllV only that it is there, and a rank knows its own parts alone).
    """
    if not request.gives:
        return request, nbytes
    largest, whole = max(*request.gives, *request.takes), max(sum(request.gives), sum(request.takes), 1)
    sent = [p for p, n in enumerate(request.gives) if n and p != request.position]
    taken = [p for p, n in enumerate(request.takes) if n and p != request.position]
    own = request.gives[request.position]
    if own or len(sent) > 1 or len(taken) > 1:
        return Collective(request.kind, request.groups), nbytes * largest * request.ranks // whole
    here, ranks = request.position, request.ranks
    steps = {(p - here) % ranks for p in sent} | {(here - p) % ranks for p in taken}
    pairs = (
        [(group[p], group[(p + step) % ranks]) for group in request.groups for step in steps for p in range(ranks)]
        if len(steps) == 1
        else _own_pairs(request, sent, taken)
    )
    return Collective("collective_permute", pairs=tuple(pairs)), nbytes


def _own_pairs(request: Collective, sent: Sequence[int], taken: Sequence[int]) -> list[tuple[int, int]]:
    """Who this rank sends to and receives from, in every group at the same positions."""
    here = request.position
    return [
        (group[a], group[b])
        for group in request.groups
        for a, b in (*((here, p) for p in sent), *((p, here) for p in taken))
    ]


class Communicator(Protocol):
    """The connection of one rank with the others."""

    @property
    def rank(self) -> int:
        """Which rank this is."""
        ...

    @property
    def size(self) -> int:
        """Ranks of the world."""
        ...

    def perform(self, request: Collective, source: Array) -> Array:
        """The result of this rank, in new memory: flat, as `source` is, which is contiguous and in the format of the
        tensor. Waits for the others of the group."""
        ...


def perform(communicator: Communicator, request: Collective, sources: Sequence[Array]) -> list[Array]:
    """Several tensors at once, flat results in their order."""
    sizes = [source.size for source in sources]
    if len(sources) == 1:
        return [communicator.perform(request, np.ascontiguousarray(sources[0]).reshape(-1))]
    return unpacked(request, communicator.perform(request, packed(request, sources)), sizes)


def packed(request: Collective, sources: Sequence[Array]) -> Array:
    """One buffer of several tensors: what goes to one rank lies together."""
    parts = request.ranks if request.kind in ("reduce_scatter", "all_to_all") else 1
    return np.concatenate([source.reshape(parts, -1) for source in sources], axis=1).reshape(-1)


def unpacked(request: Collective, result: Array, sizes: Sequence[int]) -> list[Array]:
    """The tensors in the result of `packed` ones; `sizes`: elements that were given of each."""
    parts = request.ranks if request.kind in ("all_gather", "all_to_all") else 1
    ends = np.cumsum([request.count(size) // parts for size in sizes])
    return [piece.reshape(-1) for piece in np.split(result.reshape(parts, -1), ends[:-1], axis=1)]


def whole_mesh(group: Sequence[int], world: int) -> Groups:
    """All groups of the regular mesh that has `group`, so that all ranks name the same groups; else this one alone.

    A mesh of a world: ranks as an array of some shape, groups along one of its dimensions, or several that follow
    each other. Its groups are translations of each other.
    """
    ranks = tuple(group)
    offsets = np.array(ranks) - ranks[0]
    steps = _regular(ranks)
    if steps is None:
        return (ranks,)
    stride, count = steps
    block = stride * count
    if world % block or ranks[0] % block >= stride:
        return (ranks,)
    starts = [base + place for base in range(0, world, block) for place in range(stride)]
    return tuple(tuple(int(start + offset) for offset in offsets) for start in starts)


def _regular(ranks: tuple[int, ...]) -> tuple[int, int] | None:
    """The stride and the number of ranks that follow each other at one distance."""
    if len(ranks) == 1:
        return 1, 1
    stride = ranks[1] - ranks[0]
    regular = stride > 0 and all(b - a == stride for a, b in pairwise(ranks))
    return (stride, len(ranks)) if regular else None
