# SPDX-License-Identifier: Apache-2.0
"""`fully_shard` in captured steps: shards learn what one process learns from the whole batch."""

import copy

import pytest
import torch
import torch.nn.functional as F
from ranks import CHIP, being, train, train_alone
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint

from trnlab.compiler import compile
from trnlab.errors import UnsupportedOpError
from trnlab.fabric.world import World, together
from trnlab.frontends.torch import capture_step
from trnlab.graph.interpret import interpret
from trnlab.program.communication import collective_calls, collective_of

STEPS, BATCH, TOKENS, WIDTH, WORDS = 3, 2, 8, 16, 24


class Block(nn.Module):
    """A transformer block; biases of 6 do not divide by four ranks."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 6), nn.Linear(6, WIDTH)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (4, -1)).transpose(1, 2) for y in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def model(layers=2):
    torch.manual_seed(0)
    return Model(layers)


def loss(m, x, y):
    return F.cross_entropy(m(x).flatten(0, 1).float(), y.flatten())


def batches(size):
    """Per step the whole batch, and per step and rank its part on the device."""
    generator = torch.Generator().manual_seed(1)
    whole = [
        tuple(torch.randint(WORDS, (BATCH * size, TOKENS), generator=generator) for _ in range(2))
        for _ in range(STEPS)
    ]
    return whole, [
        [tuple(t[BATCH * r : BATCH * (r + 1)].to("neuron") for t in each) for r in range(size)] for each in whole
    ]


def make_with(shape, layers=2, **options):
    """Per block a unit, and one of all else; every rank begins with its shards of the same numbers."""

    def make(rank):
        made = model(layers).to("neuron")
        mesh = init_device_mesh("neuron", shape, mesh_dim_names=("replicas", "shards")[-len(shape) :])
        for block in made.blocks:
            fully_shard(block, mesh=mesh, **options)
        fully_shard(made, mesh=mesh, **options)
        return made, torch.optim.AdamW(made.parameters(), lr=1e-2), loss

    return make


def put_together(found, name, groups=1):
    """A parameter from the shards of all ranks; replicas of a shard are the same bit for bit."""
    shards = [dict(m.named_parameters())[name]._local_tensor.cpu() for m, *_ in found]
    each = len(shards) // groups
    for rank, shard in enumerate(shards):
        assert torch.equal(shard, shards[rank % each]), name
    return torch.cat(shards[:each])


@pytest.mark.parametrize(
    ("shape", "layers", "compiled"),
    [
        ((2,), 2, True),
        pytest.param((4,), 2, False, marks=pytest.mark.slow),
        ((2, 2), 1, False),
    ],
)
def test_shards_learn_what_one_process_learns(shape, layers, compiled):
    size = shape[0] * shape[-1] if len(shape) == 2 else shape[0]
    whole, parts = batches(size)
    found = train(size, make_with(shape, layers), parts, compiled=compiled, max_norm=1.0)
    alone = model(layers)
    losses = train_alone(alone, torch.optim.AdamW(alone.parameters(), lr=1e-2), loss, whole, 1.0)
    bound = 1e-4 if compiled else 2e-5
    for step in range(STEPS):
        assert sum(found[r][1][step] for r in range(size)) / size == pytest.approx(losses[step], rel=bound)
    for name, p in alone.named_parameters():
        mine = put_together(found, name, groups=shape[0] if len(shape) == 2 else 1)
        assert (p - mine).abs().max() <= bound * p.abs().max(), name


def collectives(graph):
    """Kinds of the collectives of a graph, in order, each with the formats of what it moves and how many tensors."""
    return [
        (op.name, op.operands[0].dtype.name, len(op.operands))
        for op in graph.ops
        if op.name in ("all_gather", "reduce_scatter", "all_reduce")
    ]


def captured(make, size, batch=None):
    """What rank 0 of `size` captures, without an optimizer."""
    with being(0, size):
        made, _, function = make(0)
        return capture_step(made, None, function, batch or batches(size)[1][0][0])


BLOCK, REST = 10, 3  # tensors of a block, and of the rest


def test_a_unit_is_gathered_and_reduced_at_once_and_again_in_the_backward_pass():
    """The rest is not: the backward pass begins with it."""
    assert collectives(captured(make_with((2,)), 2).graph) == [
        ("all_gather", "float32", REST),
        *[("all_gather", "float32", BLOCK)] * 2,
        *[("all_gather", "float32", BLOCK), ("reduce_scatter", "float32", BLOCK)] * 2,
        ("reduce_scatter", "float32", REST),
    ]


def test_without_resharding_a_unit_is_gathered_once():
    found = collectives(captured(make_with((2,), reshard_after_forward=False), 2).graph)
    assert [kind for kind, *_ in found] == ["all_gather"] * 3 + ["reduce_scatter"] * 3


def test_formats_are_those_of_the_policy():
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    found = collectives(captured(make_with((2, 2), mp_policy=policy), 4).graph)
    assert {dtype for kind, dtype, _ in found if kind == "all_gather"} == {"bfloat16"}
    assert {dtype for kind, dtype, _ in found if kind != "all_gather"} == {"float32"}
    assert [kind for kind, *_ in found if kind != "all_gather"] == ["reduce_scatter", "all_reduce"] * 3


def test_shards_learn_in_bf16():
    """Parameters and activations in bf16, sums and the optimizer in fp32: near what fp32 learns."""
    whole, parts = batches(2)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    found = train(2, make_with((2,), mp_policy=policy), parts)
    losses = train_alone(alone := model(), torch.optim.AdamW(alone.parameters(), lr=1e-2), loss, whole)
    for step in range(STEPS):
        assert sum(found[r][1][step] for r in range(2)) / 2 == pytest.approx(losses[step], rel=1e-2)
    assert all(p.dtype is torch.float32 for p in found[0][0].parameters())


def micro_batches(m, x, y):
    """The mean loss of two halves; gradients are reduced after the second."""
    total = 0
    for i, (a, b) in enumerate(zip(x.chunk(2), y.chunk(2))):
        m.set_requires_gradient_sync(i == 1)
        total = total + loss(m, a, b) / 2
    return total


@pytest.mark.parametrize("how", ["accumulated", "checkpoint_within", "checkpoint_around", "twice"])
def test_gradients_are_those_of_the_whole_batch(how):
    """At most 1e-6 of each tensor's largest."""
    size = 2
    whole, parts = batches(size)
    function = {"accumulated": micro_batches, "twice": lambda m, x, y: loss(m, x, y) + loss(m, y, x)}.get(how, loss)

    def make(rank):
        made = make_with((size,))(rank)[0] if "checkpoint" not in how else checkpointed(how)
        return made, None, function

    found = gradients(size, make, parts[0])
    alone = model()
    (loss if how == "accumulated" else function)(alone, *whole[0]).backward()
    for name, p in alone.named_parameters():
        mine = torch.cat([torch.from_numpy(each[name]) for each in found])
        assert (p.grad - mine).abs().max() <= 1e-6 * max(p.grad.abs().max(), 1), name


