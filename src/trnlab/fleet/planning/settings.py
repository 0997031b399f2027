# SPDX-License-Identifier: Apache-2.0
"""Settings of a plan side by side: of each combination its own best layout, and when its saving repays compiling it.

Each setting is searched by itself, so that every one is at its best. The first stands for what is done today: a
setting saves dollars (device hours, where no price is known) against it, and costs one compilation in which all
instances wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path

from trnlab.errors import UsageError
from trnlab.fleet.bills.compilation import Recompiles, recompiles
from trnlab.fleet.planning.plan import Candidate, Plan, plan
from trnlab.fleet.planning.question import FORMS, Question
from trnlab.fleet.ranges import PublishedRange
from trnlab.fleet.search.layout import RECOMPUTE, SHORT, ZERO, pinned
from trnlab.fleet.search.prefetch import CompilePool
from trnlab.units import format_bytes

PRECISION = "precision"
ALL: Mapping[str, tuple[str, ...]] = {
    PRECISION: tuple(FORMS),
    "recompute": RECOMPUTE,
    "zero": tuple(str(n) for n in ZERO),
    "overlap": ("1", "0"),
}
MOST = 64  # combinations, each of which is a search

Axes = Mapping[str, tuple[str, ...]]


def axes(text: str) -> Axes:
    """`precision=fp32:bf16,recompute`: values of each setting that is compared, in this order; all that there are of
    one without values. Raises UsageError (TRN590)."""
    found: dict[str, tuple[str, ...]] = {}
    for part in filter(None, text.split(",")):
        name, _, given = (word.strip() for word in part.partition("="))
        values = tuple(filter(None, given.split(":"))) or ALL.get(name, ())
        if name in found or len(set(values)) < 2 or len(set(values)) < len(values):
            raise _unreadable(part)
        for value in values:
            _checked(part, name, value)
        found[name] = values
    combinations = len(list(product(*found.values())))
    if not found or combinations > MOST:
        raise _unreadable(text if not found else f"{text}, {combinations} combinations")
    return found


def _checked(part: str, name: str, value: str) -> None:
    if name == PRECISION:
        if value not in FORMS:
            raise _unreadable(part)
        return
    try:
        pinned(f"{name}={value}")
    except UsageError as error:
        raise _unreadable(part) from error


def _unreadable(part: str) -> UsageError:
    return UsageError(
        f"--compare cannot be read at {part!r}",
        code="TRN590",
        got=part,
        limit=f"NAME=VALUE:VALUE... of {PRECISION}, {', '.join(SHORT)}, each once, at most {MOST} combinations; "
        f"{', '.join(ALL)} alone for all of their values",
        remedy="write it as --compare precision=fp32:bf16,recompute=full:none",
    )


@dataclass(frozen=True)
class SearchedSetting:
    """A setting of a sweep, and what was found under it."""

    values: Mapping[str, str]  # one of each axis, as they were written
    found: Plan  # all that was searched under them

    @cached_property
    def best(self) -> Candidate | None:
        """The cheapest that is in time; None where nothing fits, or nothing is in time."""
        return next(iter(self.found.best(1)), None)

    @property
    def name(self) -> str:
        """As --compare writes it."""
        return ",".join(f"{name}={value}" for name, value in self.values.items())

    @property
    def why(self) -> str:
        """What a setting without a best lacks."""
        if len(self.found):
            return "nothing is in time"
        if self.found.nearest is not None:
            cluster, step = self.found.nearest
            lacks, room, layout = sum(step.bytes.values()) - step.room, step.room, step.layout
        elif self.found.least is not None:
            cluster, least = self.found.least
            lacks, room, layout = least.lacks, least.room, least.layout
        else:
            return f"no such layout: {[*self.found.refused][-1]}"
        return f"{layout} on {cluster.name} lacks {format_bytes(lacks)} of {format_bytes(room)} on a rank"


@dataclass(frozen=True)
class Payback:
    """What a setting saves against the first in a day that it runs, and what compiling it once costs: in `unit`,
    dollars or device hours. days: of running, after which the saving has repaid it; None where nothing is saved.
    run: days of the whole run."""

    unit: str
    saved_per_day: float
    compiling: PublishedRange
    run: float

    @property
    def days(self) -> PublishedRange | None:
        """At the ends of the published minutes of compiling."""
        return self.compiling.times(1.0 / self.saved_per_day) if self.saved_per_day > 0 else None


@dataclass(frozen=True)
class SettingComparison:
    """Settings in the order of their values, the last named one changing first."""

    question: Question
    settings: tuple[SearchedSetting, ...]

    @cached_property
    def fitting(self) -> tuple[tuple[SearchedSetting, Candidate], ...]:
        """Those that have a layout. Raises UsageError where none has (TRN174, TRN175)."""
        found = tuple((setting, setting.best) for setting in self.settings if setting.best is not None)
        return found or ((self.settings[0], self.settings[0].found.chosen),)  # which says why there is none

    @property
    def first(self) -> Candidate:
        """What the others are held against: the first that has a layout. Raises as `fitting`."""
        return self.fitting[0][1]

    @property
    def cheapest(self) -> tuple[SearchedSetting, Candidate]:
        """The cheapest of all that have a layout; raises as `fitting`."""
        return min(self.fitting, key=lambda pair: _worth(pair[1]))

    def repaid(self, c: Candidate) -> Payback:
        """When the extra of one of `fitting` is repaid, against the first of them."""
        first, compiling = self.first, self.recompiles(c)
        usd = compiling.usd(1)
        if usd is not None and c.bill.usd is not None and first.bill.usd is not None:
            return Payback("$", (first.bill.usd - c.bill.usd) / c.bill.days, usd, c.bill.days)
        saved, hours = first.bill.device_hours - c.bill.device_hours, compiling.hours(1)
        return Payback("device hours", saved / c.bill.days, hours.times(float(c.cluster.target.chips)), c.bill.days)

    def recompiles(self, c: Candidate) -> Recompiles:
        """How often the run of a candidate compiles."""
        between, price = self.question.reliability.between(c.cluster.chips), c.cluster.target.price
        return recompiles(self.question.model.parameters, c.bill.days, c.cluster.instances, between, price)


def _worth(c: Candidate) -> tuple[bool, float]:
    return c.bill.usd is None, c.bill.usd if c.bill.usd is not None else c.bill.device_hours


def compare(
    question: Question,
    compared: Axes,
    folder: Path | None = None,
    said: Callable[[str], None] = lambda _: None,
    pool: CompilePool | None = None,
    held: Callable[[Plan], None] = lambda _: None,
) -> SettingComparison:
    """Search each combination of values. held: takes what is not to be out of each plan; the rest as `plan`.

    Raises UsageError (TRN178) for a setting that is given already, and for a precision of a script that is planned
    as it is.
    """
    given = [name for name in compared if SHORT.get(name) in question.fixed]
    if given or (question.captured is not None and PRECISION in compared):
        name = given[0] if given else PRECISION
        raise UsageError(
            f"{name} is given already",
            code="TRN178",
            limit="settings that are free",
            got=f"--compare {name}",
            remedy=f"leave {name} out of --layout"
            if given
            else "a script that is planned as it is has its precision: run the command once for each",
        )
    made: list[SearchedSetting] = []
    for values in _combined(compared):
        asked = _asked(question, values)
        said(f"setting {len(made) + 1}: {','.join(f'{k}={v}' for k, v in values.items())}")
        found = plan(asked, folder, said, pool)
        held(found)
        made.append(SearchedSetting(values, found))
    return SettingComparison(question, tuple(made))


def _combined(compared: Axes) -> Sequence[Mapping[str, str]]:
    return [dict(zip(compared, values)) for values in product(*compared.values())]


def _asked(question: Question, values: Mapping[str, str]) -> Question:
    rest = ",".join(f"{name}={value}" for name, value in values.items() if name != PRECISION)
    return replace(
        question, precision=values.get(PRECISION, question.precision), fixed={**question.fixed, **pinned(rest)}
    )
