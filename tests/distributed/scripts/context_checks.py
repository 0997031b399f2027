# SPDX-License-Identifier: Apache-2.0
"""Context parallel attention: each rank has some of the tokens, keys and values go round."""

import pytest
import torch
from steps import Alone, average, near, on_device, train
from together import DEVICE, RANKS
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._context_parallel import _attention as rings
from torch.distributed.tensor.experimental._context_parallel._attention import context_parallel_unshard
from torch.nn.functional import scaled_dot_product_attention

from trnlab.errors import UnsupportedOpError
from trnlab.runtime import session

BATCH, TOKENS, WIDTH, HEADS = 4, 16, 16, 2


class Block(nn.Module):
    def __init__(self, causal=True):
        super().__init__()
        self.causal = causal
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)  # of keys it would have no gradient but rounding

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return x + self.out(mixed.transpose(1, 2).flatten(2))


def blocks(causal=True):
    torch.manual_seed(7)
    return nn.Sequential(Block(causal), Block(causal))


torch.manual_seed(8)
INPUTS, TARGETS = torch.randn(BATCH, TOKENS, WIDTH), torch.randn(BATCH, TOKENS, WIDTH)


def loss_of(model, x, y):
    return nn.functional.mse_loss(model(x), y)


def context(
    mesh, causal=True, replicas=None, balanced=True, rounds="allgather", of=lambda model: model, finish=average
):
    """Tokens are shared out over `mesh`, the batch over the ranks of `replicas`. finish: after backward."""
    alone = Alone(blocks(causal), lambda model: loss_of(model, INPUTS, TARGETS))
    count, place = (replicas.size(), replicas.rank()) if replicas is not None else (1, 0)
    model, (x, y) = blocks(causal).to(DEVICE), on_device(INPUTS.chunk(count)[place], TARGETS.chunk(count)[place])
    used = of(model)
    named = dict(model.named_parameters())

    def step():
        with context_parallel(mesh, buffers=[x, y], buffer_seq_dims=[1, 1]):
            assert x.shape[1] == TOKENS // mesh.size()
            loss = loss_of(used, x, y)
            loss.backward()
        finish([p.grad for p in named.values()])
        return loss.item()

    rings.set_rotate_method(rounds)
    rings._cp_options.enable_load_balance = balanced
    try:
        return train(named, step, alone)
    finally:
        rings._cp_options.enable_load_balance = True
        assert x.shape[1] == TOKENS


def rings_of_tokens():
    mesh = init_device_mesh(DEVICE, (RANKS,))
    bits = [context(mesh) for _ in range(2)]
    assert bits[0] == bits[1]
    context(mesh, rounds="alltoall")
    record = session.current().counters.fabric.record()
    assert record["by_purpose"]["sequence"]["calls"] > 0
    assert record["by_operation"]["collective_permute"]["calls"] > 0  # not an all-to-all as large for all
    context(mesh, balanced=False)
    context(mesh, causal=False, balanced=False, rounds="alltoall")


def tokens_and_replicas():
    if RANKS == 4:
        mesh = init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("data", "context"))
        context(mesh["context"], replicas=mesh["data"].get_group())


def tokens_come_back_in_order():
    mesh = init_device_mesh(DEVICE, (RANKS,))
    x = INPUTS.to(DEVICE)
    with context_parallel(mesh, buffers=[x], buffer_seq_dims=[1]):
        (whole,) = context_parallel_unshard(mesh, [x * 2], [1])
    near(whole, INPUTS * 2, 0, "tokens")


def options_that_change_are_followed_by_compiled_code():
    """One process, one compiled function: in which order tokens lie, and what goes round, changes between calls."""
    mesh = init_device_mesh(DEVICE, (RANKS,))
    torch.manual_seed(10)
    whole = [torch.randn(2, HEADS, TOKENS, 8) for _ in range(3)]
    meant = scaled_dot_product_attention(*whole, is_causal=True)
    attend = torch.compile(
        lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True), backend="neuron"
    )
    for balanced, rounds in ((True, "allgather"), (False, "allgather"), (False, "alltoall"), (True, "allgather")):
        rings._cp_options.enable_load_balance = balanced
        rings.set_rotate_method(rounds)
        parts = [t.to(DEVICE) for t in whole]
        with context_parallel(mesh, buffers=parts, buffer_seq_dims=[2] * 3):
            (got,) = context_parallel_unshard(mesh, [attend(*parts)], [2])
        near(got, meant, 1e-6, f"attention, balanced: {balanced}, by {rounds}")


def masks_and_dropout_have_no_ring():
    mesh = init_device_mesh(DEVICE, (RANKS,))
    q = torch.randn(1, HEADS, TOKENS, 8, device=DEVICE)
    mask = torch.zeros(1, 1, TOKENS // RANKS, TOKENS, device=DEVICE)
    for options in ({"attn_mask": mask}, {"dropout_p": 0.1, "is_causal": True}):
        inside = context_parallel(mesh, buffers=[q], buffer_seq_dims=[2])
        with inside, pytest.raises(UnsupportedOpError, match="TRN285"):
            torch.nn.functional.scaled_dot_product_attention(q, q, q, **options)


def attention_of_distributed_tensors():
    """In parts of the batch and of the heads, tokens gathered where they are in parts; with gradients, and a mask."""
    mesh = init_device_mesh(DEVICE, (RANKS,))
    torch.manual_seed(9)
    whole = [torch.randn(4, heads, 6, 8, requires_grad=True) for heads in (8, 4, 4)]
    mask = torch.randn(4, 1, 6, 6)
    for bias in (None, mask):
        meant = scaled_dot_product_attention(*whole, bias, is_causal=bias is None, enable_gqa=True)
        gradients = torch.autograd.grad(meant.square().sum(), whole)
        for at in (Shard(0), Shard(1), Shard(2), Replicate()):
            q, k, v = (distribute_tensor(t.detach().to(DEVICE), mesh, [at]).requires_grad_() for t in whole)
            given = None if bias is None else distribute_tensor(bias.to(DEVICE), mesh, [Replicate()])
            got = scaled_dot_product_attention(q, k, v, given, is_causal=bias is None, enable_gqa=True)
            assert isinstance(got, DTensor)
            near(got, meant.detach(), 1e-6, "attention")
            for mine, other in zip(torch.autograd.grad(got.square().sum(), (q, k, v)), gradients):
                near(mine, other, 1e-5, "a gradient of attention")


CHECKS = [
    attention_of_distributed_tensors,
    rings_of_tokens,
    tokens_and_replicas,
    tokens_come_back_in_order,
    masks_and_dropout_have_no_ring,
    options_that_change_are_followed_by_compiled_code,
]
