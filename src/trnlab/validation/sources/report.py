# SPDX-License-Identifier: Apache-2.0
"""Results of kernels timed from their sources, as text and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import combinations
from statistics import median

from trnlab.units import format_time
from trnlab.validation.anchors import Split
from trnlab.validation.sources.run import Timed

DISTINCT = 0.05  # variants that differ by less are not ordered


def report(results: Sequence[Timed]) -> str:
    """A line a kernel, then by split: median, 90th percentile, worst error, refusals, and the order of variants."""
    return "\n".join([*map(line, results), "", *_summary_lines(results)])


def line(timed: Timed) -> str:
    """One kernel: measured, predicted, error."""
    kernel = timed.kernel
    start = f"{kernel.id} {kernel.name:<58}{kernel.split.value:<12}{format_time(kernel.measured):>10}"
    if timed.predicted is None:
        return f"{start}   refused  {timed.refusal}"
    return f"{start}{format_time(timed.predicted):>11}{timed.error:>+9.1%}"


def to_json(results: Sequence[Timed]) -> str:
    """The same as JSON: times in seconds."""
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
        }
        for r in results
    ]
    return json.dumps({"kernels": kernels, "summary": [summary(s, results) for s in _splits(results)]}, indent=2)


def summary(split: Split, results: Sequence[Timed]) -> dict[str, object]:
    """Errors of one split as shares, refusals, and how many pairs of variants of a kernel are in the right order."""
    mine = [r for r in results if r.kernel.split is split]
    errors = sorted(abs(r.error) for r in mine if r.error is not None)
    right, pairs = ordered_pairs(mine)
    return {
        "split": split.value,
        "kernels": len(mine),
        "refused": len(mine) - len(errors),
        "median": median(errors) if errors else None,
        "percentile_90": errors[math.ceil(0.9 * len(errors)) - 1] if errors else None,
        "worst": errors[-1] if errors else None,
        "pairs": pairs,
        "pairs_in_order": right,
    }


def ordered_pairs(results: Sequence[Timed]) -> tuple[int, int]:
    """Pairs of variants (one source, chip, problem) that differ by more than 5 % on the chip, and how many of them
    are predicted in that order."""
    families: dict[object, list[Timed]] = {}
    for r in results:
        shapes = tuple(a for launch in r.kernel.launches[:1] for a in launch.arguments)
        families.setdefault((r.kernel.chip, r.kernel.repository, r.kernel.path, shapes), []).append(r)
    right = pairs = 0
    for family in families.values():
        for a, b in combinations([r for r in family if r.predicted is not None], 2):
            slow, fast = (a, b) if a.kernel.measured > b.kernel.measured else (b, a)
            if slow.kernel.measured > fast.kernel.measured * (1 + DISTINCT):
                pairs += 1
                right += (slow.predicted or 0) > (fast.predicted or 0)
    return right, pairs


def _splits(results: Sequence[Timed]) -> list[Split]:
    return [s for s in Split if any(r.kernel.split is s for r in results)]


def _summary_lines(results: Sequence[Timed]) -> list[str]:
    lines = [f"{'':<14}{'kernels':>8}{'refused':>9}{'median':>9}{'90 %':>9}{'worst':>9}{'pairs in order':>17}"]
    for split in _splits(results):
        s = summary(split, results)
        shares = [
            f"{s[key]:>9.1%}" if s[key] is not None else f"{'-':>9}" for key in ("median", "percentile_90", "worst")
        ]
        pairs = f"{s['pairs_in_order']} of {s['pairs']}"
        lines.append(f"{split.value:<14}{s['kernels']:>8}{s['refused']:>9}{''.join(shares)}{pairs:>17}")
    return lines
