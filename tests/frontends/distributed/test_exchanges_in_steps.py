# SPDX-License-Identifier: Apache-2.0
"""Context parallel attention and experts in captured steps, and collectives that a script calls by itself."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable
import torch.nn.functional as F
from ranks import being, train, train_alone
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._context_parallel import _attention as rings
from torch.nn.parallel import DistributedDataParallel

from trnlab.errors import UnsupportedOpError
from trnlab.frontends.torch import compile_step

ADAM = {"lr": 1e-2, "eps": 1e-4, "foreach": False}  # with a smaller eps Adam makes steps of what is rounding
STEPS, BATCH, TOKENS, WIDTH, HEADS, WORDS = 3, 2, 16, 16, 2, 24


def learn_alike(size, make, alone, loss, whole, parts, *, compiled=False, bound=1e-5, own=lambda name: False):
    """Ranks learn what one process learns from the whole batch. own: parameters that a rank has alone."""
    found = train(size, make, parts, compiled=compiled)
    losses = train_alone(alone, torch.optim.AdamW(alone.parameters(), **ADAM), loss, whole)
    for step in range(STEPS):
        assert sum(found[r][1][step] for r in range(size)) / size == pytest.approx(losses[step], rel=bound)
    for rank in range(size):
        mine = dict(getattr(found[rank][0], "module", found[rank][0]).named_parameters())
        for name, p in alone.named_parameters():
            if name in mine and not (own(name) and own(name) != rank + 1):
                assert (p - mine[name].cpu()).abs().max() <= bound * p.abs().max(), (rank, name)
    return found


# -- context parallel ---


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)  # of keys it would have no gradient but rounding
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(x)))


class GPT(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(depth)))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens, places):
        return self.head(self.blocks(self.words(tokens) + self.places(places)))


def gpt(depth):
    torch.manual_seed(0)
    return GPT(depth)


def loss_of_words(m, x, places, y):
    return F.cross_entropy(m(x, places).flatten(0, 1), y.flatten())


def tokens_of(rank, size, balanced):
    """The tokens of a rank: with balancing a part from the beginning, and one as far from the end."""
    parts = torch.arange(TOKENS).chunk(2 * size if balanced else size)
    return torch.cat([parts[rank], parts[-1 - rank]]) if balanced else parts[rank]


@pytest.mark.parametrize(
    ("size", "rounds", "balanced", "compiled"),
    [
        (2, "alltoall", True, True),
        (2, "allgather", False, False),
        (4, "alltoall", False, False),
        pytest.param(4, "allgather", True, False, marks=pytest.mark.slow),
    ],
)
def test_tokens_on_several_ranks(monkeypatch, size, rounds, balanced, compiled):
    """Programs of ranks differ: by whom they send to, and (without balancing) by which keys they need at all."""
    monkeypatch.setattr(rings._cp_options, "rotate_method", rings._cp_options.rotate_method)
    monkeypatch.setattr(rings._cp_options, "enable_load_balance", balanced)
    rings.set_rotate_method(rounds)
    generator = torch.Generator().manual_seed(1)
    places = torch.arange(TOKENS).expand(BATCH, -1)
    words = [torch.randint(WORDS, (2, BATCH, TOKENS), generator=generator).unbind() for _ in range(STEPS)]
    whole = [(x, places, y) for x, y in words]
    mine = [tokens_of(rank, size, balanced) for rank in range(size)]
    parts = [[tuple(t[:, at].to("neuron") for t in each) for at in mine] for each in whole]

    def make(rank):
        mesh = init_device_mesh("neuron", (size,), mesh_dim_names=("cp",))

        def loss(m, *batch):
            other = torch.zeros(TOKENS, device="neuron")  # the batch is in parts already
            with context_parallel(mesh, buffers=[other], buffer_seq_dims=[0]):
                return loss_of_words(m, *batch)

        made = DistributedDataParallel(gpt(4 // size).to("neuron"))
        return made, torch.optim.AdamW(made.parameters(), **ADAM), loss

    found = learn_alike(size, make, gpt(4 // size), loss_of_words, whole, parts, compiled=compiled)
    (graph,) = found[0][2].graphs
    assert any(op.name == "all_to_all" for op in graph.ops)  # gradients of keys and values go round in any case
    assert any(op.name == "all_gather" for op in graph.ops) == (rounds == "allgather")


# -- experts ---


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return self.down(F.silu(self.up(x)))


class Exchange(torch.autograd.Function):
    """As people write it: an exchange into a buffer, and the same backward."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group, y = group, torch.empty_like(x)
        dist.all_to_all_single(y, x.contiguous(), group=group)
        return y

    @staticmethod
    def backward(ctx, gradient):
        result = torch.empty_like(gradient)
        handle = dist.all_to_all_single(result, gradient.contiguous(), group=ctx.group, async_op=True)
        handle.wait()
        return result, None