def checkpointed(how):
    """Blocks that are computed again in the backward pass: within the unit, or the unit as a whole."""
    made = model().to("neuron")
    mesh = init_device_mesh("neuron", (2,))
    for block in made.blocks:
        inner = fully_shard(block, mesh=mesh) if how == "checkpoint_around" else block
        forward = type(inner).forward
        if how == "checkpoint_within":
            inner.forward = lambda x, f=forward, b=inner: checkpoint(f, b, x, use_reentrant=False)
            fully_shard(inner, mesh=mesh)
    if how == "checkpoint_around":
        made.forward = lambda tokens: made.head(again(made.blocks, made.words(tokens)))
    return fully_shard(made, mesh=mesh)


def again(blocks, x):
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=False)
    return x


def gradients(size, make, parts):
    """Per rank its shards of the gradients, by the interpreter."""
    steps, models = [], []
    for rank in range(size):
        with being(rank, size):
            made, _, function = make(rank)
            models.append(made)
            steps.append(capture_step(made, None, function, parts[rank]))

    def run(ranks):
        mine, named = steps[ranks.rank], dict(models[ranks.rank].named_parameters())
        given = [
            parts[ranks.rank][r.place] if r.kind == "batch" else named[r.name]._local_tensor for r in mine.inputs
        ]
        arrays = interpret(mine.graph, [x.detach().cpu().numpy() for x in given], ranks=ranks)
        return dict(zip((r.name for r in mine.outputs), arrays))

    return together(World("trn1.32xlarge", size), run)


