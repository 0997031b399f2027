# SPDX-License-Identifier: Apache-2.0
"""Plans of scripts: what a script trains is recognised where all of it is accounted for, and else divided by data."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from trnlab import chips
from trnlab.cli.check import as_one_of, prepared
from trnlab.cli.main import main
from trnlab.errors import UsageError
from trnlab.estimate.job import NullCommunicator
from trnlab.fabric.cluster import Cluster
from trnlab.fleet import Question, plan
from trnlab.fleet.layers.sizes import Attention, Dense
from trnlab.fleet.models.captured import blocks_of, recognised, whole
from trnlab.fleet.models.transformer import Block
from trnlab.fleet.search.layout import pinned
from trnlab.runtime.script import Script
from trnlab.runtime.session import Session

pytestmark = pytest.mark.torch
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ALONE = """
import torch
from torch import nn
from trnlab.frontends.torch import compile_step
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)).to("neuron")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
step = compile_step(model, optimizer, lambda m, x, y: nn.functional.cross_entropy(m(x), y))
for _ in range(3):
    step(torch.randn(8, 256, device="neuron"), torch.randint(0, 10, (8,), device="neuron"))
"""
GPT = """
import torch
from torch import nn
from torch.nn import functional as F
from trnlab.frontends.torch import compile_step

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.LayerNorm(64), nn.LayerNorm(64)
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)
    def forward(self, x):
        q, k, v = (y.unflatten(-1, (2, 32)).transpose(1, 2) for y in self.qkv(self.one(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.two(x))))

class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(128, 64), nn.Embedding(32, 64)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(3)), nn.LayerNorm(64)
    def forward(self, ids):
        x = self.tokens(ids) + self.places.weight
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.tokens.weight.T

model = Gpt().to("neuron")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
step = compile_step(model, optimizer, lambda m, x, y: F.cross_entropy(m(x).flatten(0, 1), y.flatten()))
for _ in range(2):
    ids = torch.randint(0, 128, (4, 32), device="neuron")
    step(ids, ids)
"""


def _captured(file, *arguments, target="trn1.32xlarge"):
    prepared()
    from trnlab.frontends.torch.check.planned import captured

    session = Session(chips.target(target))
    session.cache, session.communicator = None, NullCommunicator(0, 1)
    with as_one_of(Cluster(session.target, 1), session):
        return captured(Script(file, arguments), session)


@pytest.fixture(scope="module")
def llama():
    return _captured(EXAMPLES / "train_llama.py", "--model", "tiny")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    file = tmp_path_factory.mktemp("scripts") / "alone.py"
    file.write_text(ALONE)
    return _captured(file)


def test_a_llama_is_recognised_from_its_parameters(llama):
    found = recognised(llama).model
    assert found.stacks == ((2, Block(64, Attention(4, 2, 16, 16), Dense(128))),)
    assert (found.vocabulary, found.tied, found.positions, found.sequence) == (256, False, 0, 32)
    assert found.parameters == llama.count


def test_a_gpt_with_biases_learned_positions_and_one_table_is_recognised(tmp_path):
    file = tmp_path / "gpt.py"
    file.write_text(GPT)
    step = _captured(file)
    found = recognised(step).model
    ((layers, block),) = found.stacks
    assert (layers, block.norm, block.attention.bias, block.attention.rope) == (3, "layer", "all", False)
    assert block.network == Dense(256, gated=False, bias=True)
    assert (found.vocabulary, found.positions, found.tied) == (128, 32, True)
    assert found.parameters == step.count


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"blocks.1.gate.weight": (96, 64)}, "not equal"),
        ({"extra.weight": (7, 7)}, "no embedding and head"),
        ({"blocks.0.more.weight": (5, 64), "blocks.1.more.weight": (5, 64)}, "no attention followed by"),
    ],
)
def test_what_is_not_accounted_for_is_not_recognised(llama, changed, why):
    found = recognised(replace(llama, parameters={**llama.parameters, **changed}))
    assert found.model is None
    assert why in found.why


def test_work_without_parameters_is_not_recognised(llama):
    """The same parameters with half of the step's samples: twice the products of such a model."""
    part = llama.work.parts[0]
    twice = replace(llama.work, parts=[replace(part, times=2 * part.times)])
    assert "times those of a stack" in recognised(replace(llama, work=twice)).why


def test_blocks_are_the_largest_numbered_list():
    shapes = {"a.0.x": (2,), "a.1.x": (2,), "layers.0.x": (3,), "layers.0.y": (3,), "layers.1.x": (3,), "head": (1,)}
    blocks, outside = blocks_of(shapes)
    assert blocks == [{"x": (3,), "y": (3,)}, {"x": (3,)}]
    assert set(outside) == {"a.0.x", "a.1.x", "head"}


def test_a_script_of_no_known_shape_is_divided_by_data(alone):
    asked = Question(whole(alone), 2**20, ("trn1.32xlarge",), (1, 2), batch=1024, captured=alone)
    found = plan(asked)
    assert len(found) + sum(found.refused.values()) == found.looked_at == 12
    one, two = (next(c for c in found.best(99) if c.cluster.instances == n) for n in (1, 2))
    assert two.step.seconds["compute"] == pytest.approx(one.step.seconds["compute"] / 2)
    assert one.step.flops == two.step.flops == alone.flops / 8 * 1024
    by_zero = {c.step.layout.zero: c.step for c in found.best(99) if c.cluster.instances == 2}
    assert by_zero[1].bytes["optimizer"] == pytest.approx(by_zero[0].bytes["optimizer"] / 64, abs=1)
    assert by_zero[3].bytes["weights"] < by_zero[1].bytes["weights"]


def test_layouts_that_would_divide_its_model_are_refused_with_the_reason(alone):
    asked = Question(whole(alone), 2**20, ("trn1.2xlarge",), (1, 1), captured=alone, fixed=pinned("tp=2"))
    with pytest.raises(UsageError, match="TRN174") as caught:
        plan(asked).chosen  # noqa: B018
    assert "only its data is divided" in str(caught.value)


def test_a_rank_takes_what_an_estimate_says(alone, tmp_path, capsys):
    file = tmp_path / "alone.py"
    file.write_text(ALONE)
    common = ["--target", "trn1.2xlarge", "--no-cache", "--json", "--stack", "ours"]
    assert main(["estimate", *common, str(file)]) == 0
    estimate = json.loads(capsys.readouterr().out)["targets"][0]
    assert (
        main(
            [
                "plan",
                "--script",
                str(file),
                *common,
                "--instances",
                "1",
                "--global-batch",
                "16",
                "--layout",
                "zero=0,overlap=0",
            ]
        )
        == 0
    )
    told = capsys.readouterr()
    step = json.loads(told.out)["chosen"]["seconds"]
    assert step["compute"] + step["optimizer"] == pytest.approx(estimate["step_s"], rel=1e-9)
    assert step["gradients"] > 0 == step["weights"]
    assert "1,000 steps are planned" in told.err


def test_bad_questions_about_scripts(tmp_path, capsys):
    file = tmp_path / "none.py"
    file.write_text("x = 1\n")
    assert main(["plan", "--script", str(file), "--target", "trn1.2xlarge", "--no-cache"]) == 2
    assert "TRN193" in capsys.readouterr().err
    assert main(["plan", "llama3-8b", "--script", str(file), "--target", "trn1.2xlarge"]) == 2
    assert "TRN178" in capsys.readouterr().err
