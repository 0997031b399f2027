# SPDX-License-Identifier: Apache-2.0
"""Plans of experts, of divided contexts and of attention that is made again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from trnlab import chips
from trnlab.errors import UsageError
from trnlab.fabric.cluster import Cluster
from trnlab.fleet.costs.exchange import Exchange
from trnlab.fleet.costs.programs import Programs
from trnlab.fleet.costs.stages import stage
from trnlab.fleet.layers.shares import ShardSpec
from trnlab.fleet.layers.sizes import Attention, Dense, Experts
from trnlab.fleet.models.transformer import Block, Model
from trnlab.fleet.search.candidates import every, search
from trnlab.fleet.search.layout import Layout, columns_of, obstacles, pinned
from trnlab.fleet.search.pipeline_times import held_of
from trnlab.fleet.search.shard_costs import Training
from trnlab.fleet.search.steps import Planner
from trnlab.runtime.session import Session

ATTENTION = Attention(4, 2, 32, 32)
SPARSE = Model("sparse", 128, ((2, Block(128, ATTENTION, Experts(8, 2, 256))),), 256, 512)
DENSE = replace(SPARSE, name="dense", stacks=((2, Block(128, ATTENTION, Dense(256))),))
WEIGHT = 2


@pytest.fixture(scope="module")
def planner():
    session = Session(chips.target("trn1.32xlarge"), precision="bf16")
    return Planner(Cluster(session.target, 1), Programs(session), Exchange(session.target))


def _training(model=SPARSE, batch=32):
    return Training(model, batch, model.sequence)


def test_experts_are_sent_rows_and_weigh_less_on_each_rank(planner):
    one, four = (planner.step(_training(), Layout(2, 1, 16, expert=n)) for n in (1, 4))
    assert one.seconds["experts"] == 0 < four.seconds["experts"]
    block = SPARSE.stacks[0][1]
    common = SPARSE.parameters - 2 * block.expert_parameters
    for step, expert in ((one, 1), (four, 4)):
        wanted = WEIGHT * (common + 2 * block.expert_parameters / expert) / 2
        assert step.bytes["weights"] == pytest.approx(wanted, abs=1)
        assert step.total == pytest.approx(sum(step.seconds.values()))
    assert four.bytes["optimizer"] == one.bytes["optimizer"]  # of each expert there is one state in all


def test_memory_of_divided_parameters_is_18_bytes_of_each():
    """ZeRO-3: float32 parts of weights, gradients and two moments, and of weights in bfloat16, to be gathered; an
    expert is divided among fewer ranks."""
    layouts = columns_of([Layout(2, 1, 16, zero=3), Layout(2, 1, 16, zero=3, expert=4)])
    held = held_of(_training(), layouts, np.full((2, 1), 1600.0), np.array([[6400.0], [1600.0]]))
    assert {name: size[:, 0].tolist() for name, size in held.items()} == {
        "weights": [3000.0, 3000.0],
        "gradients": [2000.0, 2000.0],
        "optimizer": [4000.0, 4000.0],
    }


def test_experts_of_all_ranks_have_no_gradients_to_exchange(planner):
    training = _training(replace(SPARSE, vocabulary=32))
    some, all_ = (planner.step(training, Layout(4, 1, 8, expert=n, overlap=False)) for n in (2, 8))
    assert all_.seconds["gradients"] < some.seconds["gradients"]


def test_a_divided_context_keeps_less_and_asks_for_keys(planner):
    training = Training(DENSE, 32, 1024)
    one, two = (planner.step(training, Layout(2, 1, 16 // n, context=n)) for n in (1, 2))
    assert one.seconds["context parallel"] == 0 < two.seconds["context parallel"]
    assert two.bytes["activations"] == pytest.approx(one.bytes["activations"] / 2, rel=0.1)
    assert two.layout.ranks == one.layout.ranks == 32
    assert two.flops == pytest.approx(one.flops, rel=0.05)  # front and end together see half of all pairs


def test_attention_is_made_again(planner):
    training = _training(DENSE)
    none, selective, full = (
        planner.step(training, Layout(2, 1, 16, recompute=r)) for r in ("none", "selective", "full")
    )
    assert none.seconds["recompute"] == 0 < selective.seconds["recompute"] < full.seconds["recompute"]
    assert none.total < selective.total < full.total
    assert full.bytes["activations"] < selective.bytes["activations"] <= none.bytes["activations"]


def test_searched_layouts_have_experts_among_data_parallel_ranks(planner):
    found = search(planner, _training(), pinned("tp=4,mb=1,zero=1,overlap=1,recompute=none"))
    assert found.steps is not None
    assert len(found.steps) + sum(found.refused.values()) == found.looked_at
    x = found.steps.layouts
    assert set(x["expert"].tolist()) == {1, 2, 4, 8}
    assert (x["data"] * x["context"] % x["expert"] == 0).all()


def test_contexts_are_searched_where_sequences_are_long(planner):
    short, long = (every(planner.cluster, Training(DENSE, 32, n), {}) for n in (8192, 32768))
    assert set(short["context"].tolist()) == {1}
    assert set(long["context"].tolist()) == {1, 2, 4}


IMPOSSIBLE = [
    (SPARSE, Layout(4, 1, 8, expert=16), "experts"),
    (DENSE, Layout(4, 1, 8, expert=2), "experts"),
    (SPARSE, Layout(4, 4, 2, expert=4), "among those of data"),
    (replace(DENSE, sequence=258), Layout(1, 1, 16, context=2, zero=0), "halves"),
]


@pytest.mark.parametrize(("model", "layout", "said"), IMPOSSIBLE)
def test_what_cannot_be_divided(model, layout, said, planner):
    why = obstacles(columns_of([layout]), model, planner.cluster, 32, model.sequence)
    assert len(why) == 1
    assert said in next(iter(why))


def test_exchange_of_more_bandwidth_never_takes_longer():
    """Rows to experts on trn2.48xlarge, whose links are faster, against trn1.32xlarge."""
    slow, fast = (Exchange(chips.target(name)) for name in ("trn1.32xlarge", "trn2.48xlarge"))
    asked = (np.array([4]), np.array([8]), np.array([1e8]))
    assert fast.seconds("all_to_all", *asked)[0] < slow.seconds("all_to_all", *asked)[0]


def test_a_divided_context_asks_for_a_kernel_of_attention():
    block = DENSE.stacks[0][1]
    with pytest.raises(UsageError, match="TRN176"):
        stage(DENSE, (block,), ShardSpec(1, 256, 1, attention="written", context=2), 1)
