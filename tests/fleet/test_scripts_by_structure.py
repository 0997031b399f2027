# SPDX-License-Identifier: Apache-2.0
"""Models of scripts are recognised by the graphs of their steps where names say nothing, and refusals say why."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from trnlab import chips
from trnlab.cli.check import as_one_of, prepared
from trnlab.estimate.job import NullCommunicator
from trnlab.fabric.cluster import Cluster
from trnlab.fleet.layers.sizes import Attention, Dense, Experts
from trnlab.fleet.models import counts
from trnlab.fleet.models.captured import recognised, whole
from trnlab.fleet.models.stored import plainly, stores
from trnlab.fleet.models.transformer import Block, Model
from trnlab.runtime.script import Script
from trnlab.runtime.session import Session

pytestmark = pytest.mark.torch
HEAD = """
import math, sys, torch
from torch import nn
from torch.nn import functional as F
from trnlab.frontends.torch import compile_step
H, N, L, V = 64, 4, 3, 128
"""
TAIL = """
model = Net().to("neuron")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
loss = lambda m, x, y: F.cross_entropy(m(x).flatten(0, 1), y.flatten())
step = compile_step(model, optimizer, loss) if len(sys.argv) < 2 else None
if sys.argv[1:] == ["compiled"]:
    model = torch.compile(model, backend="neuron")
for _ in range(2):
    ids = torch.randint(0, V, (4, 32), device="neuron")
    if step is not None:
        step(ids, ids)
    else:
        optimizer.zero_grad()
        loss(model, ids, ids).backward()
        optimizer.step()
"""
FLAT = (
    HEAD
    + """
