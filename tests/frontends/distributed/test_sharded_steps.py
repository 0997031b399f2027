# SPDX-License-Identifier: Apache-2.0
"""DTensor in captured steps: column, row and sequence parallel, against one process."""

import pytest
import torch
import torch.nn.functional as F
from ranks import RankEngine, being, train, train_alone
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from trnlab.frontends.common import engine
from trnlab.frontends.torch import compile_step
from trnlab.graph.canonical import canonical_hash

STEPS, BATCH, TOKENS, WIDTH = 3, 2, 8, 16


class Block(nn.Module):
    """A transformer block without a mask; `heads`: of a rank."""

    def __init__(self, heads=4):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def attend(self, x):
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        return self.out((torch.softmax(q @ k.transpose(-1, -2) / 2, -1) @ v).transpose(1, 2).flatten(2))

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self, heads=4):
        super().__init__()
        self.block, self.head = Block(heads), nn.Linear(WIDTH, 1)

    def forward(self, x):
        return self.head(self.block(x))


COLUMN_ROW = {
    "block.q": ColwiseParallel(),
    "block.k": ColwiseParallel(),
    "block.v": ColwiseParallel(),
    "block.out": RowwiseParallel(),
    "block.up": ColwiseParallel(),
    "block.down": RowwiseParallel(),
}
SEQUENCE = {
    "block": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(1)),
    "block.norm1": SequenceParallel(),
    "block.norm2": SequenceParallel(),
    **{f"block.{n}": ColwiseParallel(input_layouts=Shard(1)) for n in ("q", "k", "v", "up")},
    **{f"block.{n}": RowwiseParallel(output_layouts=Shard(1), use_local_output=False) for n in ("out", "down")},
    "head": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate(), use_local_output=True),
}


def model(heads=4):
    torch.manual_seed(0)
    return Model(heads)


def loss(m, x, y):
    return ((m(x) - y) ** 2).mean()


def batches(size):
    """Per step the batch, and per step and rank the same on the device."""
    generator = torch.Generator().manual_seed(1)
    shapes = (BATCH, TOKENS, WIDTH), (BATCH, TOKENS, 1)
    whole = [tuple(torch.randn(s, generator=generator) for s in shapes) for _ in range(STEPS)]
    return whole, [[tuple(t.to("neuron") for t in each) for _ in range(size)] for each in whole]


def part_of(full, placements, rank, size):
    for placement in placements:
        full = full.chunk(size, placement.dim)[rank] if isinstance(placement, Shard) else full
    return full.detach()


def make_with(plan, size):
    """Each rank has its part of the same numbers: nothing was sent when they were distributed."""

    def make(rank):
        made, full = model(4 // size).to("neuron"), dict(model().named_parameters())
        parallelize_module(made, init_device_mesh("neuron", (size,)), plan)
        for name, p in made.named_parameters():
            part = part_of(full[name], p.placements, rank, size) if isinstance(p, DTensor) else full[name].detach()
            with torch.no_grad():
                (p._local_tensor if isinstance(p, DTensor) else p).copy_(part)
        return made, torch.optim.AdamW(made.parameters(), lr=1e-2), loss

    return make


@pytest.mark.parametrize(("plan", "compiled"), [(COLUMN_ROW, True), (SEQUENCE, False)])
@pytest.mark.parametrize("size", [2])
def test_tensor_parallel_ranks_learn_what_one_process_learns(plan, size, compiled):
    whole, parts = batches(size)
    found = train(size, make_with(plan, size), parts, compiled=compiled)
    alone = model()
    losses = train_alone(alone, torch.optim.AdamW(alone.parameters(), lr=1e-2), loss, whole)
    bound = 1e-4 if compiled else 2e-5
    for rank in range(size):
        assert found[rank][1] == pytest.approx(losses, rel=bound)
        for (name, p), q in zip(alone.named_parameters(), found[rank][0].parameters()):
            mine = q._local_tensor.cpu() if isinstance(q, DTensor) else q.cpu()
            wanted = part_of(p, q.placements, rank, size) if isinstance(q, DTensor) else p
            assert (wanted - mine).abs().max() <= bound * p.abs().max(), name


class Masks(nn.Module):
    """Dropout of a shard of one tensor, of a copy of another, and of a tensor of this rank alone."""

    def __init__(self, mesh):
        super().__init__()
        self.mesh, self.weight = mesh, nn.Parameter(torch.ones(1, device="neuron"))

    def forward(self, x):
        placed = (DTensor.from_local(x, self.mesh, [at], run_check=False) for at in (Shard(0), Replicate()))
        shard, copy = (F.dropout(each).to_local() for each in placed)
        return self.weight.sum(), shard, copy, F.dropout(x)


def test_shards_draw_numbers_of_their_own_in_one_program():
    """As in PyTorch: with one seed on all ranks shards differ, copies are equal, and so are tensors of each rank."""
    masks, forms = [], []
    for rank in range(2):
        with being(rank, 2), engine.use(RankEngine(False)):
            made = Masks(init_device_mesh("neuron", (2,)))
            step = compile_step(made, torch.optim.SGD(made.parameters(), 0.1))
            torch.manual_seed(0)
            masks.append([[x.cpu() for x in step(torch.ones(8, 8, device="neuron"))[1:]] for _ in range(2)])
            forms.append(canonical_hash(step.captured.graph))
    assert forms[0] == forms[1]
    for (shard, copy, own), (other_shard, other_copy, other_own) in zip(*masks):
        assert not torch.equal(shard, other_shard)
        assert torch.equal(copy, other_copy)
        assert torch.equal(own, other_own)
        assert not torch.equal(shard, copy)
        assert not torch.equal(copy, own)
    assert not any(
        torch.equal(a, b) for each in masks for a, b in zip(*each)
    )  # nor does a step draw what the last did


class Turned(nn.Module):
    """A layer between whose parts of tokens and whose parts of features the ranks exchange."""

    def __init__(self, mesh=None):
        super().__init__()
        self.mesh, self.first, self.last = mesh, nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, x):
        h = torch.tanh(self.first(x))
        if self.mesh is not None:
            placed = DTensor.from_local(h, self.mesh, [Replicate()], run_check=False)
            for at in (Shard(1), Shard(2), Shard(-3), Shard(1)):
                placed = placed.redistribute(self.mesh, [at]) * 1.5
            h = placed.redistribute(self.mesh, [Replicate()]).to_local() / 1.5**4
        return self.last(h)


@pytest.mark.parametrize(("size", "compiled"), [(2, True), (4, False)])
def test_parts_of_one_dimension_become_parts_of_another(size, compiled):
    def made(mesh=None):
        torch.manual_seed(0)
        return Turned(mesh)

    def make(rank):
        mine = made(init_device_mesh("neuron", (size,))).to("neuron")
        return mine, torch.optim.AdamW(mine.parameters(), lr=1e-2), loss

    whole, parts = batches(size)
    found = train(size, make, parts, compiled=compiled)
    assert any(op.name == "all_to_all" for op in found[0][2].graphs[0].ops)
    alone = made()
    losses = train_alone(alone, torch.optim.AdamW(alone.parameters(), lr=1e-2), loss, whole)
    for rank in range(size):
        assert found[rank][1] == pytest.approx(losses, rel=2e-5)
        for p, q in zip(alone.parameters(), found[rank][0].parameters()):
            assert (p - q.cpu()).abs().max() <= 2e-5 * p.abs().max()
