# SPDX-License-Identifier: Apache-2.0
"""Settings side by side for people, and as plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from trnlab.fleet.bills import money
from trnlab.fleet.bills.claims import about
from trnlab.fleet.bills.compilation import minutes
from trnlab.fleet.planning.plan import Candidate
from trnlab.fleet.planning.settings import Payback, SearchedSetting, SettingComparison
from trnlab.fleet.ranges import PublishedRange
from trnlab.fleet.report.table import SCHEMA, candidate
from trnlab.fleet.search.steps import CAUSES, CLASSES
from trnlab.units import SECONDS_PER_DAY, format_bytes, format_count

GIB = float(1 << 30)


def text(compared: SettingComparison) -> str:
    """The whole answer. Raises UsageError as `SettingComparison.fitting`."""
    return "\n\n".join("\n".join(section(compared)) for section in SECTIONS)


def _question(compared: SettingComparison) -> Iterator[str]:
    asked, model = compared.question, compared.question.model
    low, high = asked.instances
    number = f"{low:,} to {high:,}" if high > low else f"{low:,}"
    yield f"{model.name}: {format_count(model.parameters)} parameters, {len(compared.settings)} settings"
    yield (
        f"{format_count(asked.tokens)} tokens in steps of {asked.batch:,} sequences of "
        f"{asked.training.sequence:,}, on {number} {' or '.join(asked.targets)}"
    )
    if asked.deadline is not None:
        yield f"within {asked.deadline / SECONDS_PER_DAY:.3g} days"


def _best(compared: SettingComparison) -> Iterator[str]:
    """Each setting's own best layout."""
    yield "each setting with its own cheapest layout:"
    yield f"{_heads(compared)} {'days':>6} {'$':>9} {'$/Mtok':>7} {'step':>8} {'MFU':>6} {'memory':>9}  layout"
    for setting in compared.settings:
        c = setting.best
        if c is None:
            yield f"{_values(compared, setting)}  {setting.why}"
            continue
        usd = f"{c.bill.usd:,.0f}" if c.bill.usd is not None else "-"
        each = f"{c.bill.usd_per_million:.3g}" if c.bill.usd_per_million is not None else "-"
        size = format_bytes(sum(c.step.bytes.values()))
        yield (
            f"{_values(compared, setting)} {c.bill.days:>6.3g} {usd:>9} {each:>7} {c.step.total:>6.3g} s "
            f"{c.step.mfu:>6.1%} {size:>9}  {c.cluster.name}, {c.step.layout}"
        )
    yield f"price: {compared.first.bill.price}"


def _memory(compared: SettingComparison) -> Iterator[str]:
    yield f"GiB on the fullest rank, of {compared.first.step.room / GIB:.3g}:"
    yield _heads(compared) + "".join(f" {name:>11}" for name in CLASSES)
    for setting, c in compared.fitting:
        yield _values(compared, setting) + "".join(f" {c.step.bytes[name] / GIB:>11.2f}" for name in CLASSES)


def _causes(compared: SettingComparison) -> Iterator[str]:
    fitting = compared.fitting
    seen = [cause for cause in CAUSES if any(c.step.seconds[cause] > 0 for _, c in fitting)]
    yield "seconds of a step, by cause:"
    yield _heads(compared) + "".join(f" {cause:>{max(len(cause), 8)}}" for cause in seen)
    for setting, c in fitting:
        yield _values(compared, setting) + "".join(
            f" {c.step.seconds[cause]:>{max(len(cause), 8)}.3g}" for cause in seen
        )


def _compiling(compared: SettingComparison) -> Iterator[str]:
    """When each setting has repaid its compilation."""
    made = minutes(compared.question.model.parameters)
    yield f"compiling: {made.low:g} to {made.high:g} minutes a time ({made.tag}: {made.source})"
    yield "a setting is compiled while all instances wait; its saving, against the first that fits, repays that:"
    yield f"{_heads(compared)} {'saved a day':>14} {'compiling once':>24}  repaid after"
    for setting, c in compared.fitting:
        found = compared.repaid(c)
        paid = "what the others are held against" if c is compared.first else _after(found)
        once = f"{_amount(found.unit, found.compiling.low)} to {_amount(found.unit, found.compiling.high)}"
        yield f"{_values(compared, setting)} {_amount(found.unit, found.saved_per_day):>14} {once:>24}  {paid}"


