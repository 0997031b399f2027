# SPDX-License-Identifier: Apache-2.0
"""What a plan leans on: the chosen layout's days and dollars when one figure is a fifth less or more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from trnlab.chips.figures import figures, with_figures
from trnlab.fabric.cluster import Cluster
from trnlab.fleet.bills.money import Bill, bill
from trnlab.fleet.costs.exchange import Exchange
from trnlab.fleet.costs.programs import Programs
from trnlab.fleet.costs.ranks import Ranks
from trnlab.fleet.costs.store import opened
from trnlab.fleet.models.recommend import Recommender
from trnlab.fleet.planning.plan import Candidate, Plan, job_of
from trnlab.fleet.planning.question import FORMS
from trnlab.fleet.search.layout import columns_of
from trnlab.fleet.search.replicas import Replicas
from trnlab.fleet.search.steps import PlannedStep, Planner
from trnlab.fleet.search.tables import Tables

LESS, MORE = 0.8, 1.2
HBM = ("hbm.bandwidth", "hbm.alone", "dma.engine_bandwidth")  # what programs see of it, too
TALK = ("tensor parallel", "context parallel", "experts", "gradients", "weights", "pipeline", "rows")


@dataclass(frozen=True)
class FigureSensitivity:
    """What one figure does."""

    name: str
    # less, more: the bill with a fifth less or more of it, `base` as it is
    less: Bill
    base: Bill
    more: Bill
    how: str  # in words

    @property
    def swing(self) -> float:
        """How far it moves dollars (device hours, without a price), as a share of what the plan says."""
        low, high = sorted((_cost(self.less), _cost(self.more)))
        return (high - low) / _cost(self.base) if _cost(self.base) else 0.0


def sensitivities(plan: Plan) -> list[FigureSensitivity]:
    """Sensitivity to each figure, what moves the plan most first."""
    return sorted(_each(plan), key=lambda x: -x.swing)


def _each(plan: Plan) -> Iterator[FigureSensitivity]:
    c = plan.chosen
    base = c.bill

    def of(name: str, how: str, less: Bill, more: Bill) -> FigureSensitivity:
        return FigureSensitivity(name, less, base, more, how)

    hbm = [_paid(plan, c, _with_memory(plan, c, f)) for f in (LESS, MORE)]
    yield of("HBM bandwidth", "the layout's programs compiled and timed again", hbm[0], hbm[1])
    talk = [_paid(plan, c, _scaled(c.step, TALK, 1 / f)) for f in (LESS, MORE)]
    yield of("rate of links", "what is exposed of exchanges, in proportion", talk[0], talk[1])
    work = [_paid(plan, c, _scaled(c.step, ("compute", "recompute", "optimizer"), 1 / f)) for f in (LESS, MORE)]
    yield of("speed of computation", "work in proportion", work[0], work[1])
    failing = [_paid(plan, c, c.step, f) for f in (LESS, MORE)]
    yield of("hours between failures", "goodput of so much more reliable devices", failing[0], failing[1])
    if base.usd is not None and base.usd_per_million is not None:
        prices = [replace(base, usd=base.usd * f, usd_per_million=base.usd_per_million * f) for f in (LESS, MORE)]
        yield of("price of an hour", base.price.split(",")[0], prices[0], prices[1])


def _with_memory(plan: Plan, c: Candidate, factor: float) -> PlannedStep:
    """The same layout on a chip of other HBM."""
    asked, target = plan.question, c.cluster.target
    known = dict(figures(target.chip))
    chip = with_figures(target.chip, {name: float(known[name].value) * factor for name in HBM})
    changed = replace(target, chip=chip)
    store = opened(plan.folder, changed, asked.precision, asked.stack)
    session = asked.session(changed)
    exchange = Exchange(target, opened(plan.folder, target, asked.precision, asked.stack).exchange)
    cluster = Cluster(changed, c.cluster.instances)
    if asked.source is not None:
        ranks = Ranks(asked.source, session, store.programs, FORMS[asked.precision])
        changed_step = Replicas(ranks, exchange).steps(cluster, columns_of([c.step.layout]), asked.batch).step(0)
        store.save()
        return changed_step
    if isinstance(asked.model, Recommender):
        tables = Tables(cluster, Programs(session, store.programs), exchange, FORMS[asked.precision])
        changed_step = tables.steps(asked.model, c.step.layout, asked.batch).step(0)
        store.save()
        return changed_step
    planner = Planner(cluster, Programs(session, store.programs), exchange)
    step = planner.step(asked.training, c.step.layout)
    store.save()
    return step


def _scaled(step: PlannedStep, causes: tuple[str, ...], factor: float) -> PlannedStep:
    seconds = {name: s * (factor if name in causes else 1.0) for name, s in step.seconds.items()}
    return replace(step, seconds=seconds, total=sum(seconds.values()))


def _paid(plan: Plan, c: Candidate, step: PlannedStep, reliable: float = 1.0) -> Bill:
    goodput = c.goodput
    if reliable != 1.0:
        job, how = job_of(plan.question, c.cluster, step.total), plan.question.reliability
        goodput *= job.goodput(how.scaled(1 / reliable)).share / job.goodput(how).share
    return bill(plan.question.tokens, step.tokens_per_s, goodput, c.cluster.target, c.cluster.instances)


def _cost(bill: Bill) -> float:
    return bill.usd if bill.usd is not None else bill.device_hours
