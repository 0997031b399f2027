# SPDX-License-Identifier: Apache-2.0
"""Collectives as schedules: an algorithm on each replica group of a world."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trnlab.fabric.algorithms import DirectMesh
from trnlab.fabric.schedule import Algorithm, Moves, Phase, Schedule, ints, moves, patterned, phase

Groups = Sequence[Sequence[int]]


def all_gather(algorithm: Algorithm, groups: Groups) -> Schedule:
    """Every rank ends with the buffers of its group, in the order of the group."""
    return _made("all_gather", algorithm, groups, algorithm.all_gather(), gathers=True)


def reduce_scatter(algorithm: Algorithm, groups: Groups) -> Schedule:
    """Position p of a group ends with the sum of everybody's p-th part."""
    return _made("reduce_scatter", algorithm, groups, algorithm.reduce_scatter(), scatters=True)


def all_reduce(algorithm: Algorithm, groups: Groups) -> Schedule:
    """Every rank ends with the sum over its group: reduce-scatter, then all-gather."""
    return _made("all_reduce", algorithm, groups, [*algorithm.reduce_scatter(), *algorithm.all_gather()])


def all_reduce_at_once(size: int, groups: Groups, apart: bool = False) -> Schedule:
    """Single-step mesh: everybody sends the whole buffer to everybody, and each adds up what it has.

    apart: as of `algorithms.DirectMesh`; "upon receiving these duplicates" a rank reduces.
    """
    direct = DirectMesh(size)
    sent = [replace(part, adds=int(apart)) for part in direct.all_gather()]
    schedule = _made("all_reduce", direct, groups, sent, gathers=True)
    first = np.zeros((schedule.ranks, 1), np.int64)
    return replace(schedule, algorithm="single-step mesh", end=first, folds=True)


def all_to_all(size: int, groups: Groups) -> Schedule:
    """Part q of position p goes to position q, who ends with the parts in the order of positions."""
    here = np.arange(size)
    src, dst = np.broadcast_arrays(here[:, None], here)
    one = np.broadcast_to(ints(1), src.shape)

    def moved(_: int) -> Moves:
        ends = src.reshape(-1), dst.reshape(-1)
        return moves(*ends, ends[1], dst_unit=size + ends[0])

    step = patterned("mesh", moved, src, dst, one, one, one, units=2 * size, positions=size)
    step = replace(step, complete=True)
    world = _world(groups)
    mine = np.broadcast_to(np.arange(size), (world, size))
    return Schedule(
        "all_to_all", "mesh", world, 2 * size, (_over(step, groups, 2 * size),), mine, mine + size, group=size
    )


def permute(pairs: Sequence[tuple[int, int]], world: int) -> Schedule:
    """Every source of `pairs` sends its buffer to its target; who receives nothing ends with zeros."""
    sent = ints(pairs).reshape(-1, 2)
    zeros = np.zeros((world, 1), np.int64)
    step = phase(
        "permute",
        moves(sent[:, 0], sent[:, 1], np.zeros(len(sent)), dst_unit=np.ones(len(sent))),
        units=2,
        positions=world,
    )
    return Schedule("permute", "permute", world, 2, (step,), zeros, zeros + 1)


def broadcast(size: int, groups: Groups, root: int = 0) -> Schedule:
    """Position `root` of each group sends its buffer to all others in one step."""
    others = ints([position for position in range(size) if position != root])
    step = phase("mesh", moves(np.full(len(others), root), others, np.zeros(len(others))), units=1, positions=size)
    zeros = np.zeros((_world(groups), 1), np.int64)
    return Schedule("broadcast", "mesh", _world(groups), 1, (_over(step, groups, 1),), zeros, zeros, group=size)


def _made(
    operation: str,
    algorithm: Algorithm,
    groups: Groups,
    phases: list[Phase],
    *,
    gathers: bool = False,
    scatters: bool = False,
) -> Schedule:
    """The phases over all groups; a rank that only gathers begins with its own chunk, one that scatters ends so."""
    world = _world(groups)
    slots = algorithm.n * algorithm.channels
    everything = np.broadcast_to(np.arange(slots), (world, slots))
    own = np.zeros((world, algorithm.channels), np.int64)
    for group in groups:
        own[list(group)] = np.arange(slots).reshape(algorithm.n, -1)
    laid = tuple(_over(part, groups, slots) for part in phases)
    begin, end = own if gathers else everything, own if scatters else everything
    return Schedule(operation, algorithm.name, world, slots, laid, begin, end, group=algorithm.n)


def _over(part: Phase, groups: Groups, slots: int) -> Phase:
    """One phase on all groups, whose units are slots."""
    members = ints(groups)
    return part.over(members, lambda: np.broadcast_to(np.arange(slots)[:, None], (len(members), slots, 1)))


def _world(groups: Groups) -> int:
    """Ranks from 0 to the largest that a group names."""
    return max((rank for group in groups for rank in group), default=-1) + 1
