# SPDX-License-Identifier: Apache-2.0
"""Results of kernels timed from their sources, as sections of a document and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from trnlab.documents import TERMINAL, Document, Note, Section, Table
from trnlab.documents.html import first_up
from trnlab.units import format_bytes, format_time
from trnlab.validation.anchors import Split
from trnlab.validation.sources.observed import Quantity
from trnlab.validation.sources.order import DISTINCT, RankCorrelation, correlations, overall, pairs
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
_HEAD = ("kernel", "used for", "measured", "predicted", "error")


def document(rows: Sequence[KernelRow]) -> Document:
    """Kernels alone."""
    return Document("Kernels", list(sections(rows)), over="trnlab validate --sources", record=lambda: to_json(rows))


def sections(rows: Sequence[KernelRow]) -> Iterator[Section]:
    """When and by what it was made, and a line a kernel, with what was compared of those with profiles; then by group
    and split median, 90th percentile and worst error and refusals; then the order of variants. Nothing where there
    is no row."""
    if not rows:
        return
    results = [row.timed for row in rows]
    kernels = Table([line for row in rows for line in _lines(row)], _HEAD, (2, 3, 4))
    made = [Note(said) for said in origin(rows)]
    yield Section(heading="Kernels from their own sources", parts=[*made, Note("", on=TERMINAL), kernels])
    yield Section(heading="Errors of kernels", parts=[_summaries(results)])
    yield from _quantities(results)
    yield from _order(results)
    yield from _bands(rows)


def _lines(row: KernelRow) -> Iterator[tuple[str, ...]]:
    """One kernel: measured, predicted, error; below it what its profile says, and what other choices would give."""
    timed, kernel = row.timed, row.timed.kernel
    start = (f"{kernel.id} {kernel.name}", kernel.split.value, format_time(kernel.measured))
    if timed.predicted is None:
        yield *start, f"refused  {timed.refusal}"
    else:
        yield *start, format_time(timed.predicted), f"{timed.error:+.1%}"
        yield from map(_quantity, timed.quantities)
    if row.band is not None:
        low, high = map(format_time, row.band)
        names = [f"{name} {format_time(ps)}" for name, ps in row.alternatives if ps != timed.predicted]
        yield (f"      {low} to {high}{': ' if names else ''}{', '.join(names)}",)


def covered(rows: Sequence[KernelRow]) -> dict[tuple[str, Split], tuple[int, int]]:
    """By group and split: of how many kernels the band holds what was measured, and of how many there is one."""
    found: dict[tuple[str, Split], tuple[int, int]] = {}
    for row in rows:
        if row.band is not None:
            key, (low, high) = (row.timed.kernel.group, row.timed.kernel.split), row.band
            inside, count = found.get(key, (0, 0))
            found[key] = inside + (low <= row.timed.kernel.measured <= high), count + 1
    return found


def _bands(rows: Sequence[KernelRow]) -> Iterator[Section]:
    lines = [
        (f"{group}, {split.value}", f"{inside} of {count}")
        for (group, split), (inside, count) in covered(rows).items()
    ]
    if lines:
        yield Section("measured within the band of the alternatives", [Table(lines, numbers=[1])])


def origin(rows: Sequence[KernelRow]) -> list[str]:
    """When the rows were made, by which version of the model and under which policy, and whether that is this one."""
    made = dict.fromkeys((row.made, row.model, row.policy) for row in rows)
    present = version(MODEL)
    return [
        f"kernels from their own sources, timed on {date} under the policy {policy!r} by the model {model}"
        + (" (this one)" if model == present else f" (this one is {present}, and may say otherwise)")
        for date, model, policy in made
    ]


def _quantity(q: Quantity) -> tuple[str, ...]:
    error = "" if q.error is None else f"{q.error:+.1%}"
    return f"      {q.name}", "", _show(q.measured, q.unit), _show(q.predicted, q.unit), error


def _show(value: float, unit: str) -> str:
    return format_time(value) if unit == "ps" else format_bytes(value) if unit == "B" else f"{value:.0f}"


def to_json(rows: Sequence[KernelRow]) -> dict[str, Any]:
    """The same as JSON data: times in seconds."""
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
    ranks = correlations(results)
    ordered = {
        "count": count,
        "wrong": [[slow.kernel.id, fast.kernel.id] for slow, fast in wrong],
        "tau": overall(ranks).tau,
        "problems": [asdict(c) | {"tau": c.tau} for c in ranks],
    }
    return {"kernels": kernels, "summary": [asdict(s) for s in summaries(results)], "pairs": ordered}


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


def typical_errors(results: Sequence[TimedKernel]) -> dict[str, dict[Split, list[float]]]:
    """Per quantity of the profiles and split: the sizes of the errors of those that were measured."""
    sizes: dict[str, dict[Split, list[float]]] = {}
    for r in results:
        for q in r.quantities:
            if q.error is not None:
                sizes.setdefault(q.name, {}).setdefault(r.kernel.split, []).append(abs(q.error))
    return sizes


def _summaries(results: Sequence[TimedKernel]) -> Table:
    rows = []
    for s in summaries(results):
        shares = [f"{x:.1%}" if x is not None else "-" for x in (s.median, s.percentile_90, s.worst)]
        rows.append((f"{s.group}, {s.split.value}", str(s.kernels), str(s.refused), *shares))
    return Table(rows, ("", "kernels", "refused", "median", "90 %", "worst"), range(1, 6))


def _quantities(results: Sequence[TimedKernel]) -> Iterator[Section]:
    rows = []
    for name, by_split in typical_errors(results).items():
        found = [by_split.get(s, []) for s in SPLITS]
        shares = [share for v in found for share in ((f"{median(v):.1%}", f"{max(v):.1%}") if v else ("-", "-"))]
        rows.append((name, *shares))
    if rows:
        head = ("median errors in the profiles", *(cell for s in SPLITS for cell in (s.value, "worst")))
        yield Section(heading="Errors in the profiles", parts=[Table(rows, head, range(1, 5))])


def _order(results: Sequence[TimedKernel]) -> Iterator[Section]:
    count, wrong = pairs(results)
    if not count:
        return
    head = f"{count - len(wrong)} of {count} pairs of variants that differ by more than {DISTINCT:.0%} are in order"
    title = head + (", not these (the slower one first):" if wrong else "")
    yield Section(title, [Note(_pair(pair)) for pair in wrong], heading="Order of variants", say=first_up(title))
    ranks = [c for c in correlations(results) if c.pairs]
    lines = [_rank(c) for c in [*ranks, overall(ranks)]]
    columns = ("Kendall's tau", "chip", "variants", "pairs", "tau", "ties of the chip that are ties here")
    yield Section(heading="Rank correlation of variants", parts=[Table(lines, columns, range(2, 6))])


def _rank(c: RankCorrelation) -> tuple[str, ...]:
    tau = "-" if c.tau is None else f"{c.tau:+.2f}"
    return c.problem, c.chip, str(c.variants), str(c.pairs), tau, f"{c.tied[0]} of {c.tied[1]}"


def _pair(pair: tuple[TimedKernel, TimedKernel]) -> str:
    slow, fast = (f"{format_time(r.kernel.measured)} ({format_time(r.predicted or 0)} predicted)" for r in pair)
    names = (f"{r.kernel.id} {r.kernel.name}" for r in pair)
    return ", ".join(f"{name}: {time}" for name, time in zip(names, (slow, fast)))
