# SPDX-License-Identifier: Apache-2.0
"""The network against what was printed of real ones: `data/fabric/printed.toml` holds runs and the split's rule."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from statistics import median
from typing import Any

import numpy as np

from trnlab.chips.interconnects import RUNTIMES, beside_others
from trnlab.documents import Section, Table
from trnlab.fabric import network
from trnlab.fabric.cluster import parse
from trnlab.fabric.collectives import permute
from trnlab.fabric.nccom import Bench
from trnlab.fabric.selection import cost_of
from trnlab.fabric.timing import cost
from trnlab.fabric.world import counted
from trnlab.units import MIB
from trnlab.validation.anchors import Split

FEW = 3  # rows: runs of fewer are checks


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """One command that somebody ran: rows of bytes, microseconds and what they may be used for."""

    name: str
    operation: str
    target: str
    ranks: int
    runtime: str
    source: str
    rows: tuple[tuple[int, float, Split], ...]
    group: int = 0  # ranks of each replica group, 0 for all
    pairs: tuple[tuple[int, int], ...] = ()  # of a permute, by default each rank and the next
    inside: str = ""  # the algorithm within an instance, where it is known
    times: int = 1  # operations that a row is of
    streams: int = 1  # that were at work at once
    # whether parts differ, so that ranks tell each other how many elements come (`fabric.world.counted`)
    counted: bool = False


@dataclass(frozen=True, slots=True)
class TimedRow:
    """One row and its prediction. Times in microseconds."""

    run: PublishedRun
    size: int
    measured: float
    predicted: float
    split: Split
    algorithm: str

    @property
    def error(self) -> float:
        """Relative to what was measured; positive when the prediction is too long."""
        return self.predicted / self.measured - 1


def load() -> tuple[PublishedRun, ...]:
    """All printed runs."""
    text = files(__package__).joinpath("data", "fabric", "printed.toml").read_text(encoding="utf-8")
    return tuple(_run(entry) for entry in tomllib.loads(text)["run"])


def _run(entry: dict[str, Any]) -> PublishedRun:
    rows = tuple((int(size), float(us), Split(split)) for size, us, split in entry.pop("rows"))
    pairs = tuple((int(a), int(b)) for a, b in entry.pop("pairs", ()))
    return PublishedRun(rows=rows, pairs=pairs, **entry)


def validate(runs: Iterable[PublishedRun] | None = None) -> list[TimedRow]:
    """Time every row of the runs."""
    return [row for run in (load() if runs is None else runs) for row in _timed(run)]


def _timed(run: PublishedRun) -> Iterable[TimedRow]:
    costs = RUNTIMES[run.runtime]
    net = network.build(parse(run.target), beside_others(costs) if run.streams > 1 else costs)
    if run.operation == "write":
        pairs = [(chip, run.ranks + chip) for chip in range(run.ranks)]
        each = net.cluster.target.chips
        placed = np.concatenate([np.arange(run.ranks), np.arange(run.ranks) + each])
        for size, measured, split in run.rows:
            seconds = cost(permute(pairs, 2 * run.ranks), net, placed, size).seconds
            yield TimedRow(run, size, measured, seconds * 1e6, split, "write")
        return
    pairs = list(run.pairs) or [(rank, (rank + 1) % run.ranks) for rank in range(run.ranks)]
    each = run.group or run.ranks
    groups = [range(first, first + each) for first in range(0, run.ranks, each)]
    bench = Bench(run.operation, net, net.cluster.placed(run.ranks), groups, "uint8", pairs)
    for size, measured, split in run.rows:
        forced = {"inside": run.inside} if run.inside else {}
        schedule = bench.schedule(size, **forced)
        found = cost_of(bench.asked, net, bench.placed, size, **forced)
        if run.counted:
            found = counted(found, bench.asked, net, bench.placed)
        seconds = run.times * found.seconds
        yield TimedRow(run, size, measured, seconds * 1e6, split, schedule.algorithm)


def to_json(rows: Sequence[TimedRow]) -> list[dict[str, Any]]:
    """Every row, times in seconds."""
    return [
        {
            "run": row.run.name,
            "target": row.run.target,
            "runtime": row.run.runtime,
            "source": row.run.source,
            "bytes": row.size,
            "measured": row.measured * 1e-6,
            "predicted": row.predicted * 1e-6,
            "error": row.error,
            "algorithm": row.algorithm,
            "used_for": row.split.value,
        }
        for row in rows
    ]


def sections(rows: Sequence[TimedRow]) -> Iterator[Section]:
    """Every row with its error, then median and worst by what rows were used for; nothing where there is none."""
    if not rows:
        return
    lines: list[tuple[str, ...]] = []
    for run in dict.fromkeys(row.run for row in rows):
        lines.append((f"{run.name} ({run.target}, assumed; {run.runtime})",))
        lines += [_line(row) for row in rows if row.run is run]
    yield Section("collectives, as printed", [Table(lines, numbers=range(4))])
    totals = [_summary(title, chosen) for title, chosen in groups(rows)]
    table = Table(totals, ("", "rows", "median", "worst", "the worst one"), (1, 2, 3))
    yield Section(heading="Errors of collectives", parts=[table])


def groups(rows: Sequence[TimedRow]) -> list[tuple[str, list[TimedRow]]]:
    """Lines of the summary with their rows: of each split all, and by what bounds them."""
    return [
        (f"{title}, {split.value}", chosen)
        for title, belongs in (("collectives", bool), ("up to 1 MiB", _small), ("above 1 MiB", _large))
        for split in (Split.CALIBRATION, Split.CHECK)
        if (chosen := [row for row in rows if row.split is split and belongs(row)])
    ]


def _small(row: TimedRow) -> bool:
    return row.size <= MIB


def _large(row: TimedRow) -> bool:
    return row.size > MIB


def _line(row: TimedRow) -> tuple[str, ...]:
    times = f"{row.measured:.2f} us", f"{row.predicted:.2f} us"
    return f"  {row.size} B", *times, f"{row.error:+.1%}", row.algorithm, row.split.value


def _summary(title: str, chosen: Sequence[TimedRow]) -> tuple[str, ...]:
    worst = max(chosen, key=lambda row: abs(row.error))
    errors = [abs(row.error) for row in chosen]
    shares = f"{median(errors):.1%}", f"{max(errors):.1%}"
    return title, str(len(chosen)), *shares, f"{worst.run.name}, {worst.size} B"
