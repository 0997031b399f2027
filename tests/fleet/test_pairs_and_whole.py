# SPDX-License-Identifier: Apache-2.0
"""A step of an encoder and a decoder, put together from stages, takes as long, and as much memory, as its script."""

from __future__ import annotations

import contextlib
import io
import json

import pytest

from trnlab.cli.main import main
from trnlab.fleet import Question, plan
from trnlab.fleet.models.configurations import from_config
from trnlab.fleet.search.layout import pinned

pytest.importorskip("torch")

SIZES = {
    "model_type": "t5",
    "d_model": 1024,
    "num_heads": 16,
    "d_kv": 64,
    "d_ff": 4096,
    "num_layers": 2,
    "vocab_size": 4096,
    "tie_word_embeddings": False,
}
SCRIPT = """
import torch, torch.distributed as dist, torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from trnlab.frontends.torch import compile_step
WORDS, HIDDEN, HEADS, SIZE, WIDE, LAYERS, READ, WRITTEN = 4096, 1024, 16, 64, 4096, 2, 512, 128

def linear(n, m):
    return nn.Linear(n, m, bias=False)

def norm():
    return nn.RMSNorm(HIDDEN, eps=1e-5)

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (linear(HIDDEN, HEADS * SIZE) for _ in range(3))
        self.o = linear(HEADS * SIZE, HIDDEN)
    def forward(self, x, read, bias):
        q, k, v = (f(y).unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for f, y in
                   ((self.q, x), (self.k, read), (self.v, read)))
        if bias is None:
            out = F.scaled_dot_product_attention(q, k, v)
        else:
            out = ((q @ k.transpose(-1, -2)).float() + bias.float()).softmax(-1).to(q.dtype) @ v
        return self.o(out.transpose(1, 2).flatten(-2))

class Layer(nn.Module):
    def __init__(self, decodes):
        super().__init__()
        self.own, self.crossed = Attention(), Attention() if decodes else None
        self.norms = nn.ModuleList(norm() for _ in range(2 + decodes))
        self.up, self.down = linear(HIDDEN, WIDE), linear(WIDE, HIDDEN)
    def forward(self, x, bias, read=None):
        y = self.norms[0](x)
        x = x + self.own(y, y, bias)
        if read is not None:
            x = x + self.crossed(self.norms[2](x), read, None)
        return x + self.down(F.relu(self.up(self.norms[1](x))))

class Stack(nn.Module):
    def __init__(self, decodes):
        super().__init__()
        self.layers = nn.ModuleList(Layer(decodes) for _ in range(LAYERS))
        self.distances, self.last, self.decodes = nn.Embedding(32, HEADS), norm(), decodes
    def forward(self, x, ids, read=None):
        bias = self.distances(ids).permute(2, 0, 1)[None]
        if self.decodes:
            bias = bias + torch.full(ids.shape, -10000.0, device=bias.device, dtype=bias.dtype).triu(1)
        for layer in self.layers:
            x = layer(x, bias, read)
        return self.last(x)

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, HIDDEN), linear(HIDDEN, WORDS)
        self.encoder, self.decoder = Stack(False), Stack(True)
    def forward(self, ids, written, near, far):
        return self.head(self.decoder(self.words(written), far, self.encoder(self.words(ids), near)))

def loss_of(model, ids, written, labels, near, far):
    return F.cross_entropy(model(ids, written, near, far).flatten(0, 1), labels.flatten())

dist.init_process_group("neuron")
mesh = init_device_mesh("neuron", (dist.get_world_size(),), mesh_dim_names=("shard",))
formats = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
with torch.device("meta"):
    model = Pair()
for part in (*model.encoder.layers, *model.decoder.layers, model.words, model.head, model):
    fully_shard(part, mesh=mesh, mp_policy=formats)
model.to_empty(device="neuron")
with torch.no_grad():
    for parameter in model.parameters():
        parameter.normal_(std=0.02)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
step = compile_step(model, optimizer, loss_of, max_norm=1.0)
shapes = ((1, READ), (1, WRITTEN), (1, WRITTEN), (READ, READ), (WRITTEN, WRITTEN))
step(*(torch.randint(0, 32, shape).to("neuron") for shape in shapes))
"""


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The script's estimate on 32 ranks that divide all state among them, and the same layout from its stages."""
    folder = tmp_path_factory.mktemp("whole")
    script, said = folder / "train.py", io.StringIO()
    script.write_text(SCRIPT)
    with contextlib.redirect_stdout(said):
        assert (
            main(
                [
                    "estimate",
                    "--stack",
                    "ours",
                    "--json",
                    "--no-cache",
                    "--target",
                    "trn1.32xlarge",
                    "--ranks",
                    "32",
                    str(script),
                ]
            )
            == 0
        )
    fixed = pinned("tp=1,pp=1,mb=1,zero=3,overlap=1,recompute=none")
    question = Question(from_config(SIZES, "small"), 1e9, ("trn1.32xlarge",), (1, 1), batch=32, fixed=fixed)
    return json.loads(said.getvalue())["targets"][0], plan(question).chosen.step


def test_a_step_of_parts_takes_what_the_script_takes(both):
    whole, parts = both
    assert parts.total == pytest.approx(whole["step_s"], rel=0.05)
    assert sum(parts.bytes.values()) == pytest.approx(whole["memory"]["total"], rel=0.03)


def test_weights_and_state_are_those_of_the_script(both):
    """Of the plan's weights, the parts that are rounded to bfloat16 are among the script's temporaries."""
    whole, parts = both
    assert parts.bytes["weights"] * 4 / (4 + 2) == pytest.approx(whole["memory"]["parameters"], rel=0.01)
    assert parts.bytes["optimizer"] == pytest.approx(whole["memory"]["state"], rel=0.01)
