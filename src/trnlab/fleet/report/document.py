# SPDX-License-Identifier: Apache-2.0
"""A plan as a document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.resources import files

from trnlab.chips.prices import KINDS, TOLD, latest, sources
from trnlab.documents import (
    PAGE,
    TERMINAL,
    Bar,
    Bars,
    Document,
    Drawing,
    HeadlineFigure,
    Key,
    Later,
    Note,
    Part,
    Section,
    Slice,
    Table,
)
from trnlab.fleet.comparison.alternatives import Alternative
from trnlab.fleet.comparison.alternatives import to_json as beside_to_json
from trnlab.fleet.comparison.contenders import UNHELD, PlanAccuracy
from trnlab.fleet.comparison.deciding import plan_to_json
from trnlab.fleet.models.recommend import Recommender
from trnlab.fleet.planning.overheads import overheads
from trnlab.fleet.planning.plan import Candidate, Plan
from trnlab.fleet.planning.question import Question
from trnlab.fleet.report import pictures
from trnlab.fleet.report.beside_document import sections
from trnlab.fleet.report.table import stacks_to_json, to_json
from trnlab.fleet.search.layout import filled_up
from trnlab.fleet.search.steps import CAUSES, CLASSES
from trnlab.fleet.search.tables import ROW
from trnlab.units import SECONDS_PER_DAY, format_bytes, format_count

ROWS, REASONS = 12, 12
REGION = "us-east-1"  # whose grid is counted, where nobody says
BARS = 7  # of the front on the page
_COLOURS = (
    "tensor",
    "gpsimd",
    "cc",
    "reference",
    "dma",
    "latency",
    "vector",
    "scalar",
    "sync",
    "accent",
    "faint",
    "edge",
)
_CAUSES = dict(zip(CAUSES, _COLOURS, strict=True))
_CLASSES = dict(zip(CLASSES, ("tensor", "vector", "scalar", "gpsimd", "dma", "sync")))
_ASSETS = files(__package__).joinpath("assets")
SCRIPT = _ASSETS.joinpath("plan.js")
_STEP = (
    "Of the chosen layout, and beside it of others by cause. pipeline: waiting for other stages. Checkpoints and "
    "input are what a step waits for on average, within the goodput."
)


def document(
    plan: Plan,
    others: Sequence[Alternative] = (),
    held: PlanAccuracy = UNHELD,
    region: str = REGION,
    stacked: Sequence[tuple[Plan, PlanAccuracy]] = (),
) -> Document:
    """The whole answer. others: the same tokens elsewhere; held: how plans stand beside published runs; region: whose
    grid is counted; stacked: the plans of all stacks that were asked for, this one the first. Raises UsageError as
    `Plan.chosen`."""
    asked, c = plan.question, plan.chosen
    style = Drawing(f"<style>{_ASSETS.joinpath('plan.css').read_text('utf-8')}</style>", on=PAGE)
    return Document(
        f"{asked.model.name}, {format_count(asked.tokens)} {asked.model.counted}",
        [
            style,
            *(Note(line, on=TERMINAL) for line in _question(plan)),
            _chosen(plan),
            *_stacks(stacked),
            Later(lambda: pictures.chosen(plan), on=PAGE),
            _dollars(plan),
            _step(plan),
            _memory(plan),
            *_tables(plan),
            Later(lambda: pictures.memory(plan), on=PAGE),
            Later(lambda: pictures.alternatives(plan, others, held), on=PAGE),
            Later(lambda: pictures.sensitivity(plan), on=PAGE),
            Section("none is both sooner and cheaper than these:", [_front(plan)], on=TERMINAL),
            Later(lambda: pictures.candidates(plan), on=PAGE),
            _refused(plan),
            *sections(plan, others, region, held),
        ],
        over=f"trnlab plan, {' or '.join(asked.targets)}",
        lede=f"Cheapest in time: {c.cluster.name}, {c.cluster.chips:,} chips, as {c.step.layout}.",
        figures=list(_figures(plan)),
        name=f"plan {asked.model.name}",
        scripts=[SCRIPT],
        record=lambda: {
            **to_json(plan),
            "band": plan_to_json(plan, held),
            "stacks": stacks_to_json(stacked),
            **beside_to_json(plan, others, region),
        },
    )


def _question(plan: Plan) -> Iterator[str]:
    """What was asked."""
    asked, model = plan.question, plan.question.model
    used = (
        f", {format_count(model.used)} of them for a {model.counted[:-1]}" if model.used != model.parameters else ""
    )
    yield f"{model.name}: {format_count(model.parameters)} parameters{used}"
    yield from work(asked, asked.precision)


def work(asked: Question, *how: str) -> Iterator[str]:
    """What is to be trained on, on what and until when. how: stands between the first two."""
    model, (low, high) = asked.model, asked.instances
    number = f"{low:,} to {high:,}" if high > low else f"{low:,}"
    each = f"sequences of {asked.training.sequence:,}" if model.counted == "tokens" else model.counted
    where = f"on {number} {' or '.join(asked.targets)}"
    yield ", ".join((f"{format_count(asked.tokens)} {model.counted} in steps of {asked.batch:,} {each}", *how, where))
    if asked.deadline is not None:
        yield f"within {asked.deadline / SECONDS_PER_DAY:.3g} days"


def _chosen(plan: Plan) -> Section:
    """The layout of choice: time, cost."""
    c, step = plan.chosen, plan.chosen.step
    rate = f"{step.tokens_per_s:,.0f} {plan.question.model.counted}/s"
    said = (
        f"{c.bill.days:.3g} days at a goodput of {c.goodput:.1%}; {rate} of all instances, "
        f"{step.tokens_per_s / c.cluster.chips:,.0f} a chip; MFU {step.mfu:.1%} of all cores"
    )
    size = f"{c.cluster.chips:,} chips, {c.cluster.ranks:,} ranks"
    notes = [Note(said), *map(Note, filled_up(c.padding, c.step.layout.tensor))]
    return Section(f"cheapest in time: {c.cluster.name} ({size}), {step.layout}", notes, on=TERMINAL)


def _stacks(stacked: Sequence[tuple[Plan, PlanAccuracy]]) -> Iterator[Section]:
    """The chosen layouts side by side: what the machine does with programs of each stack."""
    if not stacked:
        return
    head = ("by", "on", "layout", "step", "MFU", "days", "$", "published runs")
    rows = []
    for plan, held in stacked:
        c, step = plan.chosen, plan.chosen.step
        usd = f"{c.bill.usd:,.0f}" if c.bill.usd is not None else "-"
        spent = f"{step.total:.4g} s", f"{step.mfu:.1%}", f"{c.bill.days:.3g}", usd
        rows.append((plan.question.stack.title, c.cluster.name, str(step.layout), *spent, str(held)))
    say = "What the vendor's software makes of it, and what this hardware can do by programs that trnlab compiles."
    yield Section("by whose software", [Table(rows, head, (3, 4, 5, 6))], say=say)


def _figures(plan: Plan) -> Iterator[HeadlineFigure]:
    """The answer in large numbers."""
    asked, c = plan.question, plan.chosen
    per, counted, rate = c.bill.usd_per_million, asked.model.counted, c.step.tokens_per_s
    yield HeadlineFigure("Days", f"{c.bill.days:,.3g}", f"goodput {c.goodput:.1%}")
    usd = f"${c.bill.usd:,.0f}" if c.bill.usd is not None else "no public price"
    yield HeadlineFigure("Dollars", usd, c.bill.price.split(",")[0])
    yield HeadlineFigure(f"$ per million {counted}", f"{per:.3g}" if per else "-")
    if per is not None and asked.epoch:
        yield HeadlineFigure(
            "$ an epoch", f"{per * asked.epoch / 1e6:,.4g}", f"{format_count(asked.epoch)} {counted}"
        )
    yield HeadlineFigure(f"{counted.capitalize()}/s", f"{rate:,.0f}", f"{rate / c.cluster.chips:,.0f} a chip")
    yield HeadlineFigure("MFU", f"{c.step.mfu:.1%}", "of all cores")


def _dollars(plan: Plan) -> Section:
    """What it costs by each kind of price, which are never mixed."""
    c, epoch, target = plan.chosen, plan.question.epoch, plan.chosen.cluster.target
    hours = c.bill.device_hours / target.chips
    known = latest(target.name)
    blank = ("",) * (3 if epoch else 2)
    rows: list[tuple[str, ...]] = []
    known |= {TOLD: target.told} if target.told is not None else {}
    for kind in (*((TOLD,) if target.told is not None else ()), *KINDS):
        price = known.get(kind)
        if price is None:
            rows.append((kind, "none", *blank, f"none published for {target.name}"))
            continue
        total = price.usd(hours)
        per = total / plan.question.tokens * 1e6
        once = (f"{per * epoch / 1e6:,.2f}",) if epoch else ()
        about = "" if price.low == price.high else "   (the middle)"
        rows.append((kind, price.spelled, f"{total:,.0f}", f"{per:.3g}", *once, f"{price.date}{about}"))
    last = ("$/epoch",) if epoch else ()
    million = f"$/M{plan.question.model.counted}"
    head = ("price", "$/h", "$ in all", million, *last, f"of {hours:,.0f} instance hours")
    notes = [Note(f"{', '.join(kinds)}: {source}") for source, kinds in sources(known.values()).items()]
    say = f"{hours:,.0f} hours of {target.name}; between two prices the middle is billed."
    table = Table(rows, head, range(1, len(head) - 1))
    return Section(heading="Cost by kind of price", say=say, parts=[table, *notes])


def _step(plan: Plan) -> Section:
    """Where the time of a step goes."""
    step, found = plan.chosen.step, _some(plan)
    longest = max(c.step.total for c in found)

    def slices(c: Candidate) -> list[Slice]:
        seconds = c.step.seconds
        return [Slice(n, seconds[n] / longest, f"{seconds[n]:.3g} s", _colour(_CAUSES[n])) for n in CAUSES]

    own = [(n, step.seconds[n]) for n in CAUSES if step.seconds[n] > 0]
    rows = [
        Bar.of(n, s / step.total, f"{s:.3g} s", f"{s / step.total:.1%}", colour=_colour(_CAUSES[n])) for n, s in own
    ]
    waits = [
        (name, f"{s:.3g} s", f"{s / step.total:.1%}", why)
        for name, s, why in overheads(plan.question, plan.chosen).lines(plan.chosen)
    ]
    parts = [
        Bars([Bar(c.cluster.name, [f"{c.step.total:.3g} s"], slices(c)) for c in found], on=PAGE),
        Key([(n, _colour(_CAUSES[n]), "") for n in CAUSES if any(c.step.seconds[n] for c in found)]),
        Bars(rows),
        Note("and on average, within the goodput:"),
        Table(waits, numbers=(1, 2)),
    ]
    return Section(f"step {step.total:.3g} s", parts, heading="Where a step goes", say=_STEP)


def _memory(plan: Plan) -> Section:
    """What fills the memory of the rank that has most."""
    step, found = plan.chosen.step, _some(plan)
    total = format_bytes(sum(step.bytes.values()))

    def slices(c: Candidate) -> list[Slice]:
        sizes = c.step.bytes
        return [Slice(n, sizes[n] / c.step.room, format_bytes(sizes[n]), _colour(_CLASSES[n])) for n in CLASSES]

    others = [Bar(c.cluster.name, [format_bytes(sum(c.step.bytes.values()))], slices(c)) for c in found]
    rows = [
        Bar.of(n, share, format_bytes(step.bytes[n]), f"{share:.1%}", colour=_colour(_CLASSES[n]))
        for n in (CLASSES if step.bytes["tables"] else CLASSES[:-1])
        for share in [step.bytes[n] / step.room]
    ]
    say = f"Of the rank with most, which has {format_bytes(step.room)}; the whole width is that."
    key = Key([(n, _colour(_CLASSES[n]), "") for n in CLASSES])
    title = f"memory of a rank: {total} of {format_bytes(step.room)}"
    return Section(title, [Bars(others, on=PAGE), key, Bars(rows)], heading="Memory", say=say)


def _colour(name: str) -> str:
    return f"var(--{name})"


def _some(plan: Plan) -> list[Candidate]:
    """The chosen one and up to six others of the front."""
    others = [c for c in plan.front if c != plan.chosen]
    return [plan.chosen, *others[:: max(1, -(-len(others) // (BARS - 1)))]]


def _tables(plan: Plan) -> Iterator[Section]:
    """About a model with tables: what a rank has of them and reads of them."""
    model, step, ranks = plan.question.model, plan.chosen.step, plan.chosen.cluster.ranks
    if not isinstance(model, Recommender):
        return
    looked = step.layout.microbatch * len(model.divided)
    size = sum(model.divided) * model.width * ROW
    title = (
        f"tables: {len(model.divided)} of {len(model.rows)} divided by rows among {ranks:,} ranks, "
        f"{format_count(sum(model.divided))} rows of {model.width} in float32, {format_bytes(size)}; "
        f"{len(model.short)} of {sum(model.short):,} rows in all on each rank"
    )
    said = (
        f"a step reads {looked:,} rows of a rank and adds to as many: {step.seconds['lookups']:.3g} s by DMA; "
        f"their exchange: {step.seconds['rows']:.3g} s in three all-to-all"
    )
    yield Section(title, [Note(said)], on=TERMINAL)
    yield Section(heading="Tables", say=title, parts=[Note(said)], on=PAGE)


def _front(plan: Plan) -> Table:
    """Candidates of which none is both sooner and cheaper."""
    rows = []
    for c in _spread(plan.front):
        usd = f"{c.bill.usd:,.0f}" if c.bill.usd is not None else "-"
        each = f"{c.bill.usd_per_million:.3g}" if c.bill.usd_per_million is not None else "-"
        size = format_bytes(sum(c.step.bytes.values()))
        where = f"{c.cluster.name}, {pictures.layout(c)}"
        rows.append((f"{c.bill.days:.3g}", usd, each, f"{c.step.mfu:.1%}", size, where))
    million = f"$/M{plan.question.model.counted[:3]}"
    return Table(rows, ("days", "$", million, "MFU", "memory", "cluster and layout"), range(5))


def _spread(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """At most ROWS, the first and the last among them."""
    if len(candidates) <= ROWS:
        return candidates
    return [candidates[round(i * (len(candidates) - 1) / (ROWS - 1))] for i in range(ROWS)]


def _refused(plan: Plan) -> Section:
    """What did not come into question."""
    others = "; the others:" if len(plan) < plan.looked_at else ""
    title = f"{plan.looked_at:,} layouts were looked at, {len(plan):,} fit{others}"
    rows = [(f"{count:,}", reason) for reason, count in plan.refused.most_common()]
    parts: list[Part] = [Table(rows, numbers=[0], most=REASONS)]
    effort = plan.effort
    if effort["shares"]:
        parts.append(
            Note(
                f"{effort['compiled']:,} of {effort['shares']:,} shares of a rank were compiled, and "
                f"{effort['wholes']:,} steps as a whole; {effort['reckoned']:,} layouts are reckoned from those: at "
                "best none of them beats the best by 1 %"
            )
        )
    say = f"{plan.looked_at:,} layouts were looked at, {len(plan):,} fit."
    return Section(title, parts, heading="What did not fit", say=say)
