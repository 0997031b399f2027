# SPDX-License-Identifier: Apache-2.0
"""Verdicts that a band leaves open: what holds at which end of it, and which measured run would close it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from trnlab.chips.catalog import TARGETS
from trnlab.fleet.comparison.contenders import ENOUGH, PlanAccuracy, RunToMeasure, off_by
from trnlab.fleet.planning.plan import Plan
from trnlab.fleet.ranges import PublishedRange
from trnlab.units import SECONDS_PER_DAY

KEPT, OPEN = "kept", "open"


def undecided(ratio: PublishedRange) -> bool:
    """Whether a band of costs of one side in those of the other has both more and less in it."""
    return ratio.low < 1 < ratio.high


def toml(run: RunToMeasure) -> str:
    """One line that `trnlab validate --mine` reads, once the seconds of a step are in the place of SECONDS."""
    fields = {name: value for name, value in asdict(run).items() if value}
    return f"run = [{{ {', '.join(f'{k} = {json.dumps(v)}' for k, v in fields.items())}, step_s = SECONDS }}]"


def words(run: RunToMeasure) -> tuple[str, str]:
    """What to measure, and the line of it."""
    layout = f" as {run.layout}" if run.layout else ""
    what = f"{run.model} on {run.instances} {run.target}{layout}, batch {run.batch:,}"
    return (
        f"what would close it: a measured step of {what}; {ENOUGH} runs of yours on {TARGETS[run.target].chip.title} "
        "make its band. In a file for `trnlab validate --mine FILE`:",
        toml(run),
    )


def as_json(run: RunToMeasure | None) -> dict[str, Any] | None:
    """For programs: the run, and its line."""
    return None if run is None else {**asdict(run), "toml": toml(run), "runs_for_a_band": ENOUGH}


def of_plan(plan: Plan) -> RunToMeasure | None:
    """The run of the chosen layout; None of a script's step, which `trnlab validate` cannot plan again."""
    c, asked = plan.chosen, plan.question
    if asked.captured is not None:
        return None
    return RunToMeasure(
        asked.spelled[0] if asked.spelled else asked.model.name,
        c.cluster.target.name,
        c.cluster.instances,
        asked.batch,
        asked.training.sequence,
        c.step.layout.spelled(),
        asked.precision,
    )


def days_of(plan: Plan, held: PlanAccuracy) -> PublishedRange:
    """Days of the chosen run, at both ends of the band of its rate."""
    days, band = plan.chosen.bill.days, off_by(held)
    return PublishedRange(days, days / band.high, days / band.low)


def deadline(plan: Plan, held: PlanAccuracy) -> str | None:
    """Whether the deadline, which the plan itself keeps, is kept at both ends of its band; None without one."""
    if plan.question.deadline is None:
        return None
    return KEPT if days_of(plan, held).high <= plan.question.deadline / SECONDS_PER_DAY else OPEN


def plan_to_json(plan: Plan, held: PlanAccuracy) -> dict[str, Any]:
    """The band of a plan: of its rate, days and dollars (all of all instances of the run), and its deadline."""
    days, band, usd = days_of(plan, held), off_by(held), plan.chosen.bill.usd
    verdict = deadline(plan, held)
    return {
        "rate": {"low": band.low, "high": band.high},
        "days": {"value": days.value, "low": days.low, "high": days.high},
        "usd": None if usd is None else {"value": usd, "low": usd / band.high, "high": usd / band.low},
        "errors": list(held.errors),
        "runs": held.runs,
        "deadline": verdict,
        "would_decide": as_json(of_plan(plan)) if verdict == OPEN else None,
    }
