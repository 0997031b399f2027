# SPDX-License-Identifier: Apache-2.0
"""Settings side by side as a document, and as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trnlab.documents import TERMINAL, Document, Note, Section, Table
from trnlab.documents.html import sentence
from trnlab.fleet.bills import money
from trnlab.fleet.bills.compilation import minutes
from trnlab.fleet.planning.plan import Candidate
from trnlab.fleet.planning.settings import Payback, SearchedSetting, SettingComparison
from trnlab.fleet.ranges import PublishedRange
from trnlab.fleet.report.beside_document import claims
from trnlab.fleet.report.document import work
from trnlab.fleet.report.table import SCHEMA, candidate
from trnlab.fleet.search.steps import CAUSES, CLASSES
from trnlab.units import format_bytes, format_count

GIB = float(1 << 30)
_REPAYS = "a setting is compiled while all instances wait; its saving, against the first that fits, repays that:"


def document(compared: SettingComparison) -> Document:
    """The whole answer. Raises UsageError as `SettingComparison.fitting`."""
    asked, first = compared.question, compared.first
    size = f"{format_count(asked.model.parameters)} parameters, {len(compared.settings)} settings"
    lines = [f"{asked.model.name}: {size}", *work(asked)]
    target = first.cluster.target.name
    unclaimed = Section(parts=[Note("the vendor claims nothing about it")])
    return Document(
        asked.model.name,
        [
            *(Note(line, on=TERMINAL) for line in lines),
            _best(compared),
            _memory(compared),
            _causes(compared),
            _compiling(compared),
            _recompiled(compared),
            *(list(claims(target)) or [unclaimed]),
        ],
        over=f"trnlab plan, {' or '.join(asked.targets)}",
        lede=f"{size}.",
        about=", ".join(lines[1:]),
        record=lambda: to_json(compared),
    )


def _table(compared: SettingComparison, head: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 0) -> Table:
    """A row for each setting, whose values are its first columns. texts: columns at the end that are no numbers."""
    names = list(compared.settings[0].values)
    return Table(rows, (*names, *head), range(len(names), len(names) + len(head) - texts))


def _fitting(compared: SettingComparison) -> list[tuple[list[str], Candidate]]:
    """Values of the settings that fit, and the best layout of each."""
    return [(list(setting.values.values()), c) for setting, c in compared.fitting]


def _best(compared: SettingComparison) -> Section:
    """Each setting's own best layout."""
    head = ("days", "$", "$/Mtok", "step", "MFU", "memory", "layout")
    rows = [[*setting.values.values(), *_best_of(setting)] for setting in compared.settings]
    price = Note(f"price: {compared.first.bill.price}")
    return Section("each setting with its own cheapest layout:", [_table(compared, head, rows, 1), price])


def _best_of(setting: SearchedSetting) -> list[str]:
    c = setting.best
    if c is None:
        return [setting.why]
    return [
        f"{c.bill.days:.3g}",
        f"{c.bill.usd:,.0f}" if c.bill.usd is not None else "-",
        f"{c.bill.usd_per_million:.3g}" if c.bill.usd_per_million is not None else "-",
        f"{c.step.total:.3g} s",
        f"{c.step.mfu:.1%}",
        format_bytes(sum(c.step.bytes.values())),
        f"{c.cluster.name}, {c.step.layout}",
    ]


def _memory(compared: SettingComparison) -> Section:
    rows = [[*values, *(f"{c.step.bytes[name] / GIB:.2f}" for name in CLASSES)] for values, c in _fitting(compared)]
    title = f"GiB on the fullest rank, of {compared.first.step.room / GIB:.3g}:"
    return Section(title, [_table(compared, CLASSES, rows)])


def _causes(compared: SettingComparison) -> Section:
    fitting = _fitting(compared)
    seen = [cause for cause in CAUSES if any(c.step.seconds[cause] > 0 for _, c in fitting)]
    rows = [[*values, *(f"{c.step.seconds[cause]:.3g}" for cause in seen)] for values, c in fitting]
    return Section("seconds of a step, by cause:", [_table(compared, seen, rows)])


def _compiling(compared: SettingComparison) -> Section:
    """When each setting has repaid its compilation."""
    made = minutes(compared.question.model.parameters)
    title = f"compiling: {made.low:g} to {made.high:g} minutes a time ({made.tag}: {made.source})"
    head = ("saved a day", "compiling once", "repaid after")
    rows = [[*values, *_repaid(compared, c)] for values, c in _fitting(compared)]
    return Section(title, [Note(_REPAYS), _table(compared, head, rows, 1)], heading="Compiling", say=sentence(title))


def _repaid(compared: SettingComparison, c: Candidate) -> tuple[str, str, str]:
    found = compared.repaid(c)
    paid = "what the others are held against" if c is compared.first else _after(found)
    once = f"{_amount(found.unit, found.compiling.low)} to {_amount(found.unit, found.compiling.high)}"
    return _amount(found.unit, found.saved_per_day), once, paid


def _recompiled(compared: SettingComparison) -> Section:
    """The whole run, with what changes and failures compile again."""
    setting, c = compared.cheapest
    made, days = compared.recompiles(c), compared.repaid(c).days
    times = f"{made.without:.1f} compilations without a cache, {made.with_cache:g} with one"
    notes = [f"in {c.bill.days:.3g} days {times} (the start, changes of the step, restarts)"]
    if days is not None:
        kept, again = (_long(days.times(n)) for n in (made.with_cache, made.without))
        notes.append(f"all of them are repaid after {kept} with a cache, {again} without one")
    return Section(f"cheapest: {setting.name}, {c.step.layout} on {c.cluster.name}", list(map(Note, notes)))


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