def norm(x, scale):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * scale

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        block = [(H,), (H,), (3, N, H // N, H), (N, H // N, H), (H, 2 * 96), (96, H)]
        self.w = nn.ParameterList(nn.Parameter(torch.randn(s) * 0.02) for s in [(V, H), (H,), *block * L])
    def forward(self, ids):
        w = iter(self.w)
        table, final = next(w), next(w)
        x = table[ids]
        later = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device).triu(1)
        for _ in range(L):
            one, two, qkv, out, opened, closed = (next(w) for _ in range(6))
            q, k, v = torch.einsum("bsh,cndh->cbnsd", norm(x, one), qkv)
            scores = (q @ k.transpose(-1, -2) / math.sqrt(H // N)).masked_fill(later, -math.inf)
            x = x + torch.einsum("bnsd,ndh->bsh", F.dropout(scores.softmax(-1), 0.1) @ v, out)
            gate, up = (norm(x, two) @ opened).chunk(2, -1)
            x = x + (F.silu(gate) * up) @ closed
        return norm(x, final) @ table.T
"""
    + TAIL
)
EXPERTS = (
    HEAD
    + """
E, K, I = 8, 2, 96

class Many(nn.Module):  # each expert takes its share of the tokens, those that the router likes best
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(H, E, bias=False)
        self.a, self.b = nn.Parameter(torch.randn(E, H, 2 * I)), nn.Parameter(torch.randn(E, I, H))
    def forward(self, x):
        flat = x.flatten(0, 1)
        weight, rows = self.router(flat).softmax(-1).T.topk(flat.shape[0] * K // E)
        gate, up = torch.bmm(flat[rows], self.a).chunk(2, -1)
        back = torch.bmm(F.silu(gate) * up, self.b) * weight[..., None]
        return torch.zeros_like(flat).index_add(0, rows.flatten(), back.flatten(0, 1)).view_as(x)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.network = nn.RMSNorm(H), nn.RMSNorm(H), Many()
        self.q, self.kv, self.o = nn.Linear(H, H, False), nn.Linear(H, H, False), nn.Linear(H, H, False)
    def forward(self, x):
        y = self.a(x)
        q = self.q(y).unflatten(-1, (N, -1)).transpose(1, 2)
        k, v = (z.unflatten(-1, (2, -1)).transpose(1, 2).repeat_interleave(2, 1) for z in self.kv(y).chunk(2, -1))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.network(self.b(x))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.norm, self.head = nn.Embedding(V, H), nn.RMSNorm(H), nn.Linear(H, V, False)
        self.first, self.second, self.third = Block(), Block(), Block()
    def forward(self, ids):
        return self.head(self.norm(self.third(self.second(self.first(self.table(ids))))))
"""
    + TAIL
)
IMAGES = (
    HEAD
    + """
class Around(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.a, self.b = nn.Conv2d(channels, channels, 3, 1, 1), nn.Conv2d(channels, channels, 3, 1, 1)
    def forward(self, x):
        return F.relu(x + self.b(F.relu(self.a(x))))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 16, 3, 2, 1), nn.Linear(16, 10)
        self.one, self.two, self.three = Around(16), Around(16), Around(16)
    def forward(self, x):
        return self.head(self.three(self.two(self.one(F.relu(self.stem(x))))).mean((2, 3)))

model = Net().to("neuron")
step = compile_step(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda m, x, y: F.cross_entropy(m(x), y))
for _ in range(2):
    step(torch.randn(2, 3, 16, 16, device="neuron"), torch.randint(0, 10, (2,), device="neuron"))
"""
)


def captured_step(folder: Path, text: str, *arguments: str):
    """The step of a script."""
    prepared()
    from trnlab.frontends.torch.check.planned import captured

    file = folder / "train.py"
    file.write_text(text)
    session = Session(chips.target("trn1.32xlarge"))
    session.cache, session.communicator = None, NullCommunicator(0, 1)
    with as_one_of(Cluster(session.target, 1), session):
        return captured(Script(file, arguments), session)


@pytest.fixture(scope="module")
def flat(tmp_path_factory):
    return captured_step(tmp_path_factory.mktemp("flat"), FLAT)


def test_a_flat_list_of_parameters_with_attention_written_out_is_recognised(flat):
    """One list of tensors, heads in dimensions of their own, all projections in one, dropout between the products."""
    found = recognised(flat).model
    assert found.stacks == ((3, Block(64, Attention(4, 4, 16, 16, rope=False), Dense(96))),)
    assert (found.vocabulary, found.tied, found.positions) == (128, True, 0)
    assert found.parameters == flat.count
    assert flat.layers == 3


@pytest.mark.parametrize("how", ["compiled", "eager"])
def test_a_step_of_other_programs_is_the_same_model(flat, tmp_path, how):
    step = captured_step(tmp_path, FLAT, how)
    assert step.count == flat.count
    known = recognised(flat).model
    assert recognised(step).model == replace(known, name=step.name, source=step.source)


@pytest.mark.parametrize(("table", "causal"), [(True, True), (False, False)])
def test_what_hides_later_tokens_may_be_a_table_of_the_model_or_nothing(tmp_path, table, causal):
    mask = next(line for line in FLAT.splitlines() if "later = " in line)
    text = FLAT.replace(mask, "        later = self.later[: ids.shape[1], : ids.shape[1]]")
    made = 'self.register_buffer("later", torch.ones(48, 48, dtype=torch.bool).triu(1))'
    text = text.replace("    def forward", f"        {made}\n    def forward", 1)
    if not table:
        text = text.replace(".masked_fill(later, -math.inf)", "")
    step = captured_step(tmp_path, text)
    ((_, block),) = recognised(step).model.stacks
    assert block == Block(64, Attention(4, 4, 16, 16, causal=causal, rope=False), Dense(96))


def test_names_decide_nothing(flat):
    """The same shapes under names that would divide them into other blocks."""
    names = {f"x.{i % 2}.{i}": shape for i, shape in enumerate(flat.parameters.values())}
    assert recognised(replace(flat, parameters=names)).model == recognised(flat).model


def test_experts_are_recognised_with_as_many_for_a_token_as_the_products_ask_for(tmp_path):
    step = captured_step(tmp_path, EXPERTS)
    found = recognised(step).model
    assert found.stacks == ((3, Block(64, Attention(4, 2, 16, 16, rope=False), Experts(8, 2, 96))),)
    assert found.parameters == step.count
    twice = replace(step, work=replace(step.work, parts=[replace(step.work.parts[0], times=9)]))
    assert "of which a token meets 8 of 8 experts" in recognised(twice).why


def test_residual_blocks_without_numbers_are_counted(tmp_path):
    step = captured_step(tmp_path, IMAGES)
    assert step.layers == 3
    assert whole(step).parameters == step.count
    assert "no attention" in recognised(step).why


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"w.4": (3, 4, 16, 65)}, ("not equal", "numbered")),
        ({"w.0": (129, 64)}, ("no embedding and head", "64 x 129", "64")),
        ({f"w.{i}": (65,) for i in (2, 8, 14)}, ("no attention followed by", "65", "64 x 192")),
    ],
)
def test_refusals_say_what_was_in_the_way(flat, changed, words):
    """Shapes that are no longer what the definitions ask for."""
    if "w.0" in changed:
        changed = changed | {"w.1": (63,)}
    found = recognised(replace(flat, parameters=flat.parameters | changed))
    assert found.model is None
    for word in words:
        assert word in found.why


# -- how weights are stored ---------------------------------------------------------------------------------------

BLOCK = Block(64, Attention(4, 2, 16, 16, bias="qkv"), Dense(96))
SHAPES = [(64, 64), (64, 64), (192, 64), (64, 96), (64,), (64,)]  # q, o, gate with up, down, norms


@pytest.mark.parametrize(
    ("more", "fits"),
    [
        ([(32, 64), (32, 64), (64,), (32,), (32,)], True),
        ([(64, 2, 16), (64, 2, 16), (4, 16), (2, 16), (32,)], True),
        ([(64, 64), (64,), (64,)], True),
        ([(64, 64), (32,), (32,), (64,)], False),  # a joined weight has a joined bias
        ([(32, 64), (16, 128), (64,), (32,), (32,)], False),
    ],
)
def test_weights_are_stored_in_many_ways(more, fits):
    asked = counts.asked_by_block(BLOCK)
    assert stores(plainly([*SHAPES, *more]), asked) is fits


def test_what_is_asked_for_is_what_is_counted():
    model = Model("m", 64, ((2, BLOCK),), 32, 128, positions=32, types=2, transform=True)
    assert counts.asked_by_block(BLOCK).size == BLOCK.parameters
    assert counts.asked_by_ends(model).size == model.embedding_parameters + model.head_parameters
    assert ("block_q", "block_k", "block_v") in counts.asked_by_block(BLOCK).together
    assert Counter(map(len, counts.asked_by_block(BLOCK).together)) == {3: 1, 2: 1, 1: 2}
