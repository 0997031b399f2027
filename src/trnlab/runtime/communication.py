# SPDX-License-Identifier: Apache-2.0
"""What the collectives of a step take: by purpose and kind, how much of it compute hides, what links carry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from trnlab.collectives import PURPOSES, Collective
from trnlab.fabric.network import Network
from trnlab.fabric.timing import CollectiveCost
from trnlab.fabric.world import World
from trnlab.program.communication import buffer_bytes, collective_of
from trnlab.sim.timing.communication import cost_of, world
from trnlab.units import PS_PER_S

if TYPE_CHECKING:  # it takes a while
    from trnlab.runtime.executable import Executable

Ints = np.ndarray[Any, np.dtype[np.int64]]
THRESHOLD = 0.25  # share of the step from which the exchange of gradients is worth a warning
_CLASSES = {
    "wire": "NeuronLink",
    "far": "NeuronLink",
    "sled": "NeuronLink",
    "card": "EFA",
    "dma": "DMA",
    "hbm": "HBM",
}


@dataclass(frozen=True)
class UncapturedCollective:
    """A collective that a script asks for outside of compiled programs: the host waits for it, nothing hides it."""

    request: Collective
    purpose: str
    nbytes: int  # that this rank gives
    buffer: int  # bytes of the larger of input and output
    cost: CollectiveCost


@dataclass(frozen=True)
class UntimedCollective:
    """As `UncapturedCollective`, of a rank that is followed alone: not timed yet."""

    request: Collective
    purpose: str
    nbytes: int
    buffer: int

    def timed(self, network: World) -> UncapturedCollective:
        """On the network of the job."""
        return UncapturedCollective(
            self.request, self.purpose, self.nbytes, self.buffer, network.cost(self.request, self.buffer)
        )


@dataclass
class _Use:
    """Use of some collectives: how many, bytes of their larger buffers, picoseconds, and those that are exposed."""

    count: int = 0
    nbytes: int = 0
    time: int = 0
    exposed: int = 0

    def add(self, nbytes: int, time: int, exposed: int, times: int) -> None:
        self.count += times
        self.nbytes += nbytes * times
        self.time += time * times
        self.exposed += exposed * times

    def as_json(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "bytes": self.nbytes,
            "time_s": self.time / PS_PER_S,
            "exposed_s": self.exposed / PS_PER_S,
            "hidden_s": (self.time - self.exposed) / PS_PER_S,
        }


@dataclass
class _Sums:
    purposes: dict[str, _Use] = field(default_factory=dict)
    kinds: dict[str, _Use] = field(default_factory=dict)
    loads: dict[World, Any] = field(default_factory=dict)  # bytes by link

    def add(self, purpose: str, kind: str, nbytes: int, time: int, exposed: int, times: int) -> None:
        for table, name in ((self.purposes, purpose or "other"), (self.kinds, kind)):
            table.setdefault(name, _Use()).add(nbytes, time, exposed, times)

    def load(self, world: World, loads: Any, times: int) -> None:
        self.loads[world] = self.loads.get(world, 0) + loads * times


def communication(
    calls: Sequence[tuple[Executable, int]],
    step_s: float,
    uncaptured: Iterable[UncapturedCollective] = (),
    network: World | None = None,
    threshold: float = THRESHOLD,
) -> dict[str, Any] | None:
    """Communication of a step's executables, each with how often it runs, and of what it asks for outside of them,
    on `network`; None where nothing is a collective. Fields: `communication` in docs/summary.md.

    A collective is exposed while no engine computes (tensor, vector, scalar, gpsimd): nothing hides it then.
    """
    sums = _Sums()
    for executable, times in calls:
        if executable.program.ranks > 1:
            _add(sums, executable, times)
    for each in uncaptured:
        time = round(each.cost.seconds * PS_PER_S)
        sums.add(each.purpose, each.request.kind, each.nbytes, time, time, 1)
        if network is not None:
            sums.load(network, each.cost.loads, 1)
    if not sums.kinds:
        return None
    exposed = sum(use.exposed for use in sums.kinds.values()) / PS_PER_S
    total = sum(use.time for use in sums.kinds.values()) / PS_PER_S
    links = _links(sums, step_s)
    found = {
        "purposes": {name: sums.purposes[name].as_json() for name in PURPOSES if name in sums.purposes},
        "kinds": {name: use.as_json() for name, use in sorted(sums.kinds.items())},
        "time_s": total,
        "exposed_s": exposed,
        "hidden_s": total - exposed,
        "share": exposed / step_s if step_s else 0.0,
        "ratio": total / (step_s - exposed) if step_s > exposed else None,
        "links": links,
        "busiest_link": max(links.values(), key=lambda use: use["busy_s"], default=None),
    }
    return judged(found, step_s, threshold)


def judged(found: Mapping[str, Any], step_s: float, threshold: float) -> dict[str, Any]:
    """What `communication` found, with whether gradients take more than a share of the step, hidden or not."""
    gradient = found["purposes"].get("gradient", {"time_s": 0.0})["time_s"]
    share = gradient / step_s if step_s else 0.0
    return {**found, "gradient_share": share, "threshold": threshold, "flagged": share > threshold}


def _add(sums: _Sums, executable: Executable, times: int) -> None:
    program, outline = executable.program, executable.outline
    for number, (start, end) in outline.collectives.items():
        given = program.calls[number]
        routine = program.routines[given.routine]
        asked = collective_of(routine)
        assert asked is not None
        exposed = end - start - covered(outline.computing, start, end)
        sums.add(given.purpose, asked.kind, buffer_bytes(routine), end - start, exposed, times)
        sums.load(world(program), cost_of(program, routine, asked).loads, times)


def covered(intervals: Ints, start: int, end: int) -> int:
    """How much of [start, end) the intervals cover."""
    inside = np.minimum(intervals[:, 1], end) - np.maximum(intervals[:, 0], start)
    return int(np.maximum(inside, 0).sum())


def busiest(loads: Mapping[World, Any]) -> tuple[str, float, float]:
    """The link that is busy longest, the bytes that take it, and seconds; loads: bytes by link, of each world."""
    found = ("", 0.0, 0.0)
    for each, carried in loads.items():
        busy = np.asarray(carried) / np.maximum(each.network.rates, 1)
        link = int(busy.argmax())
        if busy[link] > found[2]:
            found = (each.network.name(link), float(carried[link]), float(busy[link]))
    return found


def _links(sums: _Sums, step_s: float) -> dict[str, dict[str, Any]]:
    """By class of links: bytes over those of one instance, the busiest of the class and how long it is busy."""
    found: dict[str, dict[str, Any]] = {}
    for each, loads in sums.loads.items():
        for name, numbers in _by_class(each.network).items():
            use = _class(each.network, np.asarray(loads), numbers, step_s)
            if use["busy_s"] <= 0:
                continue
            before = found.get(name)
            if before is None or use["busy_s"] > before["busy_s"]:
                use["class_bytes"] += before["class_bytes"] if before else 0.0
                found[name] = use
            else:
                before["class_bytes"] += use["class_bytes"]
    return dict(sorted(found.items(), key=lambda item: -item[1]["busy_s"]))


def _by_class(network: Network) -> dict[str, Ints]:
    each = network.cluster.instances * len(network.template)
    kinds = np.array([_CLASSES[link.kind] for link in network.template])
    found = {}
    for name in dict.fromkeys(kinds.tolist()):
        local = np.flatnonzero(kinds == name)
        found[name] = (np.arange(network.cluster.instances)[:, None] * len(network.template) + local).reshape(-1)
    if network.joints:
        joints = np.arange(each, each + len(network.joints))
        found["NeuronLink"] = np.concatenate([found.get("NeuronLink", joints[:0]), joints])
    return found


def _class(network: Network, loads: Any, numbers: Ints, step_s: float) -> dict[str, Any]:
    mine = loads[numbers]
    busy = mine / np.maximum(network.rates[numbers], 1)
    most = int(busy.argmax())
    first = numbers < len(network.template)
    return {
        "link": network.name(int(numbers[most])),
        "bytes": float(mine[most]),
        "busy_s": float(busy[most]),
        "share": float(busy[most]) / step_s if step_s else 0.0,
        "class_bytes": float(mine[first].sum()),
    }
