# SPDX-License-Identifier: Apache-2.0
"""Experts on several ranks: tokens go to the rank that has their expert, and come back, by all-to-all."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable
from steps import Alone, average, near, on_device, train
from together import RANK, RANKS, on
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from trnlab.runtime import session

WIDTH, EXPERTS, TOKENS, BEST = 8, 4, 24, 2


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return self.down(nn.functional.silu(self.up(x)))


class Mixture(nn.Module):
    """A block with routed experts. `exchange(rows, gives, takes)` sends rows to the ranks of a group; `first` and
    `count`: which experts are here."""

    def __init__(self, group=None):
        super().__init__()
        self.inward, self.router = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(Expert() for _ in range(EXPERTS))
        self.group = group

    def forward(self, x):
        x = torch.tanh(self.inward(x))
        weights, chosen = torch.softmax(self.router(x), -1).topk(BEST, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        order = chosen.flatten().argsort(stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=EXPERTS)
        rows = x.repeat_interleave(BEST, 0)[order]
        answers = self.routed(rows, counts)
        back = torch.empty_like(answers).index_copy(0, order, answers)
        return x + (back.unflatten(0, (-1, BEST)) * weights.unsqueeze(-1)).sum(1)

    def routed(self, rows, counts):
        if self.group is None:
            return torch.cat([f(part) for f, part in zip(self.experts, rows.split(counts.tolist()))])
        size, rank = self.group.size(), self.group.rank()
        here = EXPERTS // size
        asked = functional.all_to_all_single(counts, None, None, self.group).wait().cpu().unflatten(0, (size, here))
        gives, takes = counts.cpu().unflatten(0, (size, here)).sum(1).tolist(), asked.sum(1).tolist()
        arrived = functional.all_to_all_single_autograd(rows, takes, gives, self.group)
        by_source = arrived.split(asked.flatten().tolist())  # of rank 0 for each expert here, of rank 1, ...
        answers = [None] * len(by_source)
        for place in range(here):
            expert = self.experts[rank * here + place]
            mine = by_source[place::here]
            answers[place::here] = expert(torch.cat(mine)).split([len(each) for each in mine])
        return functional.all_to_all_single_autograd(torch.cat(answers), gives, takes, self.group)


def mixture(group=None):
    torch.manual_seed(3)
    return Mixture(group)


torch.manual_seed(4)
INPUTS, TARGETS = torch.randn(TOKENS, WIDTH), torch.randn(TOKENS, WIDTH)


def loss_of(model, x, y):
    return nn.functional.mse_loss(model(x), y)


def experts(group, replicas=None):
    """Each rank has its tokens, and the ranks of `group` share the experts; `replicas`: ranks with the same ones."""
    alone = Alone(mixture(), lambda model: loss_of(model, INPUTS, TARGETS))
    model, (x, y) = mixture(group), on_device(INPUTS.chunk(RANKS)[RANK], TARGETS.chunk(RANKS)[RANK])
    model = model.to(x.device)
    here = EXPERTS // group.size()
    kept = {f"experts.{group.rank() * here + place}." for place in range(here)}
    named = {
        name: p
        for name, p in model.named_parameters()
        if not name.startswith("experts") or any(name.startswith(each) for each in kept)
    }

    def step():
        loss = loss_of(model, x, y)
        loss.backward()
        average([p.grad for name, p in named.items() if not name.startswith("experts")])
        for name, parameter in named.items():
            if name.startswith("experts"):  # tokens of all ranks of the group are in it already
                parameter.grad /= group.size()
                if replicas is not None:
                    average([parameter.grad], replicas)
        return loss.item()

    return train(named, step, alone)


def experts_on_all_ranks():
    bits = [experts(dist.group.WORLD) for _ in range(2)]
    assert bits[0] == bits[1]
    assert session.current().counters.fabric.record()["by_purpose"]["expert"]["calls"] > 0


def experts_and_replicas():
    if RANKS == 4:
        mesh = init_device_mesh("neuron", (2, 2), mesh_dim_names=("data", "expert"))
        experts(mesh["expert"].get_group(), mesh["data"].get_group())


def uneven_parts_of_every_kind():
    """Functional, in place, with gradients in both spellings, parts without elements, and other formats."""
    gives = [(RANK + 2 * rank) % 3 for rank in range(RANKS)]
    takes = [(rank + 2 * RANK) % 3 for rank in range(RANKS)]
    given = on([[float(RANK), float(rank)] for rank in range(RANKS) for _ in range(gives[rank])] or [[]])
    given = given.reshape(sum(gives), 2)
    meant = torch.tensor([[float(rank), float(RANK)] for rank in range(RANKS) for _ in range(takes[rank])])
    meant = meant.reshape(sum(takes), 2)
    for kind in (torch.float32, torch.bfloat16, torch.int64):
        got = functional.all_to_all_single(given.to(kind), takes, gives, dist.group.WORLD).wait()
        assert torch.equal(got.cpu(), meant.to(kind)), kind
    for exchange in (
        lambda x: functional.all_to_all_single_autograd(x, takes, gives, dist.group.WORLD),
        lambda x: differentiable.all_to_all_single(x.new_empty(sum(takes), 2), x, takes, gives),
    ):
        x = given.clone().requires_grad_()
        (exchange(x) * (RANK + 1.0)).sum().backward()
        scale = torch.tensor([rank + 1.0 for rank in range(RANKS) for _ in range(gives[rank])])
        near(x.grad, scale.unsqueeze(1).expand(-1, 2), 0, "gradient of an exchange") if sum(gives) else None


CHECKS = [uneven_parts_of_every_kind, experts_on_all_ranks, experts_and_replicas]