SPELLINGS = {
    "function": lambda x, group: Exchange.apply(x, group),
    "functional": lambda x, group: functional.all_to_all_single_autograd(x, None, None, group),
    "differentiable": lambda x, group: differentiable.all_to_all_single(torch.empty_like(x), x, group=group),
}


class Mixture(nn.Module):
    """Each token goes to one expert, as many of each part of `rows` tokens as it has room for."""

    def __init__(self, experts, rows, room):
        super().__init__()
        self.inward, self.router = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, experts, bias=False)
        self.experts = nn.ModuleList(Expert() for _ in range(experts))
        self.rows, self.room, self.exchange = rows, room, None

    def forward(self, x):
        x = torch.tanh(self.inward(x))
        return torch.cat([self.part(each) for each in x.split(self.rows)])

    def part(self, x):
        weights = torch.softmax(self.router(x), -1)
        best, chosen = weights.max(-1)
        here = F.one_hot(chosen, len(self.experts))
        place = (here.cumsum(0) - 1) * here
        kept = (here * (place < self.room)).to(x.dtype)
        slots = F.one_hot((place * here).sum(-1).clamp(max=self.room - 1), self.room).to(x.dtype)
        dispatch = kept.unsqueeze(-1) * slots.unsqueeze(1)  # tokens, experts, places
        given = torch.einsum("tec,tw->ecw", dispatch, x)
        return x + torch.einsum("tec,ecw->tw", dispatch * best[:, None, None], self.answers(given))

    def answers(self, given):
        if self.exchange is None:
            return torch.stack([f(each) for f, each in zip(self.experts, given)])
        own, exchange = self.experts[dist.get_rank()], self.exchange
        arrived = exchange(given.flatten(0, 1), dist.group.WORLD)
        return exchange(own(arrived), dist.group.WORLD).view_as(given)


def mixture(size, exchange=None):
    torch.manual_seed(3)
    made = Mixture(size, 6, 4)
    made.exchange = exchange
    return made


def squares(m, x, y):
    return F.mse_loss(m(x), y)


@pytest.mark.filterwarnings("ignore:torch.distributed.nn.functional")
@pytest.mark.parametrize(
    ("size", "spelling", "compiled"), [(2, "function", True), (2, "differentiable", False), (4, "functional", False)]
)
def test_experts_on_several_ranks(size, spelling, compiled):
    generator = torch.Generator().manual_seed(4)
    whole = [tuple(torch.randn(6 * size, WIDTH, generator=generator) for _ in range(2)) for _ in range(STEPS)]
    parts = [[tuple(t.chunk(size)[r].to("neuron") for t in each) for r in range(size)] for each in whole]

    def make(rank):
        made = mixture(size, SPELLINGS[spelling]).to("neuron")
        shared = [p for name, p in made.named_parameters() if not name.startswith("experts")]
        for p in shared:
            p.register_hook(lambda g: functional.all_reduce(g, "avg", dist.group.WORLD))
        for p in made.experts[rank].parameters():
            p.register_hook(lambda g: g / size)  # tokens of all ranks are in it already
        own = [*shared, *made.experts[rank].parameters()]
        for name, p in made.named_parameters():
            p.requires_grad_(not name.startswith("experts") or name.startswith(f"experts.{rank}."))
        return made, torch.optim.AdamW(own, **ADAM), squares

    def own(name):
        return int(name.split(".")[1]) + 1 if name.startswith("experts") else 0

    learn_alike(size, make, mixture(size), squares, whole, parts, compiled=compiled, own=own)


# -- parts that differ, transfers, and what else a script may call ---


