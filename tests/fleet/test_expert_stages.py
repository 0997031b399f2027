# SPDX-License-Identifier: Apache-2.0
"""Stages of experts, of compressed keys and of divided contexts: values and gradients as PyTorch has them."""

from __future__ import annotations

import numpy as np
import pytest

from trnlab.fleet.costs.stages import stage
from trnlab.fleet.layers.shares import ShardSpec
from trnlab.fleet.layers.sizes import Attention, Dense, Experts
from trnlab.fleet.models.transformer import Block, Model
from trnlab.graph.interpret import interpret

torch = pytest.importorskip("torch")
F = torch.nn.functional
HIDDEN, LENGTH, BATCH = 16, 8, 2
PLAIN = Attention(4, 2, 4, 4, rope=False)
LATENT = Attention(2, 2, 6, 4, q_rank=8, kv_rank=10, rope_size=2)


def _rows(tokens, each, count, room, chosen):
    """Numbers that `ExpertRows` asks for, from the experts of each token: [P], [T, k], [P]."""
    token, entry = np.zeros(count * room, np.int32), np.full(count * room, tokens * each, np.int32)
    places, filled = np.zeros((tokens, each), np.int32), [0] * count
    for t in range(tokens):
        for j in range(each):
            e = chosen[t][j]
            place = e * room + filled[e]
            filled[e] += 1
            token[place], entry[place], places[t, j] = t, t * each + j, place
    assert max(filled) <= room
    return token, places, entry


