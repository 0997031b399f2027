# SPDX-License-Identifier: Apache-2.0
"""A measured table of a collective against the prediction: healthy, or which part of the network is not.

Each suspect predicts the whole table: a card or a wire at a share of its rate, steps or launches that take longer,
another algorithm for some sizes. The one whose table comes closest to the measured one is named, with all parts that
predict the same: one collective over all ranks cannot tell alike parts apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from trnlab.chips.spec import Figure
from trnlab.fabric.choice import NAMES
from trnlab.fabric.flows import Floats
from trnlab.fabric.measured import Measured
from trnlab.fabric.nccom import Bench
from trnlab.fabric.network import Network
from trnlab.fabric.schedule import Schedule
from trnlab.fabric.timing import CollectiveCost, Layouts, cost

TOLERANCE = 0.1
GRID = (0.75, 0.5, 0.25, 0.1)
REFINED = 3  # suspects whose severity is found more exactly
_SHOWN = 4  # names of parts; of more the first and the last
_THIRDS = 5
_FACTORS = tuple(1.02**n for n in range(1, 250))  # how many times a step takes
BETWEEN = ("mesh", "rdh", "ring")


@dataclass(frozen=True)
class Suspect:
    """A part, how bad it would be, and what the table would be then."""

    kind: str  # rail, link, latency or algorithm
    parts: tuple[str, ...]  # names that predict the same
    severity: float  # share of the rate left, microseconds more, or how many times a step takes; 0 for an algorithm
    times: Floats
    off: float  # how far the table stays off, the root of mean squares of the logarithms of ratios

    @property
    def text(self) -> str:
        """In a sentence."""
        if self.kind in ("rail", "link"):
            what = "a network card" if self.kind == "rail" else "a wire"
            some = f"one of {len(self.parts)} alike: " if len(self.parts) > 1 else ""
            return f"{what} at {self.severity:.0%} of its rate, {some}{_listed(self.parts)}"
        if self.kind == "algorithm":
            return f"another algorithm than the one expected: {self.parts[0]}"
        if self.parts == ("launch",):
            return f"latency: every collective takes {self.severity:.1f} us longer, whatever its size"
        return f"latency: {self.parts[0]} take {self.severity:.1f} times as long"


@dataclass(frozen=True)
class Health:
    """Measured and expected microseconds by size; what is suspected, the likeliest first, where sizes are off."""

    rows: tuple[Measured, ...]
    expected: Floats
    algorithms: tuple[str, ...]
    tolerance: float
    suspects: tuple[Suspect, ...]

    @property
    def off(self) -> list[bool]:
        """Which sizes are farther off than the tolerance."""
        expected = self.expected.tolist()
        return [abs(row.microseconds / t - 1) > self.tolerance for row, t in zip(self.rows, expected)]

    @property
    def healthy(self) -> bool:
        """Whether none is."""
        return not any(self.off)

    def as_json(self) -> dict[str, object]:
        """For programs."""
        rows = zip(self.rows, self.expected.tolist(), self.algorithms, self.off)
        return {
            "healthy": self.healthy,
            "tolerance": self.tolerance,
            "explained": self.explained,
            "rows": [
                {
                    "size(B)": row.size,
                    "measured(us)": row.microseconds,
                    "expected(us)": expected,
                    "algorithm": algorithm,
                    "off": off,
                }
                for row, expected, algorithm, off in rows
            ],
            "suspects": [
                {"kind": s.kind, "parts": list(s.parts), "severity": s.severity, "off": s.off, "text": s.text}
                for s in self.suspects
            ],
        }

    @property
    def explained(self) -> bool:
        """Whether the first suspect brings every size within the tolerance."""
        if not self.suspects:
            return False
        ratios = np.array([row.microseconds for row in self.rows]) / self.suspects[0].times
        return bool((np.abs(ratios - 1) <= self.tolerance).all())


def examine(
    rows: Sequence[Measured],
    bench: Bench,
    tolerance: float = TOLERANCE,
    baseline: Sequence[Measured] = (),
) -> Health:
    """Hold measured rows against a collective on its healthy network.

    `baseline`: rows of the same test when all was well. What the model misses there is taken out of the expectation.
    """
    seen = np.array([row.microseconds for row in rows])
    sizes = [row.size for row in rows]
    test, bias = _Test(bench, sizes), _bias(sizes, baseline, bench)
    names = tuple(schedule.algorithm for schedule in test.schedules)
    made = Health(tuple(rows), test.healthy * bias, names, tolerance, ())
    if made.healthy:
        return made
    found = sorted(_suspects(test, seen / bias, made.off), key=lambda s: s.off)
    found = [_scaled(suspect, bias) for suspect in found]
    before = _distance(seen, made.expected)
    return replace(made, suspects=tuple(s for s in found if s.off < before / 2)[:REFINED])


def _bias(sizes: Sequence[int], baseline: Sequence[Measured], bench: Bench) -> Floats:
    """Measured over predicted when all was well, at these sizes: between those of the baseline by logarithms."""
    if not baseline:
        return np.ones(len(sizes))
    ratios = np.array([row.microseconds for row in baseline]) / _Test(bench, [r.size for r in baseline]).healthy
    known = np.log([row.size for row in baseline])
    return np.exp(np.interp(np.log(sizes), known, np.log(ratios)))


def _scaled(suspect: Suspect, bias: Floats) -> Suspect:
    return replace(suspect, times=suspect.times * bias)


@dataclass(frozen=True, eq=False)
class _Test:
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


def _distance(seen: Floats, times: Floats) -> float:
    return float(np.sqrt(np.mean(np.log(seen / times) ** 2)))


# -- suspects -------------------------------------------------------------------------------------------------------
def _suspects(test: _Test, seen: Floats, off: Sequence[bool]) -> Iterator[Suspect]:
    """The best severity of each suspect."""
    yield from _algorithms(test, seen, off)
    yield from _launch(test, seen)
    yield from _steps(test, seen)
    coarse = [_best(test, seen, kind, group) for kind, group in _classes(test)]
    coarse.sort(key=lambda pair: pair[0].off)
    for suspect, numbers in coarse[:2]:
        yield _refined(test, seen, suspect, numbers)


def _launch(test: _Test, seen: Floats) -> Iterator[Suspect]:
    late = float(np.median(seen - test.healthy))
    if late > 0:
        times = test.healthy + late
        yield Suspect("latency", ("launch",), late, times, _distance(seen, times))


def _steps(test: _Test, seen: Floats) -> Iterator[Suspect]:
    """Steps within or between instances that take longer."""
    names = {"step": "steps within an instance", "network_step": "steps between instances"}
    network = test.bench.network
    for late in names if network.cluster.instances > 1 else ("step",):

        def times(factor: float, late: str = late) -> Floats:
            figure: Figure = getattr(network.costs, late)
            changed: dict[str, Any] = {late: figure._replace(value=figure.value * factor)}
            slower = replace(network.costs, **changed)
            return test.times(replace(network, costs=slower))

        factor, exact = 2.0, times(2.0)
        for _ in range(2):  # times are nearly linear in the factor: drawn through two points, then nearer to the goal
            slope = (exact - test.healthy) / (factor - 1)
            rough = [(_distance(seen, test.healthy + (f - 1) * slope), f) for f in _FACTORS]
            factor = min(rough)[1]
            exact = times(factor)
        yield Suspect("latency", (names[late],), factor, exact, _distance(seen, exact))


def _algorithms(test: _Test, seen: Floats, off: Sequence[bool]) -> Iterator[Suspect]:
    """One other algorithm for the sizes that are off, within or between instances."""
    bench = test.bench
    if bench.operation not in ("all_reduce", "all_gather", "reduce_scatter"):
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
        yield Suspect("algorithm", (label,), 0.0, times, _distance(seen, times))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) < _SHOWN else f"{names[0]} to {names[-1]}"


def _short(size: int) -> str:
    for unit, letter in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if size >= unit and size % unit == 0:
            return f"{size // unit}{letter}"
    return str(size)


Numbers = tuple[int, ...]


def _classes(test: _Test) -> Iterator[tuple[str, list[Numbers]]]:
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


def _best(test: _Test, seen: Floats, kind: str, group: list[Numbers]) -> tuple[Suspect, Numbers]:
    """The first part of a group at the coarse severity that fits best."""
    network = test.bench.network
    tried = [(factor, test.times(_slowed(network, group[0], factor))) for factor in GRID]
    factor, times = min(tried, key=lambda pair: _distance(seen, pair[1]))
    names = tuple(_name(network, numbers) for numbers in group)
    return Suspect(kind, names, factor, times, _distance(seen, times)), group[0]


def _refined(test: _Test, seen: Floats, suspect: Suspect, numbers: Numbers) -> Suspect:
    """Between the neighbours on the coarse grid."""
    place = GRID.index(suspect.severity)
    high = GRID[place - 1] if place else 1.0
    low = GRID[place + 1] if place + 1 < len(GRID) else GRID[-1] / 2
    network = test.bench.network
    factor = _least(lambda x: _distance(seen, test.times(_slowed(network, numbers, x))), low, high)
    times = test.times(_slowed(network, numbers, factor))
    found = replace(suspect, severity=factor, times=times, off=_distance(seen, times))
    return min(found, suspect, key=lambda one: one.off)


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
