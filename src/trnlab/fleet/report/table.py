# SPDX-License-Identifier: Apache-2.0
"""A plan as plain data: JSON and CSV, see docs/plan.md."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Sequence
from typing import Any

from trnlab.chips.prices import KINDS, latest
from trnlab.fleet.comparison.contenders import PlanAccuracy
from trnlab.fleet.planning.overheads import overheads
from trnlab.fleet.planning.plan import Candidate, Plan
from trnlab.fleet.search.steps import CAUSES, CLASSES
from trnlab.quoting import csv_cell

SCHEMA = 1
_PLAIN = (
    "cluster",
    "target",
    "instances",
    "chips",
    "ranks",
    "layout",
    "exact",
    "days",
    "usd",
    "usd_per_million_tokens",
    "price",
    "device_hours",
    "tokens_per_s",
    "mfu",
    "goodput",
    "step_s",
)


def to_json(plan: Plan) -> dict[str, Any]:
    """The whole answer. Raises UsageError as `Plan.chosen`."""
    asked = plan.question
    return {
        "schema": SCHEMA,
        "question": {
            "model": asked.model.name,
            "parameters": asked.model.parameters,
            "used_parameters": asked.model.used,
            "source": asked.model.source,
            "tokens": asked.tokens,
            "targets": list(asked.targets),
            "instances": list(asked.instances),
            "deadline_s": asked.deadline,
            "batch": asked.batch,
            "sequence": asked.training.sequence,
            "precision": asked.precision,
            "fixed": dict(asked.fixed),
            "stack": asked.stack.text,
            "epoch": asked.epoch or None,
            "counted": asked.model.counted,
        },
        "chosen": candidate(plan.chosen),
        "besides": _besides(plan),
        "front": [candidate(c) for c in plan.front],
        "looked_at": plan.looked_at,
        "fit": len(plan),
        "refused": dict(plan.refused.most_common()),
        "search": plan.effort,
    }


def stacks_to_json(stacked: Sequence[tuple[Plan, PlanAccuracy]]) -> list[dict[str, Any]]:
    """The chosen layout of each stack, and how far plans of it were off in published runs."""
    return [
        {
            "stack": plan.question.stack.text,
            "about": plan.question.stack.title,
            "chosen": candidate(plan.chosen),
            "errors": list(held.errors),
            "runs": held.runs,
        }
        for plan, held in stacked
    ]


def _besides(plan: Plan) -> dict[str, Any]:
    """Figures of the chosen one alone: what a step waits for besides, what failures take, one pass over the data."""
    c, epoch = plan.chosen, plan.question.epoch
    per, beside = c.bill.usd_per_million, overheads(plan.question, c)
    return {
        "seconds_besides": {"checkpoint": beside.checkpoint, "input": beside.input},
        "input_s": beside.brought,
        "waste": dict(c.after_failures.waste),
        "checkpoint_every_s": c.after_failures.interval,
        "checkpoint_stall_s": c.after_failures.stall,
        "usd_per_epoch": per * epoch / 1e6 if per is not None and epoch else None,
    }


def candidate(c: Candidate) -> dict[str, Any]:
    """One layout on one cluster. Times in seconds unless said otherwise, sizes in bytes of the fullest rank."""
    target, layout = c.cluster.target, c.step.layout
    known = latest(target.name)
    return {
        "cluster": c.cluster.name,
        "target": target.name,
        "instances": c.cluster.instances,
        "chips": c.cluster.chips,
        "ranks": c.cluster.ranks,
        "layout": layout.spelled(),
        "step_s": c.step.total,
        "exact": c.step.exact,
        "padded_heads": [{"heads": own, "filled_up_to": all_ranks} for own, all_ranks in c.padding],
        "seconds": dict(c.step.seconds),
        "bytes": dict(c.step.bytes),
        "room": c.step.room,
        "mfu": c.step.mfu,
        "tokens_per_s": c.step.tokens_per_s,
        "goodput": c.goodput,
        "days": c.bill.days,
        "device_hours": c.bill.device_hours,
        "usd": c.bill.usd,
        "usd_per_million_tokens": c.bill.usd_per_million,
        "price": c.bill.price,
        "usd_per_hour": {kind: known[kind].usd_per_hour if kind in known else None for kind in KINDS},
        "prices": [dataclasses.asdict(price) for price in known.values()],
    }


def to_csv(plan: Plan, count: int) -> str:
    """The cheapest candidates that are in time, one a row."""
    out = io.StringIO()
    seconds = [f"{cause.replace(' ', '_')}_s" for cause in CAUSES]
    sizes = [f"{name}_bytes" for name in CLASSES]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*_PLAIN, *seconds, *sizes, "room_bytes"])
    for c in plan.best(count):
        row = candidate(c)
        writer.writerow(
            [*(csv_cell(row[name]) for name in _PLAIN), *c.step.seconds.values(), *c.step.bytes.values(), c.step.room]
        )
    return out.getvalue()
