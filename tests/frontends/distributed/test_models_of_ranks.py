# SPDX-License-Identifier: Apache-2.0
"""GPT and Llama on ranks through `compile_step`: replicas, shards, tensor and sequence parallel, and one process."""

import copy

import pytest
import torch
import torch.nn.functional as F
from ranks import train, train_alone
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

ADAM = {"lr": 1e-2, "eps": 1e-4, "foreach": False}  # with a smaller eps Adam makes steps of what is rounding
STEPS, BATCH, TOKENS, WIDTH, HEADS, WORDS = 3, 2, 8, 16, 4, 24


class Attention(nn.Module):
    """Causal; heads are those that the projections have here. rotary: positions as Llama has them."""

    def __init__(self, rotary, kv_heads):
        super().__init__()
        self.rotary, size = rotary, WIDTH // HEADS
        self.q, self.out = nn.Linear(WIDTH, WIDTH, bias=not rotary), nn.Linear(WIDTH, WIDTH, bias=not rotary)
        # No bias of keys: its gradient is zero but for rounding, which Adam would make as large as any other.
        self.k = nn.Linear(WIDTH, kv_heads * size, bias=False)
        self.v = nn.Linear(WIDTH, kv_heads * size, bias=not rotary)

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for f in (self.q, self.k, self.v))
        if self.rotary:
            q, k = rotated(q), rotated(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.rotary)
        return self.out(y.transpose(1, 2).flatten(2))


def rotated(x):
    angles = torch.arange(x.shape[2], device=x.device)[:, None] * 100.0 ** -torch.arange(0, 1, 0.5, device=x.device)
    a, b = x.chunk(2, -1)
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1)


class GPTBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2, self.attention = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), Attention(False, HEADS)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class LlamaBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2, self.attention = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH), Attention(True, 2)
        self.gate, self.up = (nn.Linear(WIDTH, 3 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(TOKENS, WIDTH) if block is GPTBlock else None
        self.blocks = nn.Sequential(block(), block())
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        x = self.words(tokens)
        if self.places is not None:
            x = x + self.places(torch.arange(TOKENS, device=tokens.device))
        return self.head(self.norm(self.blocks(x)))


def model(block):
    torch.manual_seed(0)
    return Model(block)


def loss(m, x, y):
    return F.cross_entropy(m(x).flatten(0, 1), y.flatten())


def replicas(made, size):
    return DistributedDataParallel(made)


def shards(made, size):
    mesh = init_device_mesh("neuron", (size,))
    for block in made.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(made, mesh=mesh)


SPLIT = {"attention.q": 1, "attention.k": 1, "attention.v": 1, "attention.out": 0, "gate": 1, "up": 1, "down": 0}


def tensors(made, size):
    """Column and row parallel linear layers."""
    return split(made, size, {0: RowwiseParallel(), 1: ColwiseParallel()}, {})


def sequences(made, size):
    """And between them each rank has a part of the sequence."""
    kinds = {
        1: ColwiseParallel(input_layouts=Shard(1)),
        0: RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
    }
    outer = {
        "blocks": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate(), use_local_output=True),
    }
    return split(made, size, kinds, outer)


def split(made, size, kinds, outer):
    """Each rank has its part of the same numbers: nothing was sent when they were distributed."""
    mesh, full = init_device_mesh("neuron", (size,)), dict(copy.deepcopy(made).named_parameters())
    for block in made.blocks:
        names = [name for name in SPLIT if name in dict(block.named_modules())]
        norms = dict.fromkeys(("norm1", "norm2"), SequenceParallel()) if outer else {}
        parallelize_module(block, mesh, {**{name: kinds[SPLIT[name]] for name in names}, **norms})
    parallelize_module(made, mesh, outer)
    for name, p in made.named_parameters():
        if isinstance(p, DTensor):
            with torch.no_grad():
                p._local_tensor.copy_(part_of(full[name].cpu(), p, mesh.get_local_rank(), size))
    return made


def part_of(full, parameter, rank, size):
    for placement in parameter.placements if isinstance(parameter, DTensor) else ():
        full = full.tensor_split(size, placement.dim)[rank] if isinstance(placement, Shard) else full
    return full.detach()


@pytest.mark.parametrize(
    ("way", "size", "block"),
    [
        (replicas, 2, LlamaBlock),
        (shards, 2, LlamaBlock),
        (tensors, 2, GPTBlock),
        (sequences, 2, LlamaBlock),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (
                (replicas, 2, GPTBlock),
                (shards, 4, GPTBlock),
                (shards, 4, LlamaBlock),
                (tensors, 2, LlamaBlock),
                (sequences, 2, GPTBlock),
            )
        ),
    ],
)
def test_ranks_learn_what_one_process_learns(way, size, block):
    data = way in (replicas, shards)
    generator = torch.Generator().manual_seed(1)
    rows = BATCH * size if data else BATCH
    whole = [torch.randint(WORDS, (2, rows, TOKENS), generator=generator).unbind() for _ in range(STEPS)]
    parts = [
        [tuple(t.chunk(size)[r if data else 0] if data else t for t in each) for r in range(size)] for each in whole
    ]
    parts = [[tuple(t.to("neuron") for t in mine) for mine in each] for each in parts]

    def make(rank):
        made = way(model(block).to("neuron"), size)
        return made, torch.optim.AdamW(made.parameters(), **ADAM), loss

    found = train(size, make, parts)
    alone = model(block)
    losses = train_alone(alone, torch.optim.AdamW(alone.parameters(), **ADAM), loss, whole)
    for step in range(STEPS):
        assert sum(found[r][1][step] for r in range(size)) / size == pytest.approx(losses[step], rel=2e-5)
        if not data:
            assert len({found[r][1][step] for r in range(size)}) == 1
    for rank in range(size):
        inner = getattr(found[rank][0], "module", found[rank][0])
        for (name, p), q in zip(alone.named_parameters(), inner.parameters()):
            mine = q._local_tensor.cpu() if isinstance(q, DTensor) else q.cpu()
            assert (part_of(p, q, rank, size) - mine).abs().max() <= 2e-5 * p.abs().max(), name
