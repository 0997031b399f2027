# SPDX-License-Identifier: Apache-2.0
"""A plan for people, as text. SECTIONS, in order; each is lines about a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from trnlab.chips.prices import KINDS, latest, sources
from trnlab.fleet.models.recommend import Recommender
from trnlab.fleet.planning.overheads import overheads
from trnlab.fleet.planning.plan import Candidate, Plan
from trnlab.fleet.search.steps import CAUSES, CLASSES
from trnlab.fleet.search.tables import ROW
from trnlab.units import SECONDS_PER_DAY, format_bytes, format_count

ROWS, REASONS = 12, 12
BAR = 24
RECKONED = "reckoned, not compiled"


def text(plan: Plan) -> str:
    """The whole answer. Raises UsageError as `Plan.chosen`."""
    return "\n\n".join(filter(None, ("\n".join(section(plan)) for section in SECTIONS)))


def question(plan: Plan) -> Iterator[str]:
    """What was asked."""
    asked, model = plan.question, plan.question.model
    used = (
        f", {format_count(model.used)} of them for a {model.counted[:-1]}" if model.used != model.parameters else ""
    )
    yield f"{model.name}: {format_count(model.parameters)} parameters{used}"
    low, high = asked.instances
    number = f"{low:,} to {high:,}" if high > low else f"{low:,}"
    each = f"sequences of {asked.training.sequence:,}" if model.counted == "tokens" else model.counted
    steps = f"steps of {asked.batch:,} {each}"
    where = f"on {number} {' or '.join(asked.targets)}"
    yield f"{format_count(asked.tokens)} {model.counted} in {steps}, {asked.precision}, {where}"
    if asked.deadline is not None:
        yield f"within {asked.deadline / SECONDS_PER_DAY:.3g} days"


def chosen(plan: Plan) -> Iterator[str]:
    """The layout of choice: time, cost."""
    c = plan.chosen
    step = c.step
    yield f"cheapest in time: {c.cluster.name} ({c.cluster.chips:,} chips, {c.cluster.ranks:,} ranks), {step.layout}"
    rate = f"{step.tokens_per_s:,.0f} {plan.question.model.counted}/s"
    yield (
        f"  {c.bill.days:.3g} days at a goodput of {c.goodput:.1%}; {rate}, "
        f"{step.tokens_per_s / c.cluster.chips:,.0f} a chip; MFU {step.mfu:.1%} of all cores"
    )


def dollars(plan: Plan) -> Iterator[str]:
    """What it costs by each kind of price, which are never mixed."""
    c = plan.chosen
    hours = c.bill.device_hours / c.cluster.target.chips
    epoch = plan.question.epoch
    last = f" {'$/epoch':>14}" if epoch else ""
    million = f"$/M{plan.question.model.counted}"
    yield f"{'price':<16} {'$/h':>9} {'$ in all':>14} {million:>10}{last}   of {hours:,.0f} instance hours"
    known = latest(c.cluster.target.name)
    for kind in KINDS:
        price = known.get(kind)
        if price is None:
            yield f"{kind:<16} {'none':>9} {'':>14} {'':>10}   none published for {c.cluster.target.name}"
            continue
        total, about = price.usd(hours), "" if price.low == price.high else "   (the middle)"
        per = total / plan.question.tokens * 1e6
        once = f" {per * epoch / 1e6:>14,.2f}" if epoch else ""
        yield f"{kind:<16} {price.spelled:>9} {total:>14,.0f} {per:>10.3g}{once}   {price.date}{about}"
    for source, kinds in sources(known.values()).items():
        yield f"{', '.join(kinds)}: {source}"


def causes(plan: Plan) -> Iterator[str]:
    """Where the time of a step goes."""
    step = plan.chosen.step
    yield f"step {step.total:>9.3g} s"
    for cause in CAUSES:
        seconds = step.seconds[cause]
        if seconds > 0:
            yield f"  {cause:<16} {seconds:>9.3g} s {seconds / step.total:>7.1%}  {_bar(seconds / step.total)}"
    yield "  and on average, within the goodput:"
    for name, seconds, why in overheads(plan.question, plan.chosen).lines(plan.chosen):
        yield f"  {name:<16} {seconds:>9.3g} s {seconds / step.total:>7.1%}  {why}"


def memory(plan: Plan) -> Iterator[str]:
    """What fills the memory of the rank that has most."""
    step = plan.chosen.step
    total = sum(step.bytes.values())
    yield f"memory of a rank: {format_bytes(total)} of {format_bytes(step.room)}"
    for name in CLASSES if step.bytes["tables"] else CLASSES[:-1]:
        yield f"  {name:<16} {format_bytes(step.bytes[name]):>11} {step.bytes[name] / step.room:>7.1%}  " + _bar(
            step.bytes[name] / step.room
        )


def tables(plan: Plan) -> Iterator[str]:
    """Lines about a model with tables: what a rank has of them and reads of them."""
    model, step, ranks = plan.question.model, plan.chosen.step, plan.chosen.cluster.ranks
    if not isinstance(model, Recommender):
        return
    looked = step.layout.microbatch * len(model.divided)
    size = sum(model.divided) * model.width * ROW
    yield (
        f"tables: {len(model.divided)} of {len(model.rows)} divided by rows among {ranks:,} ranks, "
        f"{format_count(sum(model.divided))} rows of {model.width} in float32, {format_bytes(size)}; "
        f"{len(model.short)} of {sum(model.short):,} rows in all on each rank"
    )
    yield (
        f"  a step reads {looked:,} rows of a rank and adds to as many: {step.seconds['lookups']:.3g} s by DMA; "
        f"their exchange: {step.seconds['rows']:.3g} s in three all-to-all"
    )


def front(plan: Plan) -> Iterator[str]:
    """Candidates of which none is both sooner and cheaper."""
    yield "none is both sooner and cheaper than these:"
    yield from rows(_spread(plan.front), plan.question.model.counted)


def rows(candidates: Sequence[Candidate], counted: str = "tokens") -> Iterator[str]:
    """A table of candidates. counted: what a million of is paid for."""
    yield f"{'days':>8} {'$':>14} {f'$/M{counted[:3]}':>8} {'MFU':>6} {'memory':>9}  cluster and layout"
    for c in candidates:
        usd = f"{c.bill.usd:,.0f}" if c.bill.usd is not None else "-"
        each = f"{c.bill.usd_per_million:.3g}" if c.bill.usd_per_million is not None else "-"
        size = format_bytes(sum(c.step.bytes.values()))
        what = f"{c.cluster.name}, {c.step.layout}" + ("" if c.step.exact else f" ({RECKONED})")
        yield f"{c.bill.days:>8.3g} {usd:>14} {each:>8} {c.step.mfu:>6.1%} {size:>9}  {what}"


def _spread(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """At most ROWS, the first and the last among them."""
    if len(candidates) <= ROWS:
        return candidates
    return [candidates[round(i * (len(candidates) - 1) / (ROWS - 1))] for i in range(ROWS)]


def refused(plan: Plan) -> Iterator[str]:
    """What did not come into question."""
    others = "; the others:" if len(plan) < plan.looked_at else ""
    yield f"{plan.looked_at:,} layouts were looked at, {len(plan):,} fit{others}"
    for reason, count in plan.refused.most_common(REASONS):
        yield f"  {count:>9,}  {reason}"


def _bar(share: float) -> str:
    return "█" * round(min(share, 1.0) * BAR)


SECTIONS: list[Callable[[Plan], Iterator[str]]] = [question, chosen, dollars, causes, memory, tables, front, refused]
