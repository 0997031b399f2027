# SPDX-License-Identifier: Apache-2.0
"""Counts for people, records for programs."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

from tools.opdb.verdicts import FAILED, PASSED, REFUSED, Record

_MOST_LINES = 60


def counts(records: Iterable[Record]) -> dict[str, Counter[str]]:
    """How many results passed, were refused and failed, by mode."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for r in records:
        found[r.mode][r.verdict.kind] += 1
    return found


def operators(records: Iterable[Record]) -> dict[str, Counter[str]]:
    """How many operators failed somewhere, were refused somewhere and otherwise passed, passed everywhere."""
    worst: dict[tuple[str, str], str] = {}
    order = (PASSED, REFUSED, FAILED)
    for r in records:
        key = r.mode, r.op
        worst[key] = max(worst.get(key, PASSED), r.verdict.kind, key=order.index)
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for (mode, _), kind in worst.items():
        found[mode][kind] += 1
    return found


def print_summary(records: list[Record]) -> None:
    """Counts by mode, then what failed and what was refused, by reason."""
    by_operator = operators(records)
    for mode, kinds in counts(records).items():
        ops = by_operator[mode]
        print(
            f"{mode:<12} results: {kinds[PASSED]} passed, {kinds[REFUSED]} refused, {kinds[FAILED]} failed;"
            f"  operators: {ops[PASSED]} pass, {ops[REFUSED]} refused in part, {ops[FAILED]} fail somewhere"
        )
    for kind in (FAILED, REFUSED):
        grouped: dict[tuple[str, str], list[Record]] = defaultdict(list)
        for r in records:
            if r.verdict.kind == kind:
                reason = "" if r.verdict.code == "value" else r.verdict.reason[:140]
                grouped[r.verdict.code, reason].append(r)
        print(f"\n{kind}:")
        ranked = sorted(grouped.items(), key=lambda pair: -len(pair[1]))
        for (code, reason), group in ranked[:_MOST_LINES]:
            ops = dict.fromkeys(r.op for r in group)
            shown = ", ".join(list(ops)[:8]) + (f" and {len(ops) - 8} more" if len(ops) > 8 else "")
            print(f"  {len(group):6d}  {code} {reason}\n          {shown}")
        if len(ranked) > _MOST_LINES:
            print(f"          and {len(ranked) - _MOST_LINES} more reasons")


def write_json(path: Path, records: list[Record]) -> None:
    """All records, one per line."""
    path.write_text("".join(json.dumps(r.to_json()) + "\n" for r in records))


def read_json(path: Path) -> list[Record]:
    """What `write_json` wrote."""
    return [Record.from_json(json.loads(line)) for line in path.read_text().splitlines()]