def _recompiled(compared: SettingComparison) -> Iterator[str]:
    """The whole run, with what changes and failures compile again."""
    setting, c = compared.cheapest
    made, days = compared.recompiles(c), compared.repaid(c).days
    yield f"cheapest: {setting.name}, {c.step.layout} on {c.cluster.name}"
    times = f"{made.without:.1f} compilations without a cache, {made.with_cache:g} with one"
    yield f"  in {c.bill.days:.3g} days {times} (the start, changes of the step, restarts)"
    if days is not None:
        kept, again = (_long(days.times(n)) for n in (made.with_cache, made.without))
        yield f"  all of them are repaid after {kept} with a cache, {again} without one"


def _claimed(compared: SettingComparison) -> Iterator[str]:
    found = about(compared.first.cluster.target.name)
    yield "claims of the vendor, which nothing here leans on:" if found else "the vendor claims nothing about it"
    yield from (f"  {claim}" for claim in found)


def _after(found: Payback) -> str:
    days = found.days
    if days is None:
        return "never: it saves nothing"
    more = f", more than the run's {found.run:.3g} days" if days.low > found.run else ""
    return _long(days) + more


def _long(days: PublishedRange) -> str:
    """In the unit that keeps it short."""
    unit, size = next((u for u in (("minutes", 1440), ("hours", 24)) if days.high * u[1] < 100), ("days", 1))
    return f"{days.low * size:.2g} to {days.high * size:.2g} {unit}"


def _amount(unit: str, value: float) -> str:
    if unit == "$":
        return money.spelled(value)
    return f"{value:,.3g} device h"


def _widths(compared: SettingComparison) -> dict[str, int]:
    return {
        name: max(len(name), *(len(s.values[name]) for s in compared.settings))
        for name in compared.settings[0].values
    }


def _heads(compared: SettingComparison) -> str:
    return " ".join(f"{name:<{width}}" for name, width in _widths(compared).items())


def _values(compared: SettingComparison, setting: SearchedSetting) -> str:
    return " ".join(f"{setting.values[name]:<{width}}" for name, width in _widths(compared).items())


SECTIONS: tuple[Callable[[SettingComparison], Iterator[str]], ...] = (
    _question,
    _best,
    _memory,
    _causes,
    _compiling,
    _recompiled,
    _claimed,
)


def to_json(compared: SettingComparison) -> dict[str, Any]:
    """Fields as docs/plan.md has them. Raises UsageError as `SettingComparison.fitting`."""
    first, asked = compared.first, compared.question
    return {
        "schema": SCHEMA,
        "model": asked.model.name,
        "tokens": asked.tokens,
        "batch": asked.batch,
        "sequence": asked.training.sequence,
        "cheapest": dict(compared.cheapest[0].values),
        "compile_minutes": minutes(asked.model.parameters).as_json(),
        "settings": [_json(compared, setting, first) for setting in compared.settings],
    }


def _json(compared: SettingComparison, setting: SearchedSetting, first: Candidate) -> dict[str, Any]:
    c = setting.best
    if c is None:
        return {"setting": dict(setting.values), "best": None, "why": setting.why}
    found, made = compared.repaid(c), compared.recompiles(c)
    days = found.days
    return {
        "setting": dict(setting.values),
        "best": candidate(c),
        "why": None,
        "held_against": c is first,
        "repaid": {
            "unit": found.unit,
            "saved_per_day": found.saved_per_day,
            "compiling": found.compiling.as_json(),
            "days": days.as_json() if days is not None else None,
            "times_with_cache": made.with_cache,
            "times_without_cache": made.without,
        },
    }
