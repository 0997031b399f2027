# SPDX-License-Identifier: Apache-2.0
"""Pictures of a plan's page: memory over a step's passes, and cost and energy beside others, with bands."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape

from trnlab.chips.prices import latest
from trnlab.documents import charts, html
from trnlab.documents.html import section
from trnlab.fleet.comparison.alternatives import ENERGY, Other, of_plan, scaled
from trnlab.fleet.comparison.contenders import Held, off_by
from trnlab.fleet.planning.plan import Candidate, Plan
from trnlab.fleet.ranges import Span
from trnlab.fleet.search import pipeline

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


def memory(plan: Plan) -> Iterator[str]:
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
    keys = [(area.name, area.colour, "") for area in areas]
    chart = charts.both(
        charts.line_chart([charts.Curve("in all", "var(--gpsimd)", tops)], areas, "pass"),
        "memory over the passes of a step",
    )
    yield section("Memory over time", say, chart + html.key(keys))


def alternatives(plan: Plan, beside: Sequence[Other], runs: Held) -> Iterator[str]:
    """Dollars by kind of price, and energy, of the plan and of others, each as a band."""
    c = plan.chosen
    slower = off_by(runs)
    longer = Span(1.0, 1 / slower.high, 1 / slower.low)
    hours = c.bill.device_hours / c.cluster.target.chips
    usd = [
        (f"{c.cluster.name}, {kind}", longer.times(price.usd(hours)), True)
        for kind, price in latest(c.cluster.target.name).items()
    ]
    usd += [
        (f"{other.side.name}, {kind}", spent, other.side.known)
        for other in beside
        for kind in latest(other.side.instance)
        if (spent := other.usd(kind)) is not None
    ]
    drawn = [(c.cluster.name, of_plan(c).total.times(longer), True)]
    drawn += [(other.side.name, other.energy.total, other.side.known) for other in beside]
    say = "The same tokens. A bar is a band, its mark the middle; a band without a mark is all that is known. "
    say += "Scales are logarithmic. "
    say += "The plan's bands are those by which published runs were predicted wrongly."
    if usd:
        yield section("Dollars, beside others", say, _bands(usd, lambda x: f"${x:,.0f}"))
    yield section("Energy, beside others", "With hosts and site.", _bands(drawn, lambda x: scaled(x, ENERGY)))


def _bands(rows: Sequence[tuple[str, Span, bool]], told: Callable[[float], str]) -> str:
    """Bars on one logarithmic scale."""
    low = math.log(min(span.low for _, span, _ in rows))
    wide = max(math.log(max(span.high for _, span, _ in rows)) - low, 1e-9)

    def at(value: float) -> float:
        return (math.log(value) - low) / wide * 100

    parts = []
    for name, span, known in rows:
        left, right = at(span.low), at(span.high)
        mark = f'<b style="left:{at(span.value):.2f}%"></b>' if known else ""
        ends = f"{told(span.low)} to {told(span.high)}"
        text = f"{told(span.value)} <small>({ends})</small>" if known else f"<small>{ends}</small>"
        bar = f'<i style="left:{left:.2f}%;width:{max(right - left, 0.4):.2f}%"></i>{mark}'
        parts.append(f'<div>{escape(name)}</div><div class="line">{bar}</div><div class="value">{text}</div>')
    return f'<div class="bands">{"".join(parts)}</div>'
