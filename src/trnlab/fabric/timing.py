# SPDX-License-Identifier: Apache-2.0
"""The timing reading of a schedule: its transfers as flows over the links of a network.

A step takes the latency of its farthest transfer and the time of its flows (`flows`). Steps follow each other; those
that repeat work in two slices, so that latency hides behind what moves (the vendor's page of rings pipelines so); of
levels of a hierarchy that use different links, large buffers are cut into `PIPELINE` pieces that follow each other
through the levels (the vendor's header nec.h shows three stages).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trnlab.errors import UsageError
from trnlab.fabric.flows import Floats, Flows, duration, loads
from trnlab.fabric.network import Network
from trnlab.fabric.schedule import Ints, Phase, Schedule

PIPELINE = 3
SLICES = 2  # of what a repeated step carries: one waits while the other moves
PIPELINED_FROM = 1 << 20  # bytes of a rank's buffer; assumed


@dataclass(frozen=True)
class Cost:
    """Seconds of one collective, and what it puts on the links."""

    seconds: float
    launch: float
    latency: float  # of all steps, within `seconds` where nothing is pipelined
    loads: Floats  # bytes over each link
    busiest: str  # the link that is busy longest
    busy: float  # and how long, seconds


def cost(schedule: Schedule, network: Network, placed: Ints, buffer_bytes: float) -> Cost:
    """What the collective costs when a rank's larger buffer, of input and output, has so many bytes.

    `placed`: the chip of each rank. Loads are those of one instance where all instances do the same. Raises
    UsageError (TRN187) where data would have to take a link that is down.
    """
    slot = buffer_bytes / max(schedule.begin.shape[1], schedule.end.shape[1])
    load = np.zeros(len(network.rates))
    latency, stages = 0.0, []
    for _, phases in schedule.levels():
        times = [_phase(part, network, placed, slot, load) for part in phases]
        latency += sum(wait for wait, _ in times)
        stages.append(sum(whole for _, whole in times))
    launch = _launch(schedule, network)
    dead = np.flatnonzero((load > 0) & (network.rates <= 0))
    if len(dead):
        raise UsageError(
            f"data of this {schedule.operation} takes a link that is down", code="TRN187",
            limit="all links on the way work",
            got=network.name(int(dead[0])), remedy="leave its chip or instance out of the groups, or repair it",
        )  # fmt: skip
    busy = load / np.maximum(network.rates, 1)
    most = int(busy.argmax()) if len(busy) else 0
    name = network.name(most) if len(busy) and busy[most] > 0 else ""
    seconds = launch + _pipelined(stages, latency, float(busy.max(initial=0)), buffer_bytes)
    return Cost(seconds, launch, latency, load, name, float(busy[most]) if len(busy) else 0.0)


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


def _phase(part: Phase, network: Network, placed: Ints, slot: float, load: Floats) -> tuple[float, float]:
    """Seconds of latency, and altogether, of all repetitions. Adds to the loads of links."""
    members = _distinct(part, network, placed)
    src, dst = placed[members[:, part.src]].reshape(-1), placed[members[:, part.dst]].reshape(-1)
    if not len(src):
        return 0.0, 0.0
    size = np.tile(part.units * part.slots_per_unit * slot, len(members))
    pairs, which = np.unique(np.stack([src, dst], axis=1), axis=0, return_inverse=True)
    touched = np.tile(np.stack([part.reads, part.writes]), len(members))
    flows = _flows(network, pairs, which.reshape(-1), size, touched)
    load += loads(flows, len(network.rates)) * part.times
    wait, moving = _latency(network, pairs), duration(flows, network.rates)
    wait += part.adds * network.costs.step.value * 1e-9
    return part.times * wait, wait + moving + (part.times - 1) * max(moving, wait + moving / SLICES)


def _distinct(part: Phase, network: Network, placed: Ints) -> Ints:
    """The groups to be timed: where all lie within instances that are alike, those of the first one."""
    each = network.cluster.target.chips
    chips = placed[part.members]
    instance = chips // each
    if network.changed or network.cluster.instances == 1 or (instance != instance[:, :1]).any():
        return part.members
    kinds = {(chips[instance[:, 0] == i] - i * each).tobytes() for i in np.unique(instance[:, 0])}
    return part.members if len(kinds) > 1 else part.members[instance[:, 0] == instance[0, 0]]


def _latency(network: Network, pairs: Ints) -> float:
    """Seconds of one step beyond its bytes: of the network where any transfer takes it."""
    figure = network.costs.network_step if network.outside(pairs).any() else network.costs.step
    return figure.value * 1e-9


def _flows(network: Network, pairs: Ints, which: Ints, size: Floats, touched: Ints) -> Flows:
    """One flow per transfer, over its wires and the memories and DMA engines at both ends.

    `pairs[which[f]]`: the chips of flow f. `touched`: how often its bytes touch memory at either end.
    """
    links, lengths = network.routes(pairs)
    starts = np.cumsum(lengths) - lengths
    count = lengths[which]
    flow = np.repeat(np.arange(len(which)), count)
    offset = np.arange(len(flow)) - np.repeat(np.cumsum(count) - count, count)
    wires = links[np.repeat(starts[which], count) + offset]
    ends = np.arange(len(which))
    src, dst = pairs[which].T
    return Flows(
        size,
        np.concatenate([flow, ends, ends, ends]),
        np.concatenate([wires, network.hbm(src), network.hbm(dst), network.dma(src)]),
        np.concatenate([np.ones(len(flow)), *touched, np.ones(len(which))]).astype(np.float64),
    )
