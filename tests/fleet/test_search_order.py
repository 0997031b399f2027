# SPDX-License-Identifier: Apache-2.0
"""What a search compiles, and in what order, on stand-in costs; what stacks have in common is recorded once."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import ClassVar

import pytest
from test_searches_again import MadeUp, Wires

from trnlab import chips, stacks
from trnlab.fabric.cluster import Cluster
from trnlab.fleet import model
from trnlab.fleet.costs.programs import Programs
from trnlab.fleet.costs.timed import SharedRoutines
from trnlab.fleet.layers.shares import ShardSpec
from trnlab.fleet.planning import plan as planning
from trnlab.fleet.planning.question import Question
from trnlab.fleet.search.candidates import HOPE, SearchRounds, search
from trnlab.fleet.search.shard_costs import ShardKey, Training
from trnlab.fleet.search.steps import Planner
from trnlab.runtime.session import Session

TRAINING = Training(model("llama3-70b"), 1024, 8192)


class Counted(MadeUp):
    """Says which ends and which layers were asked for, by ranks of the tensor group."""

    def __init__(self, session):
        super().__init__(session)
        self.layered, self.ended = [], []

    def layer(self, model, block, spec):
        self.layered.append(spec.tensor)
        return super().layer(model, block, spec)

    def ends(self, model, spec, first, last):
        self.ended.append(spec.tensor)
        return super().ends(model, spec, first, last)


def _planner(instances: int, programs: Programs | None = None) -> Planner:
    session = Session(chips.target("trn2.48xlarge"))
    return Planner(Cluster(session.target, instances), programs or Counted(session), Wires(session.target))


def test_a_search_begins_in_the_middle_and_compiles_ends_of_fewer_shares_than_layers():
    planner = _planner(32)
    rounds = search(planner, TRAINING).rounds
    assert planner.programs.layered[0] == 16
    assert set(planner.programs.ended) <= set(planner.programs.layered)
    assert rounds.begun
    assert not set(rounds.begun) & set(rounds.compiled)
    assert {shard.tensor for shard in rounds.begun} - set(planner.programs.ended)


def test_what_other_instances_had_is_not_asked_for_again():
    first = search(_planner(32), TRAINING)
    planner = _planner(64)
    alone, after = search(_planner(64), TRAINING), search(planner, TRAINING, before=first.rounds)
    known = {*first.rounds.compiled, *first.rounds.begun}
    assert known <= {*after.rounds.compiled, *after.rounds.begun}
    assert len(planner.programs.layered) < len(known) or not planner.programs.layered
    assert after.steps.total.min() == pytest.approx(alone.steps.total.min(), rel=1e-12)


@pytest.mark.parametrize(("gain", "hope"), [(0.2, 0.8), (0.1, 0.9), (0.01, HOPE), (-0.1, HOPE)])
def test_all_halvings_to_come_gain_no_more_than_the_last_one(gain, hope):
    rounds = search(_planner(32), TRAINING).rounds
    half = rounds.compiled[next(iter(rounds.compiled))]
    (layer,) = half.layers
    double = replace(
        half,
        layers=(replace(layer, forward=layer.forward / 2, backward=layer.backward / 2, exposed=layer.exposed / 2),),
    )
    (layer,) = double.layers
    more = (layer.forward + layer.backward - layer.exposed) * gain
    double = replace(double, layers=(replace(layer, forward=layer.forward + more),))
    told = SearchRounds(rounds.planner, TRAINING, rounds.layouts)
    told.compiled = {ShardKey(32, 1): double, ShardKey(16, 1): half}
    assert told._hope(ShardKey(4, 1, again=2), ShardKey(16, 1)) == pytest.approx(hope)
    assert told._hope(ShardKey(64, 1), ShardKey(32, 1)) == HOPE


def test_stacks_share_routines_and_cost_what_they_cost_alone():
    known, spec, routines = model("bert-large"), ShardSpec(4, 128), SharedRoutines()
    block, found = known.stacks[0][1], []
    for text in ("vendor", "ours"):
        session = Session(chips.target("trn1.2xlarge"), stack=stacks.parse(text))
        shared = routines.of(session)
        before = len(shared)
        cost = Programs(session, {}, shared).layer(known, block, spec)
        own = {}
        alone = Programs(Session(session.target, stack=session.stack), {}, own).layer(known, block, spec)
        assert asdict(cost) == pytest.approx(asdict(alone), rel=1e-12)  # seconds are added up in another order
        found.append((len(shared) - before, len(own)))
    assert found[0][0] == found[0][1]
    assert 0 < found[1][0] < found[1][1]
    fp32 = Session(chips.target("trn1.2xlarge"), precision="fp32")
    assert not routines.of(fp32)


class OfChips(Counted):
    """NeuronCore-v2 takes four times as long; which tensor groups each chip was asked for."""

    asked: ClassVar[dict[str, set[int]]] = {}

    def __init__(self, session, known=None, routines=None):
        super().__init__(session)
        self.slow = 4 if session.chip.name == "trn1" else 1

    def layer(self, model, block, spec):
        self.asked.setdefault(self.session.target.name, set()).add(spec.tensor)
        return super().layer(model, block, spec)

    def stage(self, *args, **options):
        found = super().stage(*args, **options)
        return replace(found, forward=self.slow * found.forward, backward=self.slow * found.backward)


@pytest.mark.parametrize("names", [("trn1.32xlarge", "trn2.48xlarge"), ("trn2.48xlarge", "trn1.32xlarge")])
def test_what_is_later_and_dearer_at_best_is_not_compiled(names, monkeypatch):
    """The plan, and what is both sooner and cheaper, are those of a search that compiles everything hopeful."""
    monkeypatch.setattr(planning, "Programs", OfChips)
    monkeypatch.setattr(planning, "Exchange", lambda target, known: Wires(target))
    question = Question(model("llama3-8b"), 1e12, names, (1, 4), batch=256)
    monkeypatch.setattr(OfChips, "asked", {})
    short, few = planning.plan(question), OfChips.asked
    monkeypatch.setattr(OfChips, "asked", {})
    monkeypatch.setattr(planning, "_matters", lambda found, cluster: lambda steps: True)
    full, many = planning.plan(question), OfChips.asked
    assert [str(each) for each in short.front] == [str(each) for each in full.front]
    assert short.chosen == full.chosen
    assert few["trn2.48xlarge"] == many["trn2.48xlarge"]
    assert few["trn1.32xlarge"] < many["trn1.32xlarge"]
