# SPDX-License-Identifier: Apache-2.0
"""What a plan holds and sends follows its precision: weights of float32 are the only ones, and are sent as such."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from trnlab import chips
from trnlab.fabric.cluster import Cluster
from trnlab.fleet import Question, plan
from trnlab.fleet.costs.exchange import Exchange
from trnlab.fleet.costs.programs import MicrobatchCost, Programs
from trnlab.fleet.layers.sizes import Attention, Dense, Experts
from trnlab.fleet.models.transformer import Block, Model
from trnlab.fleet.planning import plan as planning
from trnlab.fleet.search.layout import Layout, columns_of, pinned
from trnlab.fleet.search.steps import Planner
from trnlab.runtime.session import Session

ATTENTION = Attention(2, 2, 64, 64)
SMALL = Model("small", 128, ((2, Block(128, ATTENTION, Dense(256))),), 128, 512)
SPARSE = Model("sparse", 128, ((2, Block(128, ATTENTION, Experts(8, 2, 256))),), 128, 512)
BATCH, SUM = 32, 4
WIDTHS = {"bf16": 2, "fp32": 4}
STATE = {
    "bf16": 12,
    "fp32": 8,
}  # bytes for each parameter: two moments, and what weights in bfloat16 are rounded from
BOTH = pytest.mark.parametrize("precision", WIDTHS)


class Counted(Exchange):
    """Says of each kind of collective how many bytes a rank has in it."""

    def __init__(self, target):
        super().__init__(target)
        self.sent = defaultdict(list)

    def seconds(self, kind, stride, count, nbytes):
        self.sent[kind] += np.where(count > 1, nbytes, 0.0)[nbytes > 0].tolist()
        return np.zeros(len(nbytes))


class MadeUp(Programs):
    """Stages that cost next to nothing; what of an optimizer's step was asked for."""

    def __init__(self, session, known=None, routines=None):
        super().__init__(session, known)
        self.asked, self.updated = [], []

    def stage(self, model, blocks, share, first=False, last=False):
        return MicrobatchCost(1e-6 * len(blocks), 2e-6 * len(blocks))

    def update(self, parameters, rounded=True):
        self.updated.append(rounded)
        return parameters * 1e-11

    def of_parts(self, model, ranks, make):
        self.asked.append(make.__name__)
        return 1e-6


def _planner(precision):
    session = Session(chips.target("trn1.32xlarge"), precision=precision)
    return Planner(Cluster(session.target, 1), MadeUp(session), Counted(session.target))


def _training(model, precision):
    return Question(model, 1e9, ("trn1.32xlarge",), batch=BATCH, precision=precision).training


def _sent(model, precision, layout):
    """Bytes of a rank in all collectives of each kind."""
    planner = _planner(precision)
    planner.terms(_training(model, precision), columns_of([layout]))
    return {kind: [size for size in sizes if size] for kind, sizes in planner.exchange.sent.items()}


@BOTH
def test_new_weights_are_given_back_as_wide_as_they_are(precision):
    sent = _sent(SMALL, precision, Layout(1, 1, 32, zero=1))
    assert sent["all_gather"] == [WIDTHS[precision] * SMALL.parameters]
    assert sent["reduce_scatter"] == [SUM * SMALL.parameters]


@BOTH
def test_weights_are_gathered_unit_by_unit_as_wide_as_they_are(precision):
    sent = _sent(SMALL, precision, Layout(1, 1, 32, zero=3))
    for kind, width in (("all_gather", WIDTHS[precision]), ("reduce_scatter", SUM)):
        embedding, layer, *last = sent[kind]
        assert embedding + SMALL.layers * layer + sum(last) == pytest.approx(width * SMALL.parameters)


@BOTH
def test_activations_rows_and_keys_are_sent_as_wide_as_they_are(precision):
    width, token = WIDTHS[precision], 128
    between = _sent(SMALL, precision, Layout(1, 2, 16))["collective_permute"]
    assert between == [width * SMALL.sequence * token]
    keys = _sent(SMALL, precision, Layout(1, 1, 16, context=2, zero=0))["all_gather"][0]
    assert keys == width * SMALL.sequence * 2 * 2 * 64  # two heads' keys and values
    rows = {name: _sent(SPARSE, name, Layout(1, 1, 32, expert=8))["all_to_all"] for name in WIDTHS}
    assert rows[precision] == [size * width / 2 for size in rows["bf16"]]
    assert rows["bf16"]


@BOTH
@pytest.mark.parametrize("zero", [0, 3])
def test_a_rank_holds_weights_as_wide_as_they_are(precision, zero, monkeypatch):
    monkeypatch.setattr(planning, "Programs", MadeUp)
    # what is made up is never compiled
    monkeypatch.setattr(planning, "are_one_program", lambda _, layouts: np.zeros(len(layouts), np.bool_))
    fixed = pinned(f"tp=1,pp=1,mb=1,zero={zero},overlap=1,recompute=none")
    asked = Question(SMALL, 1e9, ("trn1.2xlarge",), (1, 1), batch=2, precision=precision, fixed=fixed)
    found = plan(asked).chosen
    width, state = WIDTHS[precision], STATE[precision]
    weights, optimizer = (width, state) if zero == 0 else ((width + state - 8) / 2, 8 / 2)  # of two ranks
    assert found.step.bytes["weights"] == pytest.approx(weights * SMALL.parameters, abs=1)
    assert found.step.bytes["optimizer"] == pytest.approx(optimizer * SMALL.parameters, abs=1)
    saved = planning.job_of(asked, found.cluster, found.step.total).state_bytes
    assert saved == (width + state) * SMALL.parameters


@BOTH
def test_only_weights_that_are_gathered_narrower_are_rounded(precision):
    planner = _planner(precision)
    assert planner.step(_training(SMALL, precision), Layout(1, 1, 32, zero=3)).total > 0
    assert planner.programs.asked == (["rounding", "sharded"] if precision == "bf16" else ["sharded"])
    assert planner.step(_training(SMALL, precision), Layout(1, 1, 32, zero=1)).total > 0
    assert planner.programs.updated == [precision == "bf16"] * 2