def _run(block, share, ids=None, seed=0):
    """A stage of one block on random values: outputs by name, and the values as leaves of PyTorch."""
    model = Model("small", HIDDEN, ((1, block),), LENGTH, 32)
    graph = stage(model, (block,), share, 1).graph
    random, values = np.random.default_rng(seed), []
    ids = iter(ids or ())
    for v in graph.inputs:
        if v.dtype.name == "int32":
            values.append(next(ids))
        elif v.name.startswith("sum_"):
            values.append(np.zeros(v.shape, np.float32))
        elif len(v.shape) == 2 and v.shape[0] == LENGTH // share.context and v.name.startswith("given"):
            values.append(np.tile(random.standard_normal((v.shape[0], v.shape[1] // 2)).astype(np.float32), 2))
        else:
            values.append(random.standard_normal(v.shape).astype(np.float32) * 0.5)
    found = interpret(graph, values)
    w = {v.name: torch.from_numpy(x) for v, x in zip(graph.inputs, values)}
    for name, x in w.items():
        if x.is_floating_point() and not name.startswith("sum_"):
            x.requires_grad_()
    sums = {graph.inputs[s].name.removeprefix("sum_"): found[o] for o, s in graph.aliases.items()}
    return found, sums, w


def _normed(x, scale):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * scale


def _heads(x, size):
    return x.unflatten(-1, (-1, size)).transpose(1, 2)


def _attended(w, x):
    q, k, v = (_heads(F.linear(x, w[f"block_0_{n}"]), 4) for n in "qkv")
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return F.linear(out.transpose(1, 2).flatten(-2), w["block_0_o"])


def _experts(w, x, experts, chosen):
    """Every token through its experts, one at a time."""
    flat = x.flatten(0, 1)
    probabilities = F.linear(flat, w["block_0_router"]).softmax(-1)
    weights = probabilities.gather(1, chosen)
    weights = weights / weights.sum(1, keepdim=True)
    out = torch.zeros_like(flat)
    for j in range(experts.active):
        for e in range(experts.count):
            rows = chosen[:, j] == e
            inner = F.silu(flat[rows] @ w["block_0_gate"][e].T) * (flat[rows] @ w["block_0_up"][e].T)
            out[rows] = out[rows] + weights[rows, j, None] * (inner @ w["block_0_down"][e].T)
    out = out.reshape(x.shape)
    if experts.shared:
        shared = [w[f"block_0_shared_{n}"] for n in ("gate", "up", "down")]
        out = out + F.linear(F.silu(F.linear(x, shared[0])) * F.linear(x, shared[1]), shared[2])
    return out


def _close(got, wanted, name=""):
    """Both are sums in float32 in orders of their own (and PyTorch's differs between processors): they round by the
    size of the largest element, of which 1e-5 are 84 steps."""
    wanted = wanted.detach().numpy()
    np.testing.assert_allclose(got, wanted, atol=1e-5 * max(1.0, np.abs(wanted).max()), err_msg=name)


def _agree(found, sums, w, y, entered="given_1", gradient=None):
    _close(found[0], y)
    y.backward(w[gradient].detach())
    _close(found[1], w[entered].grad)
    for name, got in sums.items():
        _close(got, w[name].grad, name)


@pytest.mark.parametrize("experts", [Experts(4, 2, 8, capacity=2.0), Experts(4, 2, 8, shared=12, capacity=2.0)])
def test_experts_are_those_of_pytorch(experts):
    """Each token goes to the experts with its largest probabilities, at places that the test gives out."""
    block, share = Block(HIDDEN, PLAIN, experts), ShardSpec(BATCH, LENGTH, form="float32")
    tokens, room = BATCH * LENGTH, 2 * BATCH * LENGTH * 2 // 4
    blank = [np.zeros(s, np.int32) for s in (4 * room, (tokens, 2), 4 * room)]
    _, _, w = _run(block, share, blank)
    x = w["given_1"]
    x = x + _attended(w, _normed(x, w["block_0_1_scale"]))
    normed = _normed(x, w["block_0_2_scale"])
    chosen = F.linear(normed.flatten(0, 1), w["block_0_router"]).topk(2, 1).indices
    found, sums, w = _run(block, share, _rows(tokens, 2, 4, room, chosen.tolist()))
    x = w["given_1"]
    x = x + _attended(w, _normed(x, w["block_0_1_scale"]))
    y = x + _experts(w, _normed(x, w["block_0_2_scale"]), experts, chosen)
    assert {"block_0_router", "block_0_gate", "block_0_down"} <= set(sums)
    _agree(found, sums, w, y, gradient="given_5")


def _turned(x, cosine, sine):
    low, high = x.chunk(2, -1)
    return x * cosine + torch.cat([-high, low], -1) * sine


def test_compressed_keys_are_those_of_pytorch():
    block = Block(HIDDEN, LATENT, Dense(12))
    found, sums, w = _run(block, ShardSpec(BATCH, LENGTH, form="float32"))
    a, n = LATENT, "block_0_"
    x = _normed(w["given_1"], w[n + "1_scale"])
    q = _heads(F.linear(_normed(F.linear(x, w[n + "q_down"]), w[n + "q_norm_scale"]), w[n + "q"]), a.size)
    pressed = F.linear(x, w[n + "kv_down"])
    up = _heads(F.linear(_normed(pressed[..., :10], w[n + "kv_norm_scale"]), w[n + "kv"]), 8)
    turning = _turned(pressed[:, None, :, 10:], w["given_2"], w["given_3"])
    q = torch.cat([q[..., :4], _turned(q[..., 4:], w["given_2"], w["given_3"])], -1)
    k = torch.cat([up[..., :4], turning.expand(-1, 2, -1, -1)], -1)
    out = F.scaled_dot_product_attention(q, k, up[..., 4:], is_causal=True)
    y = w["given_1"] + F.linear(out.transpose(1, 2).flatten(-2), w[n + "o"])
    x = _normed(y, w[n + "2_scale"])
    inner = F.silu(F.linear(x, w[n + "gate"])) * F.linear(x, w[n + "up"])
    _agree(found, sums, w, y + F.linear(inner, w[n + "down"]), gradient="given_4")


@pytest.mark.parametrize("attention", ["kernel", "remade"])
def test_a_part_of_a_context_attends_to_all_of_it(attention):
    """The first of two ranks, with the first and the last quarter of a sequence: its outputs, and the gradients of
    what others lent it, are those of the whole sequence where its own places count."""
    block = Block(HIDDEN, PLAIN, Dense(12))
    found, sums, w = _run(block, ShardSpec(BATCH, 2 * LENGTH, form="float32", context=2, attention=attention))
    x = _normed(w["given_1"], w["block_0_1_scale"])
    q, k, v = (_heads(F.linear(x, w[f"block_0_{n}"]), 4) for n in "qkv")
    lent = [w[name] for name in ("given_2", "given_3")]
    half, before = LENGTH // 2, 2 * LENGTH - LENGTH // 2

    def seen(own, whole, rows):
        return own[:, :, :half] if rows == 0 else torch.cat([whole[:, :, :before], own[:, :, half:]], 2)

    outs = []
    for i, first in enumerate((0, before)):
        part = q[:, :, i * half : (i + 1) * half]
        keys, values = (seen(own, whole, i) for own, whole in zip((k, v), lent))
        mask = torch.arange(keys.shape[2])[None] <= torch.arange(half)[:, None] + first
        outs.append(F.scaled_dot_product_attention(part, keys, values, attn_mask=mask, enable_gqa=True))
    out = torch.cat(outs, 2).transpose(1, 2).flatten(-2)
    y = w["given_1"] + F.linear(out, w["block_0_o"])
    z = _normed(y, w["block_0_2_scale"])
    inner = F.silu(F.linear(z, w["block_0_gate"])) * F.linear(z, w["block_0_up"])
    _agree(found, sums, w, y + F.linear(inner, w["block_0_down"]), gradient="given_4")
    for i, whole in enumerate(lent):
        _close(found[2 + i], whole.grad)


def test_expert_parallel_ranks_have_their_part_of_the_experts():
    """As many rows as without, in fewer and larger networks, whose columns a tensor group divides."""
    block = Block(64, Attention(8, 4, 8, 8), Experts(8, 2, 128))
    model = Model("small", 64, ((1, block),), 32, 128)
    whole = stage(model, (block,), ShardSpec(1, 32), 1).graph
    part = stage(model, (block,), ShardSpec(1, 32, tensor=2, expert=4), 8).graph
    shapes = [next(v.shape for v in g.inputs if v.name == "block_0_gate") for g in (whole, part)]
    assert shapes == [(8, 128, 64), (2, 64, 64)]
    counts = [sum(op.name == name for op in part.ops) for name in ("all_gather", "reduce_scatter")]
    assert counts == [2 + 2 + 2, 2 + 2]