def test_micro_batches_are_reduced_once():
    def make(rank):
        return make_with((2,))(rank)[0], None, micro_batches

    found = collectives(captured(make, 2).graph)
    assert [kind for kind, *_ in found].count("reduce_scatter") == 3


@pytest.mark.parametrize("what", ["never_reduced", "offload", "hook"])
def test_what_only_eager_code_does_is_refused(what):
    def make(rank):
        options = {"offload_policy": CPUOffloadPolicy(pin_memory=False)} if what == "offload" else {}
        made = make_with((2,), **options)(rank)[0]
        if what == "never_reduced":
            made.set_requires_gradient_sync(False)
        if what == "hook":
            made.set_all_reduce_hook(lambda x: None)
        return made, None, loss

    with pytest.raises(UnsupportedOpError, match="TRN267"):
        captured(make, 2)


def test_shards_of_tensor_parallel_layers_learn_what_one_process_learns():
    """A mesh of two dimensions: layers are split over one, what they leave is sharded over the other."""
    whole, parts = batches(2)
    by_rank = [[each[r // 2] for r in range(4)] for each in parts]

    def make(rank):
        made = model(1).to("neuron")
        mesh = init_device_mesh("neuron", (2, 2), mesh_dim_names=("data", "tensor"))
        for block in made.blocks:
            full = copy.deepcopy(block)
            parallelize_module(block, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
            for name in ("up", "down"):
                _set_parts(getattr(block, name), getattr(full, name), rank % 2)
            fully_shard(block, mesh=mesh["data"])
        fully_shard(made, mesh=mesh["data"])
        return made, torch.optim.AdamW(made.parameters(), lr=1e-2, foreach=False), loss

    found = train(4, make, by_rank)
    alone = model(1)
    losses = train_alone(alone, torch.optim.AdamW(alone.parameters(), lr=1e-2), loss, whole)
    for step in range(STEPS):
        assert sum(found[2 * r][1][step] for r in range(2)) / 2 == pytest.approx(losses[step], rel=2e-5)
    for name, p in alone.named_parameters():
        shards = [dict(m.named_parameters())[name] for m, *_ in found]
        of_data = [torch.cat([shards[r]._local_tensor.cpu(), shards[2 + r]._local_tensor.cpu()]) for r in range(2)]
        split = next((x.dim for x in shards[0].placements[1:] if isinstance(x, Shard)), None)
        mine = of_data[0] if split is None else torch.cat(of_data, split)
        assert (p - mine).abs().max() <= 2e-5 * p.abs().max(), name


def _set_parts(module, full, rank):
    """Give distributed parameters the rank's part of the numbers: nothing was sent when they were distributed."""
    for name, p in module.named_parameters():
        (placement,) = p.placements
        whole = dict(full.named_parameters())[name].detach()
        with torch.no_grad():
            p._local_tensor.copy_(whole.chunk(2, placement.dim)[rank] if isinstance(placement, Shard) else whole)


@pytest.fixture(scope="module")
def programs():
    """Compiled steps of eight layers of half a MiB each: resharded after their forward passes, and not."""

    def make(reshard):
        torch.manual_seed(0)
        made = nn.Sequential(*(nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128)) for _ in range(8)))
        mesh = init_device_mesh("neuron", (2,))
        for block in made.to("neuron"):
            fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
        return fully_shard(made, mesh=mesh)

    compiled = {}
    for reshard in (True, False):
        with being(0, 2):
            step = capture_step(
                made := make(reshard),
                torch.optim.SGD(made.parameters(), 0.1),
                lambda m, x: m(x).square().mean(),
                (torch.zeros(4, 128).to("neuron"),),
            )
        compiled[reshard] = compile(step.graph, CHIP, {"precision": "fp32", "cluster": "trn1.32xlarge", "ranks": 2})
    return compiled


def test_what_is_gathered_again_is_so_in_the_program(programs):
    """Equal gathers are not merged, and gathered parameters do not stay in memory from one pass to the other."""
    gathers = {
        reshard: sum(
            collective_of(program.routines[program.calls[i].routine]).kind == "all_gather"
            for i in collective_calls(program)
        )
        for reshard, program in programs.items()
    }
    assert gathers == {True: 16, False: 8}
    assert programs[True].hbm_bytes <= programs[False].hbm_bytes - 3 * 2**19
