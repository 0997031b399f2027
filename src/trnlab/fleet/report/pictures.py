# SPDX-License-Identifier: Apache-2.0
"""What a plan's page draws: days and dollars, memory over a step's passes, cost and energy beside others with bands,
what the cost leans on, and a table of candidates that sorts."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from trnlab.chips.prices import latest
from trnlab.documents import (
    CurveChart,
    Drawing,
    Key,
    RangeBar,
    RangeBars,
    ScatterChart,
    ScatterPoint,
    Section,
    SwingBar,
    SwingBars,
    charts,
)
from trnlab.fleet.comparison.alternatives import Alternative, of_plan
from trnlab.fleet.comparison.contenders import PlanAccuracy, off_by
from trnlab.fleet.models.unpartitioned import UnpartitionedModel
from trnlab.fleet.planning.plan import Candidate, Plan
from trnlab.fleet.planning.sensitivity import FigureSensitivity, sensitivities
from trnlab.fleet.ranges import PublishedRange
from trnlab.fleet.report.beside_document import ENERGY, scaled
from trnlab.fleet.search import pipeline
from trnlab.quoting import markup as escape
from trnlab.units import format_bytes, format_count

ROWS = 200  # of the table of candidates
RECKONED = "reckoned, not compiled"
GIB = 2.0**30
SHOWN = 320  # passes; of more, the middle ones, which repeat, are left out
_STILL = (("weights", "tensor"), ("gradients", "vector"), ("optimizer", "scalar"), ("working", "dma"))


def held(plan: Plan, c: Candidate) -> list[int]:
    """Microbatches held by a pipeline's first rank: whose activations it keeps, after each of its passes in a
    step."""
    layout = c.step.layout
    work = pipeline.order(0, layout.pipeline, layout.microbatches(plan.question.batch), layout.interleave)
    found, now = [0], 0
    for each in work:
        now += -1 if each.backward else 1
        found.append(now)
    return found


def memory(plan: Plan) -> Iterator[Section]:
    """Memory of the chosen layout, pass by pass."""
    c = plan.chosen
    kept = held(plan, c)
    each = c.step.bytes["activations"] / max(*kept, 1)
    left = len(kept) - SHOWN
    shown = kept if left <= 0 else [*kept[: SHOWN // 2], *kept[-SHOWN // 2 :]]
    areas, below = [], 0.0
    for name, colour in _STILL:
        above = below + c.step.bytes[name] / GIB
        areas.append(charts.Area(name, f"var(--{colour})", [below] * len(shown), [above] * len(shown)))
        below = above
    tops = [below + n * each / GIB for n in shown]
    areas.append(charts.Area("activations", "var(--gpsimd)", [below] * len(shown), tops))
    say = "GiB of a pipeline's first rank after each of its passes in a step, which are numbered; it has "
    say += f"{c.step.room / GIB:.0f} GiB. At most {max(kept):,} microbatches wait for their way back."
    say += f" {left:,} passes in the middle, which repeat, are left out." if left > 0 else ""
    keys = Key([(area.name, area.colour, "") for area in areas])
    curve = charts.Curve("in all", "var(--gpsimd)", tops)
    chart = CurveChart([curve], "memory over the passes of a step", areas, "pass")
    yield Section(heading="Memory over time", say=say, parts=[chart, keys])


def alternatives(plan: Plan, others: Sequence[Alternative], runs: PlanAccuracy) -> Iterator[Section]:
    """Dollars by kind of price, and energy, of the plan and of others, each as a band."""
    c = plan.chosen
    slower = off_by(runs)
    longer = PublishedRange(1.0, 1 / slower.high, 1 / slower.low)
    hours = c.bill.device_hours / c.cluster.target.chips
    usd = [
        _range(f"{c.cluster.name}, {kind}", longer.times(price.usd(hours)))
        for kind, price in latest(c.cluster.target.name).items()
    ]
    usd += [
        _range(f"{other.contender.name}, {kind}", spent, other.contender.known)
        for other in others
        for kind in latest(other.contender.instance)
        if (spent := other.usd(kind)) is not None
    ]
    drawn = [_range(c.cluster.name, of_plan(c).total.times(longer))]
    drawn += [_range(other.contender.name, other.energy.total, other.contender.known) for other in others]
    say = "The same tokens. A bar is a band, its mark the middle; a band without a mark is all that is known. "
    say += "Scales are logarithmic. "
    say += "The plan's bands are those by which published runs were predicted wrongly."
    if usd:
        yield Section(heading="Dollars, beside others", say=say, parts=[RangeBars(usd, lambda x: f"${x:,.0f}")])
    energy = RangeBars(drawn, lambda x: scaled(x, ENERGY))
    yield Section(heading="Energy, beside others", say="With hosts and site.", parts=[energy])


def _range(name: str, span: PublishedRange, known: bool = True) -> RangeBar:
    """known: whether more is known than the ends."""
    return RangeBar(name, span.low, span.high, span.value if known else None)


def command(plan: Plan, c: Candidate) -> str:
    """What plans this candidate alone."""
    asked = plan.question
    options = {
        "--tokens": f"{asked.tokens:.10g}",
        "--target": c.cluster.target.name,
        "--instances": c.cluster.instances,
        "--global-batch": asked.batch,
        "--sequence": asked.training.sequence,
        "--precision": asked.precision,
        "--layout": c.step.layout.spelled(),
        "--stack": asked.stack.text,
    }
    if isinstance(asked.model, UnpartitionedModel):
        del options["--sequence"]  # the step has its own
    words = [
        "trnlab",
        "plan",
        *(asked.spelled or (asked.model.name,)),
        *(str(word) for pair in options.items() for word in pair),
    ]
    return shlex.join(words)


def chosen(plan: Plan) -> Iterator[Section]:
    """The command that plans the chosen one alone, and days against dollars."""
    line = escape(command(plan, plan.chosen))
    button = f'<button class="copy" data-command="{line}">copy</button>'
    yield Section(heading="As a command", parts=[Drawing(f'<div class="command"><code>{line}</code>{button}</div>')])
    yield from front(plan)


def front(plan: Plan) -> Iterator[Section]:
    """Days against dollars."""
    found = [c for c in plan.front if c.bill.usd is not None]
    if len(found) < 2:
        return
    say = "None is both sooner and cheaper than these. Both axes are logarithmic; the chosen one is filled."
    points = [ScatterPoint(c.bill.days, c.bill.usd or 0.0, _said(c), c == plan.chosen) for c in found]
    chart = ScatterChart(points, "days and dollars", (lambda x: f"{x:.3g} days", lambda y: f"${_short(y)}"))
    yield Section(heading="Days and dollars", say=say, parts=[chart])


def _said(c: Candidate) -> str:
    return f"{c.cluster.name}, {c.step.layout}: {c.bill.days:.3g} days, ${c.bill.usd or 0:,.0f}"


def _short(value: float) -> str:
    return format_count(value).replace(" ", "").replace("G", "B")


def sensitivity(plan: Plan) -> Iterator[Section]:
    """What the cost leans on."""
    say = "The chosen layout's cost with a fifth less of each (orange), and a fifth more (blue)."
    rows = SwingBars([_sensitivity_bar(x) for x in sensitivities(plan)])
    yield Section(heading="What it leans on", say=say, parts=[rows])


def _sensitivity_bar(x: FigureSensitivity) -> SwingBar:
    def change(other: float | None, base: float | None) -> float:
        return other / base - 1 if other is not None and base else 0.0

    less, more = (
        change(b.device_hours, x.base.device_hours) if x.base.usd is None else change(b.usd, x.base.usd)
        for b in (x.less, x.more)
    )
    return SwingBar(x.name, less, more, x.how)


def candidates(plan: Plan) -> Iterator[Section]:
    """A table that sorts and filters."""
    head = ("cluster", "layout", "days", "$", "$/Mtok", "MFU", "step", "memory", "")
    cells = (
        "".join(f"<th{' class=number' if i > 1 else ''}>{name}</th>" for i, name in enumerate(head[:-1]))
        + "<th aria-label='copy'></th>"
    )
    rows = "".join(_row(plan, c) for c in plan.best(ROWS))
    say = f"The cheapest {min(ROWS, len(plan)):,} of {len(plan):,} that fit and are in time. A heading sorts."
    table = (
        '<div class="pick"><input id="pick" placeholder="filter, such as TP8 ZeRO-1" aria-label="filter">'
        '<span id="shown" class="say"></span></div><div class="scroll"><table id="candidates"><thead><tr>'
        f"{cells}</tr></thead><tbody>{rows}</tbody></table></div>"
    )
    yield Section(heading="Candidates", say=say, parts=[Drawing(table)], style="broad")


def _row(plan: Plan, c: Candidate) -> str:
    size = sum(c.step.bytes.values())
    values = (
        (c.cluster.name, c.cluster.instances),
        (layout(c), None),
        (f"{c.bill.days:.3g}", c.bill.days),
        (f"{c.bill.usd:,.0f}" if c.bill.usd is not None else "-", c.bill.usd or c.bill.device_hours),
        (f"{c.bill.usd_per_million:.3g}" if c.bill.usd_per_million else "-", c.bill.usd_per_million),
        (f"{c.step.mfu:.1%}", c.step.mfu),
        (f"{c.step.total:.3g} s", c.step.total),
        (format_bytes(size), size),
    )
    cells = "".join(
        f"<td{f' data-v={value}' if value is not None else ''}{' class=number' if i > 1 else ''}>{escape(text)}</td>"
        for i, (text, value) in enumerate(values)
    )
    return f'<tr>{cells}<td><button data-command="{escape(command(plan, c))}">copy</button></td></tr>'


def layout(c: Candidate) -> str:
    """A candidate's layout, marked where its figures come from other layouts' programs."""
    return str(c.step.layout) + ("" if c.step.exact else f" ({RECKONED})")
