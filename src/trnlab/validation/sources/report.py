# SPDX-License-Identifier: Apache-2.0
"""Results of kernels timed from their sources, as text and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from statistics import median

from trnlab.units import format_bytes, format_time
from trnlab.validation.anchors import Split
from trnlab.validation.sources.observed import Quantity
from trnlab.validation.sources.results import KernelRow, TimedKernel
from trnlab.validation.sources.versions import MODEL, version


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Errors of one group and split as shares; None where all of it was refused."""

    group: str
    split: Split
    kernels: int
    refused: int
    median: float | None = None
    percentile_90: float | None = None
    worst: float | None = None


SPLITS = (Split.CALIBRATION, Split.CHECK)
DISTINCT = 0.05  # variants that differ by less are not ordered


def report(rows: Sequence[KernelRow]) -> str:
    """When and by what it was made, and a line a kernel, with what was compared of those with profiles; then by group
    and split median, 90th percentile and worst error and refusals; then the order of variants."""
    results = [row.timed for row in rows]
    return "\n".join([*origin(rows), "", *map(_row, rows), "", *_summary_lines(results), *_band_lines(rows)])


def _row(row: KernelRow) -> str:
    if row.band is None:
        return line(row.timed)
    low, high = map(format_time, row.band)
    names = [f"{name} {format_time(ps)}" for name, ps in row.alternatives if ps != row.timed.predicted]
    return f"{line(row.timed)}\n      {low} to {high}{': ' if names else ''}{', '.join(names)}"


def covered(rows: Sequence[KernelRow]) -> dict[tuple[str, Split], tuple[int, int]]:
    """By group and split: of how many kernels the band holds what was measured, and of how many there is one."""
    found: dict[tuple[str, Split], tuple[int, int]] = {}
    for row in rows:
        if row.band is not None:
            key, (low, high) = (row.timed.kernel.group, row.timed.kernel.split), row.band
            inside, count = found.get(key, (0, 0))
            found[key] = inside + (low <= row.timed.kernel.measured <= high), count + 1
    return found


def _band_lines(rows: Sequence[KernelRow]) -> list[str]:
    lines = [
        f"{f'{group}, {split.value}':<28}{inside:>4} of {count}"
        for (group, split), (inside, count) in covered(rows).items()
    ]
    return ["", "measured within the band of the alternatives", *lines] if lines else []


def origin(rows: Sequence[KernelRow]) -> list[str]:
    """When the rows were made, by which version of the model and under which policy, and whether that is this one."""
    made = dict.fromkeys((row.made, row.model, row.policy) for row in rows)
    present = version(MODEL)
    return [
        f"kernels from their own sources, timed on {date} under the policy {policy!r} by the model {model}"
        + (" (this one)" if model == present else f" (this one is {present}, and may say otherwise)")
        for date, model, policy in made
    ]


def line(timed: TimedKernel) -> str:
    """One kernel: measured, predicted, error."""
    kernel = timed.kernel
    start = f"{kernel.id} {kernel.name:<58}{kernel.split.value:<12}{format_time(kernel.measured):>10}"
    if timed.predicted is None:
        return f"{start}   refused  {timed.refusal}"
    first = f"{start}{format_time(timed.predicted):>11}{timed.error:>+9.1%}"
    return "\n".join([first, *map(_quantity, timed.quantities)])


def _quantity(q: Quantity) -> str:
    error = "" if q.error is None else f"{q.error:+.1%}"
    return f"      {q.name:<70}{_show(q.measured, q.unit):>11}{_show(q.predicted, q.unit):>11}{error:>9}"


def _show(value: float, unit: str) -> str:
    return format_time(value) if unit == "ps" else format_bytes(value) if unit == "B" else f"{value:.0f}"


def to_json(rows: Sequence[KernelRow]) -> str:
    """The same as JSON: times in seconds."""
    results = [row.timed for row in rows]
    kernels = [
        {
            "id": r.kernel.id,
            "name": r.kernel.name,
            "chip": r.kernel.chip,
            "split": r.kernel.split.value,
            "repository": r.kernel.repository,
            "commit": r.kernel.commit,
            "measured": r.kernel.measured / 1e12,
            "predicted": None if r.predicted is None else r.predicted / 1e12,
            "error": r.error,
            "refusal": r.refusal,
            "instructions": r.instructions,
            "quantities": [_plain(q) for q in r.quantities],
            "made": row.made,
            "model": row.model,
            "policy": row.policy,
            "alternatives": {name: ps / 1e12 for name, ps in row.alternatives},
        }
        for r, row in zip(results, rows)
    ]
    count, wrong = pairs(results)
    ordered = {"count": count, "wrong": [[slow.kernel.id, fast.kernel.id] for slow, fast in wrong]}
    return json.dumps(
        {"kernels": kernels, "summary": [asdict(s) for s in summaries(results)], "pairs": ordered}, indent=2
    )


