# SPDX-License-Identifier: Apache-2.0
"""The timing reading of a schedule: its transfers as flows over the links of a network.

A step takes the latency of its farthest transfer and the time of its flows (`flows`). Steps follow each other; those
that repeat work in two slices, so that latency hides behind what moves (the vendor's page of rings pipelines so); of
levels of a hierarchy that use different links, buffers are cut into `PIPELINE` pieces that follow each other
through the levels, where that is faster (the vendor's header nec.h shows three stages).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from trnlab.errors import UsageError
from trnlab.fabric.flows import Floats, Flows, duration, loads
from trnlab.fabric.network import Network
from trnlab.fabric.schedule import Ints, Phase, Schedule, ints

PIPELINE = 3
SLICES = 2  # of what a repeated step carries: one waits while the other moves


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


@dataclass(frozen=True, eq=False)
class TimedSchedule:
    """A schedule on one network, for any number of bytes: its time is linear in them, piece by piece."""

    # of each level of a hierarchy its phases: repetitions, seconds of latency of one, seconds that one moves for each
    # byte of the buffer
    stages: tuple[tuple[tuple[int, float, float], ...], ...]
    launch: float
    loads: Floats  # bytes over each link, for each byte of the buffer
    busiest: str  # the link that is busy longest
    busy: float  # seconds that it is for each byte

    @property
    def latency(self) -> float:
        """Seconds of latency of all steps."""
        return sum(times * wait for stage in self.stages for times, wait, _ in stage)

    def seconds(self, buffer_bytes: Floats) -> Floats:
        """The time of each of many sizes."""
        nothing = np.zeros(len(buffer_bytes))
        stages = [sum((_repeated(*step, buffer_bytes) for step in stage), nothing) for stage in self.stages]
        return self.launch + _pipelined(stages, self.latency, self.busy * buffer_bytes)

    def cost(self, buffer_bytes: float) -> CollectiveCost:
        """All of one size."""
        (seconds,) = self.seconds(np.array([buffer_bytes], np.float64)).tolist()
        busy = self.busy * buffer_bytes
        return CollectiveCost(seconds, self.launch, self.latency, self.loads * buffer_bytes, self.busiest, busy)


def cost(
    schedule: Schedule, network: Network, placed: Ints, buffer_bytes: float, known: Layouts | None = None
) -> CollectiveCost:
    """What the collective costs when a rank's larger buffer, of input and output, has so many bytes; see `timed`."""
    return timed(schedule, network, placed, known).cost(buffer_bytes)


def timed(schedule: Schedule, network: Network, placed: Ints, known: Layouts | None = None) -> TimedSchedule:
    """A schedule on a network. `placed`: the chip of each rank.

    Loads are those of one instance where all instances do the same. `known`: who asks again, of networks that differ
    in rates and latencies alone, keeps in it what does not change. Raises UsageError (TRN187) where data would have
    to take a link that is down.
    """
    slots = max(schedule.begin.shape[1], schedule.end.shape[1])
    load = np.zeros(len(network.rates))
    stages = []
    for _, phases in schedule.levels():
        laid = [(part, _laid(part, network, placed, known)) for part in phases]
        for part, over in laid:
            load += over.loads * (part.times / slots)
        stages.append(tuple(_step(part, over, network, slots) for part, over in laid if len(over.flows.size)))
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
    named = network.name(most) if len(busy) and busy[most] > 0 else ""
    return TimedSchedule(tuple(stages), _launch(schedule, network), load, named, float(busy.max(initial=0)))


def _launch(schedule: Schedule, network: Network) -> float:
    """Seconds from the trigger to the first step."""
    costs = network.costs
    return (costs.launch.value + costs.launch_rank.value * schedule.group) * 1e-9 if schedule.phases else 0.0


def _pipelined(stages: Sequence[Floats], latency: float, busy: Floats) -> Floats:
    """Stages one after the other, or in pieces that overlap: whichever is faster.

    `busy`: how long the busiest link is; stages that share it do not overlap on it.
    """
    whole = sum(stages, np.zeros(len(busy)))
    if len(stages) < 2:
        return whole
    pieces = PIPELINE
    longest = np.maximum.reduce([busy, *stages])
    cut = whole / pieces + (pieces - 1) / pieces * longest + (pieces - 1) * latency / pieces
    faster: Floats = np.minimum(whole, cut)
    return faster


def _repeated(times: int, wait: float, moving: float, buffer_bytes: Floats) -> Floats:
    """Seconds of all repetitions of a phase."""
    moved = moving * buffer_bytes
    spent: Floats = wait + moved + (times - 1) * np.maximum(moved, wait + moved / SLICES)
    return spent


