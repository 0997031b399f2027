# SPDX-License-Identifier: Apache-2.0
"""Steps that are one program: gradients are those of stages, on ranks that divide the weights; a plan's best layout
is compiled so, and what is found out is what the plan then says."""

from __future__ import annotations

import numpy as np
import pytest

from trnlab import chips
from trnlab.estimate.forecast import forecast
from trnlab.estimate.job import NullCommunicator
from trnlab.fabric.cluster import Cluster
from trnlab.fabric.world import World, together
from trnlab.fleet import Question, plan
from trnlab.fleet.costs import whole_steps
from trnlab.fleet.costs.programs import Programs
from trnlab.fleet.costs.stages import stage
from trnlab.fleet.costs.whole_steps import work_of
from trnlab.fleet.layers.shares import ShardSpec
from trnlab.fleet.layers.sizes import Attention, Dense
from trnlab.fleet.models.transformer import Block, Model
from trnlab.fleet.search.layout import pinned
from trnlab.graph.interpret import interpret
from trnlab.runtime.session import Session

HIDDEN, LENGTH, WORDS, RANKS = 16, 8, 24, 4
LLAMA = Model("small", HIDDEN, ((2, Block(HIDDEN, Attention(4, 2, 4, 4), Dense(30))),), LENGTH, WORDS)
GPT = Model(
    "small",
    HIDDEN,
    ((2, Block(HIDDEN, Attention(4, 4, 4, 4, rope=False, bias="all"), Dense(30, False, True), "layer")),),
    LENGTH,
    WORDS,
    LENGTH,
    tied=True,
)


def values_of(graph):
    """Values of the inputs of a stage, by name, the same for each name."""
    found = {}
    for v in graph.inputs:
        random = np.random.default_rng(sum(map(ord, v.name)))
        if v.dtype.name == "int32":
            found[v.name] = random.integers(0, WORDS, v.shape).astype(np.int32)
        else:
            found[v.name] = (random.standard_normal(v.shape) * 0.3).astype(np.float32)
    return found


def part(value, rank):
    """Rows of one rank, zeros where there are no more."""
    rows = -(-len(value) // RANKS)
    padded = np.concatenate([value, np.zeros((rows * RANKS - len(value), *value.shape[1:]), value.dtype)])
    return padded[rank * rows : (rank + 1) * rows]


@pytest.mark.parametrize("block", ["kept", "again"])
@pytest.mark.parametrize("model", [LLAMA, GPT], ids=["as Llama", "as GPT-2"])
def test_gradients_of_divided_weights_are_those_of_a_stage(model, block):
    """Two microbatches: sums of gradients are what the step has of them, here of equal batches on all ranks."""
    share = ShardSpec(1, LENGTH, form="float32", block=block)
    whole = stage(model, tuple(b for n, b in model.stacks for _ in range(n)), share, 1, first=True, last=True).graph
    given = values_of(whole)
    loss, *sums = interpret(whole, [np.zeros_like(x) if n.startswith("sum_") else x for n, x in given.items()])
    wanted = {whole.inputs[source].name: sums[out - 1] for out, source in whole.aliases.items()}
    graph = work_of(model, share, RANKS, microbatches=2).parts[0].graph

    def on(rank):
        inputs = []
        for v in graph.inputs:
            if v.name.startswith("sum_"):
                inputs.append(np.zeros(v.shape, np.float32))
            else:
                inputs.append(given[v.name] if v.name.startswith("given_") else part(given[v.name], rank.rank))
        return interpret(graph, inputs, "float32", rank)

    for rank, (own, *found) in enumerate(together(World("trn1.32xlarge", RANKS), on)):
        assert own == pytest.approx(loss, rel=1e-5)
        names = [graph.inputs[source].name for source in graph.aliases.values()]
        assert set(names) == set(wanted)
        for name, gradient in zip(names, found):
            expected = RANKS * part(wanted[name], rank)
            bound = 2e-5 * np.abs(wanted[name]).max() * RANKS + 1e-7
            np.testing.assert_allclose(gradient, expected, rtol=0, atol=bound, err_msg=name)


def test_nothing_of_a_unit_is_kept_but_the_norm_around_all():
    """Weights are gathered once more for the backward pass; of the last norm they stay."""
    graph = work_of(LLAMA, ShardSpec(1, LENGTH), RANKS).parts[0].graph
    gathered = [op for op in graph.ops if op.name == "all_gather"]
    units, again = LLAMA.layers + 3, LLAMA.layers + 2  # embedding, head, norm
    assert sum(len(op.results) for op in gathered) == 2 * (9 * LLAMA.layers + 2) + 1
    assert len(gathered) == units + again
    assert sum(op.name == "reduce_scatter" for op in graph.ops) == units


def test_the_best_layout_of_a_plan_is_what_its_program_takes():
    fixed = pinned("tp=1,pp=1,mb=1,zero=3,overlap=1,recompute=none")
    wide = Model("small", 128, ((2, Block(128, Attention(2, 2, 64, 64), Dense(256))),), 128, 512)
    asked = Question(wide, 1e9, ("trn2.3xlarge",), (1, 1), batch=4, fixed=fixed)
    chosen = plan(asked).chosen.step
    session = Session(chips.target("trn2.3xlarge"), precision="bf16")
    session.communicator = NullCommunicator(0, 4)
    alone = forecast(work_of(wide, ShardSpec(1, 128, sharded=True), 4), session.target, session, pytest.fail)
    assert chosen.total == pytest.approx(alone.step_s, rel=1e-9)
    assert sum(chosen.bytes.values()) == alone.memory.total


def test_steps_of_many_blocks_are_lines_in_their_number(monkeypatch):
    """Sixteen blocks as such, and put together from steps of four and of six; ranks share layers and weights. Blocks
    as small as these differ by some percent among themselves, where updates of several are one call."""
    block = Block(256, Attention(4, 4, 64, 64), Dense(512))
    deep = Model("deep", 256, ((16, block),), 256, 512)
    cluster, share = Cluster(chips.target("trn1.32xlarge"), 2), ShardSpec(1, 256, 4, sharded=True)

    def of(most):
        monkeypatch.setattr(whole_steps, "WHOLE", most)
        return whole_steps.whole(Programs(Session(cluster.target)), cluster, deep, share, 2)

    line, every = of(6), of(16)
    assert sum(line.seconds.values()) == pytest.approx(sum(every.seconds.values()), rel=0.015)
    assert sum(line.bytes.values()) == pytest.approx(sum(every.bytes.values()), rel=0.005)
    exchanged = ("gradients", "weights", "tensor parallel")
    assert [line.seconds[c] for c in exchanged] == pytest.approx([every.seconds[c] for c in exchanged], rel=5e-3)
