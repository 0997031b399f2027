# SPDX-License-Identifier: Apache-2.0
"""A plan as one page that needs nothing else. SECTIONS, in order; each makes panels of a plan."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from html import escape
from importlib.resources import files

from trnlab.chips.prices import KINDS, latest, sources
from trnlab.documents import charts, html
from trnlab.documents.html import document, section
from trnlab.fleet.comparison.alternatives import Other
from trnlab.fleet.comparison.contenders import UNHELD, Held
from trnlab.fleet.models.unpartitioned import Whole
from trnlab.fleet.planning.overheads import overheads
from trnlab.fleet.planning.plan import Candidate, Plan
from trnlab.fleet.planning.sensitivity import Leaning, leanings
from trnlab.fleet.report.pictures import alternatives, memory
from trnlab.fleet.report.text import RECKONED
from trnlab.fleet.search.steps import CAUSES, CLASSES
from trnlab.units import format_bytes, format_count

ROWS = 200
_COLOURS = ("tensor", "gpsimd", "cc", "reference", "dma", "latency", "vector", "scalar", "sync", "accent", "faint")
_CAUSES = dict(zip(CAUSES, _COLOURS))
_CLASSES = dict(zip(CLASSES, ("tensor", "vector", "scalar", "gpsimd", "dma", "sync")))
_ASSETS = files(__package__).joinpath("assets")


def page(plan: Plan, beside: Sequence[Other] = (), held: Held = UNHELD) -> str:
    """The whole page. beside: the same tokens elsewhere; held: as in `besides.report`. Raises UsageError as
    `Plan.chosen`."""
    body = [panel for make in SECTIONS for panel in make(plan)]
    at = len(body) - 3  # before what it leans on
    body[at:at] = alternatives(plan, beside, held)
    style, script = (_ASSETS.joinpath(name).read_text("utf-8") for name in ("plan.css", "plan.js"))
    parts = [f"<style>{style}</style>", *body, f"<script>{script}</script>"]
    return document(f"plan {plan.question.model.name}", "\n".join(parts))


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
    }
    if isinstance(asked.model, Whole):
        del options["--sequence"]  # the step has its own
    words = [
        "trnlab",
        "plan",
        *(asked.spelled or (asked.model.name,)),
        *(str(word) for pair in options.items() for word in pair),
    ]
    return shlex.join(words)


def top(plan: Plan) -> Iterator[str]:
    """The answer in a sentence, and in figures."""
    asked, c = plan.question, plan.chosen
    usd = f"${c.bill.usd:,.0f}" if c.bill.usd is not None else "no public price"
    figures = [
        ("Days", f"{c.bill.days:,.3g}", f"goodput {c.goodput:.1%}"),
        ("Dollars", usd, c.bill.price.split(",")[0]),
        (
            f"$ per million {asked.model.counted}",
            f"{c.bill.usd_per_million:.3g}" if c.bill.usd_per_million else "-",
            "",
        ),
        *_epoch(plan),
        (
            f"{asked.model.counted.capitalize()}/s",
            f"{c.step.tokens_per_s:,.0f}",
            f"{c.step.tokens_per_s / c.cluster.chips:,.0f} a chip",
        ),
        ("MFU", f"{c.step.mfu:.1%}", "of all cores"),
    ]
    cells = "".join(
        f"<div><dt>{escape(a)}</dt><dd>{escape(b)}<small>{escape(s)}</small></dd></div>" for a, b, s in figures
    )
    yield (
        f'<header>\n<p class="over">trnlab plan, {escape(" or ".join(asked.targets))}</p>\n'
        f"<h1>{escape(asked.model.name)}, {format_count(asked.tokens)} {asked.model.counted}</h1>"
        f'<p class="lede">Cheapest in time: <b>{escape(c.cluster.name)}</b>, {c.cluster.chips:,} chips, as '
        f'<b>{escape(str(c.step.layout))}</b>.</p><dl class="figures">{cells}</dl></header>'
    )
    line = escape(command(plan, c))
    yield section(
        "As a command",
        "",
        f'<div class="command"><code>{line}</code><button class="copy" data-command="{line}">copy</button></div>',
    )


def _epoch(plan: Plan) -> Iterator[tuple[str, str, str]]:
    per, epoch = plan.chosen.bill.usd_per_million, plan.question.epoch
    if per is not None and epoch:
        yield "$ an epoch", f"{per * epoch / 1e6:,.4g}", f"{format_count(epoch)} {plan.question.model.counted}"


def front(plan: Plan) -> Iterator[str]:
    """Days against dollars."""
    found = [c for c in plan.front if c.bill.usd is not None]
    if len(found) < 2:
        return
    say = "None is both sooner and cheaper than these. Both axes are logarithmic; the chosen one is filled."
    yield section("Days and dollars", say, charts.both(_scatter(found, plan.chosen), "days and dollars"))


def _scatter(found: Sequence[Candidate], chosen: Candidate) -> charts.Draw:
    xs = [math.log10(c.bill.days) for c in found]
    ys = [math.log10(c.bill.usd or 1.0) for c in found]
    room = [max((max(v) - min(v)) * 0.08, 0.02) for v in (xs, ys)]
    low, high = (min(xs) - room[0], min(ys) - room[1]), (max(xs) + room[0], max(ys) + room[1])

    def draw(width: float, height: float) -> str:
        frame = charts.Frame(74, 12, width - 14, height - 34, low, high)
        parts = [
            f'<path class="grid" d="M{frame.left} {frame.y(y):.1f}H{frame.right}"/>'
            f'<text x="{frame.left - 8}" y="{frame.y(y) + 4:.1f}" text-anchor="end">${_short(10**y)}</text>'
            for y in charts.ticks(low[1], high[1], 4)
            if low[1] <= y <= high[1]
        ]
        parts += [
            f'<text x="{frame.x(x):.1f}" y="{frame.bottom + 22}" text-anchor="middle">{10**x:.3g} days</text>'
            for x in charts.ticks(low[0], high[0], 4 if width > 500 else 2)
            if low[0] <= x <= high[0]
        ]
        path = " L".join(f"{frame.x(x):.1f} {frame.y(y):.1f}" for x, y in zip(xs, ys))
        parts.append(f'<path class="curve" stroke="var(--accent)" stroke-opacity="0.5" d="M{path}"/>')
        for c, x, y in zip(found, xs, ys):
            fill = "var(--accent)" if c == chosen else "var(--panel)"
            said = f"{c.cluster.name}, {c.step.layout}: {c.bill.days:.3g} days, ${c.bill.usd or 0:,.0f}"
            parts.append(
                f'<circle cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="5" fill="{fill}" stroke="var(--accent)" '
                f'stroke-width="2"><title>{escape(said)}</title></circle>'
            )
        return "".join(parts)

    return draw


def _short(value: float) -> str:
    return format_count(value).replace(" ", "").replace("G", "B")


def step(plan: Plan) -> Iterator[str]:
    """Steps of the front by cause, and memory by class."""
    found = _some(plan)
    longest = max(c.step.total for c in found)
    rows = [
        (
            c.cluster.name,
            html.stack(
                (
                    f"{cause} {c.step.seconds[cause]:.3g} s",
                    f"var(--{_CAUSES[cause]})",
                    c.step.seconds[cause] / longest,
                )
                for cause in CAUSES
            ),
            f"{c.step.total:.3g} s",
        )
        for c in found
    ]
    own = plan.chosen.step
    keys = [
        (cause, f"var(--{_CAUSES[cause]})", f"{own.seconds[cause] / own.total:.1%}")
        for cause in CAUSES
        if any(c.step.seconds[cause] for c in found)
    ]
    beside = overheads(plan.question, plan.chosen)
    keys += [(f"{name} (average)", "var(--line)", f"{s / own.total:.1%}") for name, s, _ in beside.lines(plan.chosen)]
    say = (
        "The chosen layout first; shares are of its step. pipeline: waiting for other stages. Checkpoints and input "
    )
    say += "are what a step waits for on average, within the goodput."
    yield section("Where a step goes", say, html.bars(rows) + html.key(keys))
    rows = [
        (
            c.cluster.name,
            html.stack(
                (
                    f"{name} {format_bytes(c.step.bytes[name])}",
                    f"var(--{_CLASSES[name]})",
                    c.step.bytes[name] / c.step.room,
                )
                for name in CLASSES
            ),
            format_bytes(sum(c.step.bytes.values())),
        )
        for c in found
    ]
    keys = [(name, f"var(--{_CLASSES[name]})", format_bytes(own.bytes[name])) for name in CLASSES]
    say = f"Of the rank with most, which has {format_bytes(own.room)}; the whole width is that."
    yield section("Memory", say, html.bars(rows) + html.key(keys))


def _some(plan: Plan) -> list[Candidate]:
    """The chosen one and up to six others of the front."""
    others = [c for c in plan.front if c != plan.chosen]
    return [plan.chosen, *others[:: max(1, -(-len(others) // 6))]]


def money(plan: Plan) -> Iterator[str]:
    """By kind of price."""
    c = plan.chosen
    hours = c.bill.device_hours / c.cluster.target.chips
    rows = []
    known = latest(c.cluster.target.name)
    for kind in KINDS:
        price = known.get(kind)
        if price is None:
            rows.append((kind, "none published", "", "", ""))
            continue
        usd = price.usd(hours)
        rows.append((kind, price.spelled, f"{usd:,.0f}", f"{usd / plan.question.tokens * 1e6:.3g}", price.date))
    say = f"{hours:,.0f} hours of {c.cluster.target.name}; between two prices the middle is billed. "
    say += "; ".join(f"{', '.join(kinds)}: {source}" for source, kinds in sources(known.values()).items())
    head = ("", "$/h", "$", f"$/M{plan.question.model.counted}", "as of")
    yield section("Cost by kind of price", say, f'<div class="scroll">{html.table(head, rows, (1, 2, 3))}</div>')


def tornado(plan: Plan) -> Iterator[str]:
    """What the cost leans on."""
    found = leanings(plan)
    most = max((x.swing for x in found), default=0.0) or 1.0
    rows = "".join(_leaning(x, most) for x in found)
    say = "The chosen layout's cost with a fifth less of each (orange), and a fifth more (blue)."
    yield section("What it leans on", say, f'<div class="tornado">{rows}</div>')


def _leaning(x: Leaning, most: float) -> str:
    def change(other: float | None, base: float | None) -> float:
        return other / base - 1 if other is not None and base else 0.0

    less, more = (
        change(b.device_hours, x.base.device_hours) if x.base.usd is None else change(b.usd, x.base.usd)
        for b in (x.less, x.more)
    )
    bars = ""
    for value, colour in ((less, "scalar"), (more, "accent")):
        share = min(abs(value) / most, 1.0) * 48
        left = 50 - share if value < 0 else 50
        bars += f'<i style="left:{left:.2f}%;width:{share:.2f}%;background:var(--{colour})"></i>'
    return (
        f'<div title="{escape(x.how)}">{escape(x.name)}</div><div class="line">{bars}</div>'
        f'<div class="value">{less:+.1%} / {more:+.1%}</div>'
    )


def candidates(plan: Plan) -> Iterator[str]:
    """A table that sorts and filters."""
    head = ("cluster", "layout", "days", "$", "$/Mtok", "MFU", "step", "memory", "")
    cells = (
        "".join(f"<th{' class=number' if i > 1 else ''}>{name}</th>" for i, name in enumerate(head[:-1]))
        + "<th aria-label='copy'></th>"
    )
    rows = "".join(_row(plan, c) for c in plan.best(ROWS))
    say = f"The cheapest {min(ROWS, len(plan)):,} of {len(plan):,} that fit and are in time. A heading sorts."
    yield section(
        "Candidates",
        say,
        '<div class="pick"><input id="pick" placeholder="filter, such as TP8 ZeRO-1" aria-label="filter">'
        '<span id="shown" class="say"></span></div><div class="scroll"><table id="candidates"><thead><tr>'
        f"{cells}</tr></thead><tbody>{rows}</tbody></table></div>",
        "broad",
    )


def _row(plan: Plan, c: Candidate) -> str:
    size = sum(c.step.bytes.values())
    values = (
        (c.cluster.name, c.cluster.instances),
        (_layout(c), None),
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


def _layout(c: Candidate) -> str:
    """Marked where its figures come from other layouts' programs."""
    return str(c.step.layout) + ("" if c.step.exact else f" ({RECKONED})")


def refused(plan: Plan) -> Iterator[str]:
    """What did not come into question."""
    rows = [(reason, f"{count:,}") for reason, count in plan.refused.most_common()]
    say = f"{plan.looked_at:,} layouts were looked at, {len(plan):,} fit."
    yield section("What did not fit", say, html.table(("why", "layouts"), rows, (1,)))


SECTIONS: list[Callable[[Plan], Iterator[str]]] = [top, front, step, memory, money, tornado, candidates, refused]