def of_sizes(x):
    """Rank 0 keeps two rows and sends six; nobody sends rank 1 anything on its second way."""
    rank = dist.get_rank()
    first = functional.all_to_all_single_autograd(x, [[2, 8], [6, 0]][rank], [[2, 6], [8, 0]][rank], dist.group.WORLD)
    back = functional.all_to_all_single_autograd(
        first, [[2, 6], [8, 0]][rank], [[2, 8], [6, 0]][rank], dist.group.WORLD
    )
    return torch.tanh(back)


class Round(torch.autograd.Function):
    """A ring by hand."""

    @staticmethod
    def sent(x, step):
        rank, size, y = dist.get_rank(), dist.get_world_size(), torch.empty_like(x)
        sends = dist.P2POp(dist.isend, x.contiguous(), (rank + step) % size)
        for handle in dist.batch_isend_irecv([sends, dist.P2POp(dist.irecv, y, (rank - step) % size)]):
            handle.wait()
        return y

    @staticmethod
    def forward(ctx, x):
        return Round.sent(x, 1)

    @staticmethod
    def backward(ctx, gradient):
        return Round.sent(gradient, -1)


def around(x):
    for _ in range(dist.get_world_size()):
        x = Round.apply(x * 1.5)
    return x / 1.5 ** dist.get_world_size()


class Gathered(torch.autograd.Function):
    """Lists, tensors, sums in place and scattered ones, as Megatron writes them."""

    @staticmethod
    def forward(ctx, x):
        size, rank = dist.get_world_size(), dist.get_rank()
        parts = [torch.empty_like(x) for _ in range(size)]
        dist.all_gather(parts, x.contiguous())
        whole = torch.empty(size * len(x), *x.shape[1:], device=x.device)
        dist.all_gather_single(whole, x.contiguous())
        mine = whole.chunk(size)[rank] + parts[rank]
        total = mine.clone()
        dist.all_reduce(total, dist.ReduceOp.AVG)
        dist.barrier()
        return total

    @staticmethod
    def backward(ctx, gradient):
        size = dist.get_world_size()
        result, other = torch.empty_like(gradient), torch.empty_like(gradient)
        dist.reduce_scatter_single(result, torch.cat([gradient / size] * size))
        dist.reduce_scatter(other, [gradient / size] * size)
        dist.broadcast(gradient, 0)
        return result + other


class Layer(nn.Module):
    def __init__(self, between):
        super().__init__()
        self.first, self.last, self.between = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1), between

    def forward(self, x):
        return self.last(self.between(torch.tanh(self.first(x))))


def layer(between):
    torch.manual_seed(5)
    return Layer(between)


@pytest.mark.parametrize(
    ("size", "between", "plain"),
    [
        (2, of_sizes, torch.tanh),
        (2, around, lambda x: x),
        (4, around, lambda x: x),
        (2, Gathered.apply, lambda x: 2 * x),
    ],
)
def test_what_a_script_calls_by_itself(size, between, plain):
    """On ranks with the same batch; what comes back is what was sent, so that one process computes the same."""
    generator = torch.Generator().manual_seed(6)
    whole = [
        (torch.randn(8, WIDTH, generator=generator), torch.randn(8, 1, generator=generator)) for _ in range(STEPS)
    ]
    parts = [[tuple(t.to("neuron") for t in each)] * size for each in whole]

    def make(rank):
        made = layer(between).to("neuron")
        return made, torch.optim.AdamW(made.parameters(), **ADAM), squares

    learn_alike(size, make, layer(plain), squares, whole, parts, compiled=size == 2)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("reduce", lambda x: dist.reduce(x, 0)),
        ("gather", lambda x: dist.gather(x, [torch.empty_like(x)] * 2 if dist.get_rank() == 0 else None, 0)),
    ],
)
def test_what_one_rank_alone_has_is_refused(name, call):
    def loss(m, x, y):
        value = squares(m, x, y)
        call(value.detach().clone())
        return value

    with being(0, 2):
        made = layer(torch.tanh).to("neuron")
        step = compile_step(made, torch.optim.SGD(made.parameters(), 0.1), loss)
        with pytest.raises(UnsupportedOpError, match=f"TRN286.*{name}") as refused:
            step(torch.zeros(8, WIDTH, device="neuron"), torch.zeros(8, 1, device="neuron"))
    assert "dist." in refused.value.where.text