def _plain(q: Quantity) -> dict[str, object]:
    scale = 1e12 if q.unit == "ps" else 1
    unit = {"ps": "s", "B": "byte", "": "count"}[q.unit]
    return {"name": q.name, "unit": unit, "measured": q.measured / scale, "predicted": q.predicted / scale}


def summaries(results: Sequence[TimedKernel]) -> list[ErrorSummary]:
    """By group and split, for those that there are."""
    keys = dict.fromkeys((r.kernel.group, s) for r in results for s in SPLITS)
    found = [
        summary(group, split, [r for r in results if (r.kernel.group, r.kernel.split) == (group, split)])
        for group, split in keys
    ]
    return [s for s in found if s.kernels]


def summary(group: str, split: Split, mine: Sequence[TimedKernel]) -> ErrorSummary:
    """Summary of kernels of one group and split."""
    errors = sorted(abs(r.error) for r in mine if r.error is not None)
    if not errors:
        return ErrorSummary(group, split, len(mine), len(mine))
    middle, most = median(errors), errors[math.ceil(0.9 * len(errors)) - 1]
    return ErrorSummary(group, split, len(mine), len(mine) - len(errors), middle, most, errors[-1])


def pairs(results: Sequence[TimedKernel]) -> tuple[int, list[tuple[TimedKernel, TimedKernel]]]:
    """Pairs of variants of a kernel that differ by more than 5 % on the chip: how many there are, and those that are
    predicted in the wrong order, the slower one on the chip first."""
    known = [r for r in results if r.predicted is not None and r.kernel.problem]
    families: dict[tuple[str, str], list[TimedKernel]] = {}
    for r in known:
        families.setdefault((r.kernel.chip, r.kernel.problem), []).append(r)
    count, wrong = 0, []
    for family in families.values():
        for a, b in combinations(sorted(family, key=lambda r: -r.kernel.measured), 2):
            if a.kernel.measured > b.kernel.measured * (1 + DISTINCT):
                count += 1
                wrong += [(a, b)] if (a.predicted or 0) <= (b.predicted or 0) else []
    return count, wrong


def typical_errors(results: Sequence[TimedKernel]) -> dict[str, dict[Split, list[float]]]:
    """Per quantity of the profiles and split: the sizes of the errors of those that were measured."""
    sizes: dict[str, dict[Split, list[float]]] = {}
    for r in results:
        for q in r.quantities:
            if q.error is not None:
                sizes.setdefault(q.name, {}).setdefault(r.kernel.split, []).append(abs(q.error))
    return sizes


def _summary_lines(results: Sequence[TimedKernel]) -> list[str]:
    lines = [f"{'':<28}{'kernels':>8}{'refused':>9}{'median':>9}{'90 %':>9}{'worst':>9}"]
    for s in summaries(results):
        shares = [f"{x:>9.1%}" if x is not None else f"{'-':>9}" for x in (s.median, s.percentile_90, s.worst)]
        lines.append(f"{f'{s.group}, {s.split.value}':<28}{s.kernels:>8}{s.refused:>9}{''.join(shares)}")
    return [*lines, *_quantity_lines(results), *_pair_lines(results)]


def _quantity_lines(results: Sequence[TimedKernel]) -> list[str]:
    rows = typical_errors(results)
    if not rows:
        return []
    head = "".join(f"{s.value:>16}{'worst':>9}" for s in SPLITS)
    lines = ["", f"{'median errors in the profiles':<36}{head}"]
    for name, by_split in rows.items():
        found = [by_split.get(s, []) for s in SPLITS]
        shares = [f"{median(v):>16.1%}{max(v):>9.1%}" if v else f"{'-':>16}{'-':>9}" for v in found]
        lines.append(f"{name:<36}{''.join(shares)}")
    return lines


def _pair_lines(results: Sequence[TimedKernel]) -> list[str]:
    count, wrong = pairs(results)
    if not count:
        return []
    head = f"{count - len(wrong)} of {count} pairs of variants that differ by more than {DISTINCT:.0%} are in order"
    return ["", head + (", not these (the slower one first):" if wrong else ""), *map(_pair, wrong)]


def _pair(pair: tuple[TimedKernel, TimedKernel]) -> str:
    slow, fast = (f"{format_time(r.kernel.measured)} ({format_time(r.predicted or 0)} predicted)" for r in pair)
    names = (f"{r.kernel.id} {r.kernel.name}" for r in pair)
    return "  " + ", ".join(f"{name}: {time}" for name, time in zip(names, (slow, fast)))
