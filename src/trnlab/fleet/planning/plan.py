# SPDX-License-Identifier: Apache-2.0
"""From a question to a plan: the cluster and layout that train a model on so many tokens, in days and dollars.

plan(Question(model("llama3-8b"), tokens=1e12, targets=("trn1.32xlarge",), instances=(16, 64)))
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from trnlab import chips
from trnlab.chips import interconnects
from trnlab.chips.catalog import Target
from trnlab.documents.notebooks import ShownInNotebooks
from trnlab.errors import UsageError
from trnlab.fabric.cluster import Cluster
from trnlab.fleet.arrays import Bools, Floats, Ints
from trnlab.fleet.bills.money import Bill, bill
from trnlab.fleet.costs.exchange import Exchange
from trnlab.fleet.costs.programs import Programs
from trnlab.fleet.costs.ranks import Ranks
from trnlab.fleet.costs.store import CostStore, opened
from trnlab.fleet.costs.timed import SharedRoutines
from trnlab.fleet.models.recommend import Recommender
from trnlab.fleet.models.transformer import Model
from trnlab.fleet.planning.question import FORMS, Question
from trnlab.fleet.reliability.goodput import Goodput
from trnlab.fleet.reliability.measures import SCATTER, Job
from trnlab.fleet.search.candidates import TOO_LARGE, SearchResult, SearchRounds, SmallestLayout, least, search
from trnlab.fleet.search.confirmed import are_one_program, confirmed
from trnlab.fleet.search.layout import padding
from trnlab.fleet.search.prefetch import CompilePool, PrefetchingPlanner
from trnlab.fleet.search.replicas import Replicas
from trnlab.fleet.search.steps import PlannedStep, PlannedSteps, Planner
from trnlab.fleet.search.tables import ROW, Tables
from trnlab.precision import MODES
from trnlab.units import SECONDS_PER_DAY, SECONDS_PER_HOUR, format_bytes

FURTHER = 5  # doublings of the instances that are looked at for a way out, where nothing fits or is in time
ROOMIER = 6  # the same, where only room for weights, gradients and the optimizer is looked for
WHOLE_HOPE = 0.95  # of what parts add up to: what a step that is one program takes at best
STATE = "weights, gradients and the optimizer's state alone"
UNPRICED = 1e30  # dollars, as it were, of what has no public price: after all that has one, by device hours


@dataclass(frozen=True)
class Candidate:
    """A layout on a cluster, and what the whole run of a model takes there."""

    cluster: Cluster
    step: PlannedStep
    after_failures: Goodput  # what failures leave, of which `goodput` is the share
    bill: Bill
    model: Model

    @property
    def goodput(self) -> float:
        """The share of the time in which the run advances."""
        return self.after_failures.share

    @property
    def padding(self) -> list[tuple[int, int]]:
        """Heads of each kind of block that a tensor group does not divide, and to how many they are filled up."""
        return padding(self.model, self.step.layout.tensor)

    @property
    def stall(self) -> float:
        """Seconds of a step that saves of checkpoints hold it up, on average."""
        return self.after_failures.stall * self.step.total / self.after_failures.interval


@dataclass(frozen=True)
class ClusterTable:
    """All steps that fit on a cluster."""

    cluster: Cluster
    steps: PlannedSteps
    # days, worth: [N]; worth is what is to be small: dollars where there is a price, else device hours
    days: Floats
    worth: Floats
    # the search that they come from, which goes on where one of them turns out to be something else; None of models
    # that are no stacks of blocks
    rounds: SearchRounds | None = None

    def open(self, model: Model) -> Bools:
        """[N] which steps are one program and were not compiled as such."""
        if self.rounds is None:
            return np.zeros(len(self.days), np.bool_)
        rows = np.flatnonzero(are_one_program(model, self.steps.layouts))
        found = np.zeros(len(self.days), np.bool_)
        found[[i for i in rows.tolist() if not self.rounds.knows(self.steps.layouts.layout(i))]] = True
        return found


@dataclass
class Plan(ShownInNotebooks):
    """All that fits, and why the rest does not.

    chosen: the cheapest that keeps the deadline; without prices, the one with fewest device hours.
    """

    question: Question
    tables: list[ClusterTable] = field(default_factory=list)
    looked_at: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    nearest: tuple[Cluster, PlannedStep] | None = None
    least: tuple[Cluster, SmallestLayout] | None = None
    compiled: int = 0
    folder: Path | None = None
    stores: Mapping[str, CostStore] = field(default_factory=dict, repr=False)  # of costs, by target

    def __len__(self) -> int:
        return sum(len(table.days) for table in self.tables)

    @cached_property
    def _columns(self) -> tuple[Ints, Ints, Floats, Floats]:
        """Columns of all candidates: which table, which row, days, worth."""
        if not self.tables:
            none = np.zeros(0)
            return none.astype(np.int64), none.astype(np.int64), none, none
        sizes = [len(table.days) for table in self.tables]
        return (
            np.repeat(np.arange(len(sizes)), sizes),
            np.concatenate([np.arange(n) for n in sizes]),
            np.concatenate([table.days for table in self.tables]),
            np.concatenate([table.worth for table in self.tables]),
        )

    @property
    def _in_time(self) -> Bools:
        days, most = self._columns[2], self.question.deadline
        return np.ones(len(days), np.bool_) if most is None else days * SECONDS_PER_DAY <= most

    def _candidate(self, i: int) -> Candidate:
        table = self.tables[int(self._columns[0][i])]
        step = table.steps.step(int(self._columns[1][i]))
        cluster, asked = table.cluster, self.question
        kept = job_of(asked, cluster, step.total).goodput(asked.reliability)
        return Candidate(
            cluster,
            step,
            kept,
            bill(asked.tokens, step.tokens_per_s, kept.share, cluster.target, cluster.instances),
            asked.model,
        )

    @cached_property
    def chosen(self) -> Candidate:
        """Raises UsageError where nothing fits (TRN174) or nothing is in time (TRN175)."""
        if not len(self):
            raise self._nothing_fits()
        if not self._in_time.any():
            raise self._too_late()
        return self.best(1)[0]

    @property
    def place(self) -> tuple[int, int] | None:
        """Table and row of the cheapest that is in time; None without any."""
        tables, rows, days, worth = self._columns
        if not len(self) or not self._in_time.any():
            return None
        i = int(np.lexsort((days, np.where(self._in_time, worth, np.inf)))[0])
        return int(tables[i]), int(rows[i])

    @property
    def effort(self) -> dict[str, int]:
        """How much of the search was compiled: shares of a rank that layouts have and that were compiled; steps that
        were compiled as a whole; layouts that were reckoned, of which none might beat the best."""
        rounds = [(table.cluster.target.name, table.rounds) for table in self.tables if table.rounds is not None]
        return {
            "shares": len({(name, piece) for name, each in rounds for piece in each.pieces}),
            "compiled": len(
                {(name, piece) for name, each in rounds for piece in each.compiled if piece in each.pieces}
            ),
            "wholes": sum(step is not None for _, each in rounds for step in each.wholes.values()),
            "reckoned": sum(int((~table.steps.exact).sum()) for table in self.tables),
        }

    def unconfirmed(self) -> tuple[int, int] | None:
        """Table and row of the step that is to be compiled as a whole next: of those that are one program the best,
        if it might be better than the best that is known as it is; None where none might."""
        tables, rows, _, worth = self._columns
        if self.place is None:
            return None
        worth = np.where(self._in_time, worth, np.inf)
        open_ = np.concatenate([table.open(self.question.model) for table in self.tables])
        exact = np.concatenate([table.steps.exact for table in self.tables])
        hoped = np.where(open_ & exact, worth * WHOLE_HOPE, np.inf)
        i = int(hoped.argmin())
        if not hoped[i] < worth[exact & ~open_].min(initial=np.inf):
            return None
        return int(tables[i]), int(rows[i])

    def beats(self, other: ClusterTable) -> bool:
        """Whether a step that is known as it is is sooner and cheaper than all of another table."""
        _, _, days, worth = self._columns
        if not len(self):
            return False
        known = np.concatenate([table.steps.exact & ~table.open(self.question.model) for table in self.tables])
        return bool((known & (days < other.days.min()) & (worth < other.worth.min())).any())

    def best(self, count: int) -> list[Candidate]:
        """The cheapest that are in time, the cheapest first."""
        _, _, days, worth = self._columns
        order = np.lexsort((days, np.where(self._in_time, worth, np.inf)))
        return [self._candidate(int(i)) for i in order[:count] if self._in_time[i]]

    @cached_property
    def front(self) -> list[Candidate]:
        """Those of which no other is both sooner and cheaper, soonest first."""
        _, _, days, worth = self._columns
        order = np.lexsort((worth, days))
        best = np.minimum.accumulate(worth[order])
        better = np.r_[True, best[1:] < best[:-1]] if len(order) else np.zeros(0, np.bool_)
        return [self._candidate(int(i)) for i in order[better]]

    def _nothing_fits(self) -> UsageError:
        furthest = list(self.refused.items())[::-1][:3]  # reasons stand in the order in which they are looked for
        why = ", ".join(f"{reason} ({count:,})" for reason, count in furthest)
        got, remedy = f"{self.looked_at:,} layouts: {why}", "give less of --layout, or another --global-batch"
        if self.nearest is not None:
            remedy = "allow more instances, or a target with more memory"
            cluster, step = self.nearest
            lacking = format_bytes(sum(step.bytes.values()) - step.room)
            got += f"; {step.layout} on {cluster.name} lacks {lacking} of {format_bytes(step.room)} on a rank"
            further = self._further(lambda plan: bool(len(plan)))
            if further is not None:
                remedy = f"{further.step.layout} on {further.cluster.name} fits"
        elif self.least is not None:
            cluster, needed = self.least
            got += f"; {needed.layout} on {cluster.name} lacks at least "
            got += f"{format_bytes(needed.lacks)} of {format_bytes(needed.room)} on a rank, for {STATE}"
            remedy = self._roomier()
        return UsageError(
            f"{self.question.model.name} fits no layout",
            code="TRN174",
            got=got,
            limit=" or ".join(self.question.targets),
            remedy=remedy,
        )

    def _too_late(self) -> UsageError:
        first = self._candidate(int(self._columns[2].argmin()))
        most = self.question.deadline or 0.0
        remedy = "allow more instances or more days, or train on fewer tokens"
        further = self._further(lambda plan: bool(plan._in_time.any()))
        if further is not None:
            remedy = f"{further.step.layout} on {further.cluster.name} takes {further.bill.days:.3g} days"
        return UsageError(
            "no layout is in time",
            code="TRN175",
            limit=f"{most / SECONDS_PER_DAY:.3g} days",
            got=f"{first.bill.days:.3g} days with {first.step.layout} on {first.cluster.name}, "
            f"{first.bill.days * SECONDS_PER_DAY / most:.3g} times as long",
            remedy=remedy,
        )

    def _roomier(self) -> str:
        """What has room for what every layout needs: more instances, or another target. Compiles nothing, so that
        it is not known what the rest takes: as much is left for it, as `Job.copy` does."""
        asked, most = self.question, self.question.instances[1]
        more = [(name, most << k) for k in range(1, ROOMIER + 1) for name in asked.targets]
        other = [(name, 1 << k) for k in range(ROOMIER + 1) for name in chips.TARGETS if name not in asked.targets]
        other.sort(key=lambda pair: chips.target(pair[0]).chips * pair[1])
        for name, instances in (*more, *other):
            if not _joined(chips.target(name)):
                continue
            needed = least(_planner(asked, name, instances, None), asked.training, asked.pinned)
            if needed is not None and needed.bytes * SCATTER <= needed.room:
                return (
                    f"--target {name} --instances {instances}: with {needed.layout} those take "
                    f"{format_bytes(needed.bytes)} of {format_bytes(needed.room)}, and leave as much for the rest"
                )
        return "give less of --layout, or take a smaller model: nothing that was looked at has room for it"

    def _further(self, serves: Callable[[Plan], bool]) -> Candidate | None:
        """The best plan on more instances than were asked for, the fewest that serve."""
        most = self.question.instances[1]
        names = tuple(name for name in self.question.targets if _joined(chips.target(name)))
        for doublings in range(1, FURTHER + 1 if names else 0):
            asked = replace(self.question, targets=names, instances=(most << doublings, most << doublings))
            found = plan(asked, self.folder)
            if serves(found):
                return found.best(1)[0]
        return None


def plan(
    question: Question,
    folder: Path | None = None,
    said: Callable[[str], None] = lambda _: None,
    pool: CompilePool | None = None,
    came: Callable[[Plan], None] = lambda _: None,
    routines: SharedRoutines | None = None,
) -> Plan:
    """Search all targets and numbers of instances.

    folder: where costs of programs and times of collectives are kept. said: hears of progress. pool: compiles what
    the search may ask for. came: is shown the plan so far after each cluster. routines: what plans of other stacks
    have recorded.
    """
    found, routines = Plan(question, folder=folder), routines or SharedRoutines()
    for name in question.targets:
        if pool is not None and question.model.stacks:
            planner = _planner(question, name, question.instances[0], folder)
            pool.enqueue(planner, question.training, question.pinned)
    names = sorted(question.targets, key=lambda name: _price_of_peak(question, name))  # what others are held against
    found.stores = {name: _on(found, name, said, pool, came, routines) for name in names}
    return _confirmed(found, said)


def differs_in_steps(first: Question, second: Question) -> bool:
    """Whether two questions have other steps. Tokens and deadline change none; prices do where there are several
    targets, since what is sooner or cheaper on none of them is not compiled."""
    alike = (replace(q, tokens=math.inf, deadline=None) for q in (first, second))
    one, other = (repr(q if len(q.targets) > 1 else replace(q, prices={})) for q in alike)
    return one != other


def asked_again(found: Plan, question: Question, said: Callable[[str], None] = lambda _: None) -> Plan:
    """The plan of a question from one of a question with the same steps, see `differs_in_steps`."""
    tables = []
    for t in found.tables:
        cluster = replace(t.cluster, target=question.priced(chips.target(t.cluster.target.name)))
        tables.append(_table(question, cluster, t.steps, t.rounds))
    again = replace(found, question=question, tables=tables, refused=Counter(found.refused), compiled=0)
    return _confirmed(again, said)


def _on(
    found: Plan,
    name: str,
    said: Callable[[str], None],
    pool: CompilePool | None,
    came: Callable[[Plan], None],
    routines: SharedRoutines,
) -> CostStore:
    """Search all numbers of instances of one target; returns where costs are kept."""
    question = found.question
    session = question.session(chips.target(name))
    store = opened(found.folder, session.target, question.precision, question.stack)
    programs = Programs(session, store.programs, routines.of(session))
    exchange = Exchange(session.target, store.exchange)
    source, form = question.source, FORMS[question.precision]
    ranks = Ranks(source, session, store.programs, form) if source is not None else None
    before: SearchRounds | None = None
    for instances in _numbers(*question.instances):
        if instances > max(question.instances[0], 1) and not _joined(session.target):
            said(f"{name} has no network cards: several of it cannot train together")
            break
        cluster = Cluster(question.priced(session.target), instances)
        made = programs.compiled + (ranks.compiled if ranks is not None else 0)
        said(f"{cluster.name}: {len(found):,} layouts fit so far, {made} programs compiled")
        if ranks is not None:
            _gather(found, cluster, Replicas(ranks, exchange).search(cluster, question.batch, question.pinned))
        elif isinstance(question.model, Recommender):
            tables = Tables(cluster, programs, exchange, form)
            _gather(found, cluster, tables.search(question.model, question.batch, question.pinned))
        else:
            planner = PrefetchingPlanner(cluster, programs, exchange, pool=pool)
            result = search(planner, question.training, question.pinned, before, _matters(found, cluster))
            before = result.rounds or before
            _gather(found, cluster, result)
        store.save()
        came(replace(found, tables=list(found.tables)))  # columns of a plan are made once, when they are asked for
    found.compiled += programs.compiled + (ranks.compiled if ranks is not None else 0)
    return store


def _matters(found: Plan, cluster: Cluster) -> Callable[[PlannedSteps], bool]:
    """Whether steps on a cluster, the best of those that fit, might be sooner or cheaper than all that were found
    before."""
    known = replace(found, tables=list(found.tables))

    def matters(steps: PlannedSteps) -> bool:
        fits = steps.memory <= steps.room
        return not fits.any() or not known.beats(_table(found.question, cluster, steps.take(fits), None))

    return matters


def _price_of_peak(question: Question, name: str) -> tuple[bool, float]:
    """Dollars an hour of a FLOP/s; of a target without a price the chips."""
    target = question.priced(chips.target(name))
    peak = target.cores * target.chip.peak_flops(MODES[question.precision])
    return target.price is None, (target.chips if target.price is None else target.price.usd(1.0)) / peak


def _confirmed(found: Plan, said: Callable[[str], None]) -> Plan:
    """With steps that are one program compiled as such, as long as one that is not is the best, or might be."""
    while (place := found.unconfirmed()) is not None:
        table = found.tables[place[0]]
        rounds, step = table.rounds, table.steps.step(place[1])
        assert rounds is not None
        said(f"{table.cluster.name}: compiling all of {step.layout}")
        programs = rounds.planner.programs
        made = programs.compiled
        whole = confirmed(rounds.planner, found.question.training, step)
        steps = rounds.learn(step.layout, whole)
        found.stores[table.cluster.target.name].save()
        found.compiled += programs.compiled - made
        found = _again(found, place[0], steps)
        if whole is not None and not whole.fits and found.nearest is None:
            found.nearest = table.cluster, whole
    return found


def _again(found: Plan, number: int, steps: PlannedSteps) -> Plan:
    """The plan with other steps on one cluster."""
    table, tables = found.tables[number], list(found.tables)
    fits = steps.memory <= steps.room
    found.refused[TOO_LARGE] += len(table.steps) - int(fits.sum())
    found.refused += Counter()
    tables[number : number + 1] = (
        [_table(found.question, table.cluster, steps.take(fits), table.rounds)] if fits.any() else []
    )
    return replace(found, tables=tables)


def _planner(question: Question, name: str, instances: int, folder: Path | None) -> Planner:
    session = question.session(chips.target(name))
    store = opened(folder, session.target, question.precision, question.stack)
    programs, exchange = Programs(session, store.programs), Exchange(session.target, store.exchange)
    return Planner(Cluster(session.target, instances), programs, exchange)


def _joined(target: Target) -> bool:
    """Whether several of it can train together."""
    return interconnects.of(target).cards > 0


def _numbers(low: int, high: int) -> Iterator[int]:
    """The fewest, doubled as long as that is not more than the most, and the most."""
    number = low
    while number < high:
        yield number
        number *= 2
    yield high


def _gather(plan: Plan, cluster: Cluster, found: SearchResult) -> None:
    plan.looked_at += found.looked_at
    plan.refused += found.refused
    if found.steps is not None:
        plan.tables.append(_table(plan.question, cluster, found.steps, found.rounds))
    if found.nearest is not None:
        step = found.nearest
        if plan.nearest is None or sum(step.bytes.values()) < sum(plan.nearest[1].bytes.values()):
            plan.nearest = cluster, step
    if found.least is not None and (plan.least is None or found.least.lacks < plan.least[1].lacks):
        plan.least = cluster, found.least


def job_of(question: Question, cluster: Cluster, step: float) -> Job:
    """The job that fails now and then, whose checkpoints are those of the model; step: seconds of one."""
    state = ROW if isinstance(question.model, Recommender) else question.training.state
    return Job(cluster.target, cluster.chips, question.model.parameters, step, state=state)


def _table(question: Question, cluster: Cluster, steps: PlannedSteps, rounds: SearchRounds | None) -> ClusterTable:
    goodput = job_of(question, cluster, 0.0).shares(question.reliability, steps.total)
    with np.errstate(divide="ignore"):
        seconds = question.tokens / (steps.tokens / steps.total * goodput)
    hours, price = seconds / SECONDS_PER_HOUR * cluster.instances, cluster.target.price
    worth = hours * price.usd(1.0) if price is not None else UNPRICED + hours * cluster.target.chips
    return ClusterTable(cluster, steps, seconds / SECONDS_PER_DAY, worth, rounds)
