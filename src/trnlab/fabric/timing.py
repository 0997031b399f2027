# SPDX-License-Identifier: Apache-2.0
"""The timing reading of a schedule: its transfers as flows over the links of a network.

A step takes the latency of its farthest transfer and the time of its flows (`flows`). Steps follow each other; those
that repeat work in two slices, so that latency hides behind what moves (the vendor's page of rings pipelines so); of
levels of a hierarchy that use different links, large buffers are cut into `PIPELINE` pieces that follow each other
through the levels (the vendor's header nec.h shows three stages).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from trnlab.errors import UsageError
from trnlab.fabric.flows import Floats, Flows, duration, loads
from trnlab.fabric.network import Network
from trnlab.fabric.schedule import Ints, Phase, Schedule

PIPELINE = 3
SLICES = 2  # of what a repeated step carries: one waits while the other moves
PIPELINED_FROM = 1 << 20  # bytes of a rank's buffer; assumed


@dataclass(frozen=True)
class CollectiveCost:
    """Seconds of one collective, and what it puts on the links."""

    seconds: float
    launch: float
    latency: float  # of all steps, within `seconds` where nothing is pipelined
    loads: Floats  # bytes over each link
    busiest: str  # the link that is busy longest
    busy: float  # and how long, seconds


@dataclass(frozen=True, eq=False)
class LaidOutPhase:
    """One phase over the links of a network, in slots: its flows, what they put on each link, and whether any of them
    leaves its instance. It is the same on all networks with these wires and ways, however fast they are."""

    flows: Flows
    loads: Floats
    outside: bool


Layouts = dict[tuple[Phase, bool], LaidOutPhase]  # by phase, and whether every group is looked at


def cost(
    schedule: Schedule, network: Network, placed: Ints, buffer_bytes: float, known: Layouts | None = None
) -> CollectiveCost:
    """What the collective costs when a rank's larger buffer, of input and output, has so many bytes.

    `placed`: the chip of each rank. Loads are those of one instance where all instances do the same. `known`: who
    asks again, of networks that differ in rates and latencies alone, keeps in it what does not change. Raises
    UsageError (TRN187) where data would have to take a link that is down.
    """
    slot = buffer_bytes / max(schedule.begin.shape[1], schedule.end.shape[1])
    load = np.zeros(len(network.rates))
    latency, stages = 0.0, []
    for _, phases in schedule.levels():
        times = [_phase(part, _laid(part, network, placed, known), network, slot, load) for part in phases]
        latency += sum(wait for wait, _ in times)
        stages.append(sum(whole for _, whole in times))
    launch = _launch(schedule, network)
    dead = np.flatnonzero((load > 0) & (network.rates <= 0))
    if len(dead):
        raise UsageError(
            f"data of this {schedule.operation} takes a link that is down",
            code="TRN187",
            limit="all links on the way work",
            got=network.name(int(dead[0])),
            remedy="leave its chip or instance out of the groups, or repair it",
        )
    busy = load / np.maximum(network.rates, 1)
    most = int(busy.argmax()) if len(busy) else 0
    name = network.name(most) if len(busy) and busy[most] > 0 else ""
    seconds = launch + _pipelined(stages, latency, float(busy.max(initial=0)), buffer_bytes)
    return CollectiveCost(seconds, launch, latency, load, name, float(busy[most]) if len(busy) else 0.0)


def _launch(schedule: Schedule, network: Network) -> float:
    """Seconds from the trigger to the first step."""
    costs = network.costs
    return (costs.launch.value + costs.launch_rank.value * schedule.group) * 1e-9 if schedule.phases else 0.0


def _pipelined(stages: list[float], latency: float, busy: float, buffer_bytes: float) -> float:
    """Stages one after the other, or in pieces that overlap where the buffer is large: whichever is faster.

    `busy`: how long the busiest link is; stages that share it do not overlap on it.
    """
    whole = sum(stages)
    if len(stages) < 2 or buffer_bytes < PIPELINED_FROM:
        return whole
    pieces = PIPELINE
    longest = max(busy, *stages)
    return min(whole, whole / pieces + (pieces - 1) / pieces * longest + (pieces - 1) * latency / pieces)


def _phase(part: Phase, laid: LaidOutPhase, network: Network, slot: float, load: Floats) -> tuple[float, float]:
    """Seconds of latency, and altogether, of all repetitions. Adds to the loads of links."""
    if not len(laid.flows.size):
        return 0.0, 0.0
    load += laid.loads * slot * part.times
    flows = replace(laid.flows, size=laid.flows.size * slot)
    step = network.costs.network_step if laid.outside else network.costs.step  # beyond its bytes
    wait, moving = step.value * 1e-9, duration(flows, network.rates)
    wait += part.adds * network.costs.step.value * 1e-9
    return part.times * wait, wait + moving + (part.times - 1) * max(moving, wait + moving / SLICES)


def _laid(part: Phase, network: Network, placed: Ints, known: Layouts | None) -> LaidOutPhase:
    known, key = {} if known is None else known, (part, bool(network.changed))
    if key not in known:
        known[key] = _lay(part, network, placed)
    return known[key]


def _lay(part: Phase, network: Network, placed: Ints) -> LaidOutPhase:
    """Flows that are alike are laid as one with the weight of all: their rates are equal at every moment."""
    members = _distinct(part, network, placed)
    src, dst = placed[members[:, part.src]].reshape(-1), placed[members[:, part.dst]].reshape(-1)
    if not len(src):
        none, nothing = np.empty(0, np.int64), np.empty(0)
        return LaidOutPhase(Flows(nothing, none, none, nothing), np.zeros(len(network.rates)), False)
    chips = network.cluster.instances * network.cluster.target.chips
    kinds = np.stack([part.units, part.reads, part.writes])
    bounds = kinds.max(axis=1) + 1
    kind = np.tile(np.ravel_multi_index(tuple(kinds), tuple(bounds)), len(members))
    _, first, alike = np.unique((src * chips + dst) * bounds.prod() + kind, return_index=True, return_counts=True)
    numbers, which = np.unique(src[first] * chips + dst[first], return_inverse=True)
    pairs = np.stack(np.divmod(numbers, chips), axis=1)
    units, *touched = kinds[:, first % kinds.shape[1]]
    flows = _flows(network, pairs, which.reshape(-1), units * part.slots_per_unit, touched, alike)
    return LaidOutPhase(flows, loads(flows, len(network.rates)), bool(network.outside(pairs).any()))


def _distinct(part: Phase, network: Network, placed: Ints) -> Ints:
    """The groups to be timed: where all lie within instances that are alike, those of the first one."""
    each = network.cluster.target.chips
    chips = placed[part.members]
    instance = chips // each
    if network.changed or network.cluster.instances == 1 or (instance != instance[:, :1]).any():
        return part.members
    kinds = {(chips[instance[:, 0] == i] - i * each).tobytes() for i in np.unique(instance[:, 0])}
    return part.members if len(kinds) > 1 else part.members[instance[:, 0] == instance[0, 0]]


def _flows(network: Network, pairs: Ints, which: Ints, size: Ints, touched: Sequence[Ints], alike: Ints) -> Flows:
    """One flow per kind of transfer, over its wires and the memories and DMA engines at both ends.

    `pairs[which[f]]`: the chips of flow f. `touched`: how often its bytes touch memory at either end. `alike`: how
    many transfers it stands for.
    """
    links, lengths = network.routes(pairs)
    starts = np.cumsum(lengths) - lengths
    count = lengths[which]
    wired = np.repeat(np.arange(len(which)), count)
    offset = np.arange(len(wired)) - np.repeat(np.cumsum(count) - count, count)
    wires = links[np.repeat(starts[which], count) + offset]
    ends = np.arange(len(which))
    src, dst = pairs[which].T
    flow = np.concatenate([wired, ends, ends, ends])
    weight = np.concatenate([np.ones(len(wired), np.int64), *touched, np.ones(len(which), np.int64)]) * alike[flow]
    link = np.concatenate([wires, network.hbm(src), network.hbm(dst), network.dma(src)])
    return Flows(size.astype(np.float64), flow, link, weight.astype(np.float64))
