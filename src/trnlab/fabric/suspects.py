# SPDX-License-Identifier: Apache-2.0
"""What may be wrong with a network, and what a table of a collective would be then.

Each suspect predicts the whole table: a card or a wire at a share of its rate, steps or launches that take longer,
another algorithm for some sizes, or two of these at once. All parts that predict the same are one suspect: a
collective over all ranks cannot tell alike parts from each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np

from trnlab.chips.spec import Figure
from trnlab.fabric.choice import NAMES
from trnlab.fabric.flows import Floats
from trnlab.fabric.nccom import Bench
from trnlab.fabric.network import Network
from trnlab.fabric.schedule import Schedule
from trnlab.fabric.timing import CollectiveCost, Layouts, cost

GRID = (0.75, 0.5, 0.25, 0.1)
REFINED = 2  # classes of parts whose severity is found more exactly, and of which two are tried at once
_SHOWN = 4  # names of parts; of more the first and the last
_THIRDS = 5
_FACTORS = tuple(1.02**n for n in range(1, 250))  # how many times a step takes
BETWEEN = ("mesh", "rdh", "ring")
PARTS = ("rail", "link")


@dataclass(frozen=True, eq=False)
class Suspect:
    """A part, how bad it would be, and what the table would be then."""

    kind: str  # rail, link, latency, algorithm, or two
    parts: tuple[str, ...]  # names that predict the same
    severity: float  # share of the rate left, microseconds more, or how many times a step takes; 0 for an algorithm
    times: Floats
    off: float  # how far the table stays off, the root of mean squares of the logarithms of ratios
    network: Network | None = None  # that it would be; None where it is no property of a network
    both: tuple[Suspect, ...] = ()  # of two at once
    numbers: tuple[tuple[int, ...], ...] = ()  # the links of each part
    share: float = 0.0  # how likely it is, of all that was thought of

    @property
    def text(self) -> str:
        """In a sentence."""
        if self.both:
            return " and ".join(each.text for each in self.both)
        if self.kind in PARTS:
            what = "a network card" if self.kind == "rail" else "a wire"
            some = f"one or more of {len(self.parts)} alike: " if len(self.parts) > 1 else ""
            return f"{what} at {self.severity:.0%} of its rate, {some}{listed(self.parts)}"
        if self.kind == "algorithm":
            return f"another algorithm than the one expected: {self.parts[0]}"
        if self.parts == ("launch",):
            return f"latency: every collective takes {self.severity:.1f} us longer, whatever its size"
        return f"latency: {self.parts[0]} take {self.severity:.1f} times as long"

    def as_json(self) -> dict[str, object]:
        """For programs."""
        said = {"kind": self.kind, "parts": list(self.parts), "severity": self.severity, "off": self.off}
        both = {"both": [each.as_json() for each in self.both]} if self.both else {}
        return {**said, "share": self.share, "text": self.text, **both}


@dataclass(frozen=True, eq=False)
class ExpectedTable:
    """A collective at some sizes, whose schedules are made once."""

    bench: Bench
    sizes: Sequence[int]
    _layouts: Layouts = field(default_factory=dict)

    @cached_property
    def schedules(self) -> list[Schedule]:
        """By size."""
        return [self.bench.schedule(size) for size in self.sizes]

    @cached_property
    def costs(self) -> list[CollectiveCost]:
        """On the network as it should be, by size."""
        return self.on(self.bench.network)

    @cached_property
    def healthy(self) -> Floats:
        """Microseconds by size."""
        return np.array([made.seconds for made in self.costs]) * 1e6

    def times(self, network: Network) -> Floats:
        """The same on a network with the same wires."""
        return np.array([made.seconds for made in self.on(network)]) * 1e6

    def on(self, network: Network) -> list[CollectiveCost]:
        """What each size costs on a network with the same wires."""
        pairs = zip(self.schedules, self.sizes)
        return [cost(made, network, self.bench.placed, size, self._layouts) for made, size in pairs]


def distance(seen: Floats, times: Floats) -> float:
    """The root of mean squares of the logarithms of ratios."""
    return float(np.sqrt(np.mean(np.log(seen / times) ** 2)))


def single(test: ExpectedTable, seen: Floats, off: Sequence[bool]) -> list[Suspect]:
    """The best severity of each suspect by itself, the closest first."""
    found = [*_algorithms(test, seen, off), *_launch(test, seen), *_steps(test, seen)]
    coarse = sorted((_best(test, seen, kind, group) for kind, group in _classes(test)), key=lambda s: s.off)
    found += [_refined(test, seen, suspect) for suspect in coarse[:REFINED]]
    return sorted(found, key=lambda s: s.off)


def unseen(test: ExpectedTable, spread: float) -> list[Suspect]:
    """Parts whose loss of a quarter of their rate changes the table by less than `spread`, what a healthy one is off
    by itself: `off` is by how much, the most first."""
    slowed = [_at(test, test.healthy, kind, group, GRID[0]) for kind, group in _classes(test)]
    return sorted((suspect for suspect in slowed if suspect.off < spread), key=lambda s: -s.off)


def double(test: ExpectedTable, seen: Floats, alone: Sequence[Suspect]) -> Iterator[Suspect]:
    """Two at once: of different parts, and of a part with a later launch. Two parts that are alike are as one."""
    parts = [suspect for suspect in alone if suspect.kind in PARTS]
    for first, second in combinations(parts[:REFINED], 2):
        yield _together(test, seen, first, second)
    for part in parts[:REFINED]:
        yield _with_launch(test, seen, part)


def _together(test: ExpectedTable, seen: Floats, first: Suspect, second: Suspect) -> Suspect:
    """The best severities of two parts: by the grid, then each in turn."""
    a, b = first.numbers[0], second.numbers[0]

    def times(x: float, y: float) -> Floats:
        return test.times(_slowed(_slowed(test.bench.network, a, x), b, y))

    x, y = min(((x, y) for x in GRID for y in GRID), key=lambda pair: distance(seen, times(*pair)))
    for _ in range(2):
        x = _least(lambda x, y=y: distance(seen, times(x, y)), *_around(x))  # type: ignore[misc]
        y = _least(lambda y, x=x: distance(seen, times(x, y)), *_around(y))  # type: ignore[misc]
    network = _slowed(_slowed(test.bench.network, a, x), b, y)
    exact = times(x, y)
    both = replace(first, severity=x, times=exact), replace(second, severity=y, times=exact)
    return _two(seen, exact, network, both)


def _with_launch(test: ExpectedTable, seen: Floats, part: Suspect) -> Suspect:
    """The best severity of a part where every collective is late, too."""

    def late(x: float) -> tuple[float, Floats]:
        times = test.times(_slowed(test.bench.network, part.numbers[0], x))
        more = max(float(np.median(seen - times)), 0.0)
        return more, times + more

    x = min(GRID, key=lambda x: distance(seen, late(x)[1]))
    x = _least(lambda x: distance(seen, late(x)[1]), *_around(x))
    more, times = late(x)
    network = _later(_slowed(test.bench.network, part.numbers[0], x), more)
    launch = Suspect("latency", ("launch",), more, times, part.off)
    return _two(seen, times, network, (replace(part, severity=x, times=times), launch))


def _two(seen: Floats, times: Floats, network: Network, both: tuple[Suspect, ...]) -> Suspect:
    parts = tuple(name for each in both for name in each.parts)
    return Suspect("two", parts, 0.0, times, distance(seen, times), network, both)


def _launch(test: ExpectedTable, seen: Floats) -> Iterator[Suspect]:
    late = float(np.median(seen - test.healthy))
    if late > 0:
        times = test.healthy + late
        yield Suspect("latency", ("launch",), late, times, distance(seen, times), _later(test.bench.network, late))


def _later(network: Network, microseconds: float) -> Network:
    launch = network.costs.launch
    later = launch._replace(value=launch.value + 1000 * microseconds)
    return replace(network, costs=replace(network.costs, launch=later))


def _steps(test: ExpectedTable, seen: Floats) -> Iterator[Suspect]:
    """Steps within or between instances that take longer."""
    names = {"step": "steps within an instance", "network_step": "steps between instances"}
    network = test.bench.network
    for late in names if network.cluster.instances > 1 else ("step",):

        def slower(factor: float, late: str = late) -> Network:
            figure: Figure = getattr(network.costs, late)
            changed: dict[str, Any] = {late: figure._replace(value=figure.value * factor)}
            return replace(network, costs=replace(network.costs, **changed))

        factor, exact = 2.0, test.times(slower(2.0))
        for _ in range(2):  # times are nearly linear in the factor: drawn through two points, then nearer to the goal
            slope = (exact - test.healthy) / (factor - 1)
            rough = [(distance(seen, test.healthy + (f - 1) * slope), f) for f in _FACTORS]
            factor = min(rough)[1]
            exact = test.times(slower(factor))
        yield Suspect("latency", (names[late],), factor, exact, distance(seen, exact), slower(factor))


def _algorithms(test: ExpectedTable, seen: Floats, off: Sequence[bool]) -> Iterator[Suspect]:
    """One other algorithm for the sizes that are off, within or between instances."""
    bench = test.bench
    if not any(off) or bench.operation not in ("all_reduce", "all_gather", "reduce_scatter"):
        return
    many = bench.network.cluster.instances > 1
    for forced in [{"inside": name} for name in NAMES] + [{"between": name} for name in BETWEEN if many]:
        times = test.healthy.copy()
        for place in np.flatnonzero(off).tolist():
            schedule = bench.schedule(test.sizes[place], **forced)
            times[place] = cost(schedule, bench.network, bench.placed, test.sizes[place]).seconds * 1e6
        where, name = next(iter(forced.items()))
        switched = ", ".join(_short(size) for size, is_off in zip(test.sizes, off) if is_off)
        label = f"{name} {'within an instance' if where == 'inside' else 'between instances'} for {switched}"
        yield Suspect("algorithm", (label,), 0.0, times, distance(seen, times))


def listed(names: Sequence[str]) -> str:
    """Names, or the first and the last of many."""
    return ", ".join(names) if len(names) < _SHOWN else f"{names[0]} to {names[-1]}"


def _short(size: int) -> str:
    for unit, letter in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if size >= unit and size % unit == 0:
            return f"{size // unit}{letter}"
    return str(size)


Numbers = tuple[int, ...]


def _classes(test: ExpectedTable) -> Iterator[tuple[str, list[Numbers]]]:
    """Wires and cards that carry something, those with equal loads at every size together.

    Parts of the first instance stand for those of all: instances that do the same are alike.
    """
    loads = np.array([made.loads for made in test.costs])  # [size, link]
    groups: dict[bytes, tuple[str, list[Numbers]]] = {}
    for kind, numbers in _parts(test.bench.network):
        carried = np.sort(loads[:, numbers], axis=1)
        if carried.any():
            key = kind.encode() + np.round(carried).tobytes()
            groups.setdefault(key, (kind, []))[1].append(numbers)
    yield from groups.values()


def _parts(network: Network) -> Iterator[tuple[str, Numbers]]:
    """The links of each wire (both directions) and of each card (both sides) of the first instance."""
    for (a, b), number in sorted(network.wires.items()):
        if a < b:
            yield "link", (number, network.wires[b, a])
    for number, link in enumerate(network.template):
        if link.kind == "card" and link.way == "out" and network.cluster.instances > 1:
            yield "rail", (number, number + 1)
        elif link.way == "up":
            yield "link", (number, number + 1)


def _slowed(network: Network, numbers: Numbers, factor: float) -> Network:
    return network.with_rates(dict.fromkeys(numbers, factor))


def _best(test: ExpectedTable, seen: Floats, kind: str, group: list[Numbers]) -> Suspect:
    """The first part of a group at the coarse severity that fits best."""
    return min((_at(test, seen, kind, group, factor) for factor in GRID), key=lambda s: s.off)


def _at(test: ExpectedTable, seen: Floats, kind: str, group: list[Numbers], severity: float) -> Suspect:
    """The first part of a group at this share of its rate."""
    network = _slowed(test.bench.network, group[0], severity)
    names = tuple(_name(network, numbers) for numbers in group)
    times = test.times(network)
    return Suspect(kind, names, severity, times, distance(seen, times), network, numbers=tuple(group))


def _refined(test: ExpectedTable, seen: Floats, suspect: Suspect) -> Suspect:
    """Between the neighbours on the coarse grid."""
    network, numbers = test.bench.network, suspect.numbers[0]
    factor = _least(lambda x: distance(seen, test.times(_slowed(network, numbers, x))), *_around(suspect.severity))
    slowed = _slowed(network, numbers, factor)
    times = test.times(slowed)
    found = replace(suspect, severity=factor, times=times, off=distance(seen, times), network=slowed)
    return min(found, suspect, key=lambda one: one.off)


def _around(severity: float) -> tuple[float, float]:
    """The neighbours on the coarse grid."""
    place = GRID.index(severity) if severity in GRID else -1
    if place < 0:
        return severity / 1.3, min(1.3 * severity, 1.0)
    high = GRID[place - 1] if place else 1.0
    return (GRID[place + 1] if place + 1 < len(GRID) else GRID[-1] / 2), high


def _name(network: Network, numbers: Numbers) -> str:
    return network.name(numbers[0]).removesuffix(".out")


def _least(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function with one valley is least, by thirds of the logarithm."""
    a, b = math.log(low), math.log(high)
    for _ in range(_THIRDS):
        left, right = a + (b - a) / 3, b - (b - a) / 3
        if function(math.exp(left)) <= function(math.exp(right)):
            b = right
        else:
            a = left
    return math.exp((a + b) / 2)