def _step(part: Phase, laid: LaidOutPhase, network: Network, slots: int) -> tuple[int, float, float]:
    """A phase as in `TimedSchedule.stages`. Flows that all grow alike keep their shares of the links."""
    step = network.costs.network_step if laid.outside else network.costs.step  # beyond its bytes
    wait = (step.value + part.adds * network.costs.step.value) * 1e-9
    return part.times, wait, duration(laid.flows, network.rates) / slots


def _laid(part: Phase, network: Network, placed: Ints, known: Layouts | None) -> LaidOutPhase:
    known, key = {} if known is None else known, (part, bool(network.changed))
    if key not in known:
        known[key] = _lay(part, network, placed)
    return known[key]


def _lay(part: Phase, network: Network, placed: Ints) -> LaidOutPhase:
    """Flows that are alike are laid as one with the weight of all: their rates are equal at every moment."""
    folded = part.complete and _instances_alike(part, network, placed)
    src, dst, kinds = _of_one_instance(part, network, placed) if folded else _ends(part, network, placed)
    if not len(src):
        none, nothing = np.empty(0, np.int64), np.empty(0)
        return LaidOutPhase(Flows(nothing, none, none, nothing), np.zeros(len(network.rates)), False)
    chips = network.cluster.instances * network.cluster.target.chips
    bounds = kinds.max(axis=1) + 1
    kind = np.tile(np.ravel_multi_index(tuple(kinds), tuple(bounds)), len(src) // kinds.shape[1])
    _, first, alike = np.unique((src * chips + dst) * bounds.prod() + kind, return_index=True, return_counts=True)
    numbers, which = np.unique(src[first] * chips + dst[first], return_inverse=True)
    pairs = np.stack(np.divmod(numbers, chips), axis=1)
    units, *touched = kinds[:, first % kinds.shape[1]]
    flows = _flows(network, pairs, which.reshape(-1), units * part.slots_per_unit, touched, alike)
    if folded:
        flows = replace(flows, link=flows.link % len(network.template))
    return LaidOutPhase(flows, loads(flows, len(network.rates)), bool(network.outside(pairs).any()))


def _ends(part: Phase, network: Network, placed: Ints) -> tuple[Ints, Ints, Ints]:
    """The chips at both ends of every transfer, and per transfer of a group units, reads and writes."""
    members = _distinct(part, network, placed)
    src, dst = (placed[members[:, end]].reshape(-1) for end in (part.src, part.dst))
    return src, dst, np.stack([column.reshape(-1) for column in (part.units, part.reads, part.writes)])


def _instances_alike(part: Phase, network: Network, placed: Ints) -> bool:
    """Whether every group has equal places on every instance, and all instances reach each other over cards alone."""
    count, each = network.cluster.instances, network.cluster.target.chips
    if network.changed or network.joints or count == 1 or part.members.shape[1] % count:
        return False
    chips = np.sort(placed[part.members], axis=1).reshape(len(part.members), count, -1)
    return bool((chips == chips[:, :1] % each + each * np.arange(count)[:, None]).all())


def _of_one_instance(part: Phase, network: Network, placed: Ints) -> tuple[Ints, Ints, Ints]:
    """As `_ends` of a complete exchange, for senders on the first instance; the second one stands for all others.

    Instances may change places without a transfer becoming another one, so what leaves one is what each does, and
    what enters it comes over the same links as what it sends to another.
    """
    each = network.cluster.target.chips
    chips = placed[part.members]
    group, position = np.nonzero(chips < each)
    local = chips % each + each * (chips >= each)
    src = np.repeat(chips[group, position], part.members.shape[1])
    return src, local[group].reshape(-1), ints([[part.units[0, 0]], [part.reads[0, 0]], [part.writes[0, 0]]])


def _distinct(part: Phase, network: Network, placed: Ints) -> Ints:
    """The groups to be timed: where all lie within instances that are alike, those of the first one."""
    each = network.cluster.target.chips
    chips = placed[part.members]
    instance = chips // each
    if network.changed or network.cluster.instances == 1 or (instance != instance[:, :1]).any():
        return part.members
    number, count = np.unique(instance[:, 0], return_counts=True)
    order = np.argsort(instance[:, 0], kind="stable")
    local = (chips % each)[order]
    if (count != count[0]).any() or (local.reshape(len(number), -1) != local[: count[0]].reshape(-1)).any():
        return part.members
    return part.members[order[: count[0]]]


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
