# SPDX-License-Identifier: Apache-2.0
"""Graphs of stages are the layers they stand for: losses and gradients as PyTorch's autograd has them."""

from __future__ import annotations

import numpy as np
import pytest

from trnlab.fleet.costs.stages import stage
from trnlab.fleet.layers.shares import ShardSpec
from trnlab.fleet.layers.sizes import Attention, Dense
from trnlab.fleet.models.architectures.gemma import GemmaModel
from trnlab.fleet.models.blocks import ParallelBlock, SandwichBlock
from trnlab.fleet.models.transformer import Block, Model
from trnlab.graph.interpret import interpret

torch = pytest.importorskip("torch")
F = torch.nn.functional
HIDDEN, LENGTH, BATCH, WORDS = 16, 8, 2, 24


def _model(kind: str) -> Model:
    if kind == "as Gemma 2":
        own = SandwichBlock(HIDDEN, Attention(4, 2, 4, 4, softcap=2.0), Dense(32))
        return GemmaModel("small", HIDDEN, ((2, own),), LENGTH, WORDS, softcap=3.0)
    if kind == "as GPT-NeoX":
        network = Dense(32, gated=False, bias=True)
        beside = ParallelBlock(HIDDEN, Attention(4, 4, 4, 4, bias="all"), network, "layer", norms=2)
        return Model("small", HIDDEN, ((2, beside),), LENGTH, WORDS, head_bias=True)
    if kind == "as Llama":
        block = Block(HIDDEN, Attention(4, 2, 4, 4), Dense(32))
    else:
        block = Block(
            HIDDEN, Attention(4, 4, 4, 4, rope=False, bias="all"), Dense(32, gated=False, bias=True), "layer"
        )
    return Model("small", HIDDEN, ((2, block),), LENGTH, WORDS)


def _values(graph, seed=0):
    random = np.random.default_rng(seed)
    for v in graph.inputs:
        if v.dtype.name == "int32":
            yield random.integers(0, WORDS, v.shape).astype(np.int32)
        elif v.name.startswith("sum_"):
            yield np.zeros(v.shape, np.float32)
        elif v.shape == (LENGTH, 4):  # of an angle for each pair of places: equal in both halves
            yield np.tile(random.standard_normal((LENGTH, 2)).astype(np.float32), 2)
        else:
            yield random.standard_normal(v.shape).astype(np.float32) * 0.3


def _rotated(x, cosine, sine):
    low, high = x.chunk(2, -1)
    return x * cosine + torch.cat([-high, low], -1) * sine


def _normed(x, w, name):
    if name + "_shift" in w:
        return F.layer_norm(x, (HIDDEN,), w[name + "_scale"], w[name + "_shift"])
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * w[name + "_scale"]


def _through(block, w, name, x, angles=()):
    """One block, written with PyTorch's functions."""
    a, y = block.attention, _normed(x, w, name + "_1")
    linear = lambda y, n: F.linear(y, w[f"{name}_{n}"], w.get(f"{name}_{n}_bias"))  # noqa: E731
    q, k, v = (linear(y, n).unflatten(-1, (-1, a.size)).transpose(1, 2) for n in "qkv")
    if angles:
        q, k = (_rotated(t, *angles) for t in (q, k))
    if a.softcap:
        k, v = (t.repeat_interleave(a.heads // a.kv_heads, 1) for t in (k, v))
        scores = a.softcap * torch.tanh(q @ k.transpose(2, 3) * a.size**-0.5 / a.softcap)
        hidden = torch.ones(scores.shape[2:], dtype=torch.bool).triu(1)
        out = torch.softmax(scores.masked_fill(hidden, -torch.inf), -1) @ v
    else:
        out = F.scaled_dot_product_attention(q, k, v, is_causal=a.causal, enable_gqa=True)
    out, before = linear(out.transpose(1, 2).flatten(-2), "o"), x
    x = x + (_normed(out, w, name + "_1_after") if isinstance(block, SandwichBlock) else out)
    y = _normed(before if isinstance(block, ParallelBlock) else x, w, name + "_2")
    opened = F.silu(linear(y, "gate")) * linear(y, "up") if block.network.gated else F.gelu(linear(y, "up"))
    inner = linear(opened, "down")
    return x + (_normed(inner, w, name + "_2_after") if isinstance(block, SandwichBlock) else inner)


def _reference(model, w, given):
    """The loss of two blocks with embedding and head, written with PyTorch's functions."""
    block, gemma = model.stacks[0][1], isinstance(model, GemmaModel)
    angles = [given[f"given_{i}"] for i in (2, 3)] if block.attention.rope else []
    labels = given["given_4" if angles else "given_2"]
    x = F.embedding(given["given_1"].long(), w["table"]) * (HIDDEN**0.5 if gemma else 1)
    for i in range(2):
        x = _through(block, w, f"block_{i}", x, angles)
    logits = F.linear(_normed(x, w, "final"), w["head"], w.get("head_bias"))
    logits = model.softcap * torch.tanh(logits / model.softcap) if gemma else logits
    return F.cross_entropy(logits.flatten(0, 1), labels.long().flatten())


@pytest.mark.parametrize(("attention", "network"), [("kernel", "kept"), ("written", "again"), ("again", "kept")])
@pytest.mark.parametrize("kind", ["as Llama", "as GPT-2", "as GPT-NeoX", "as Gemma 2"])
def test_losses_and_gradients_are_those_of_pytorch(kind, attention, network):
    model = _model(kind)
    block = model.stacks[0][1]
    graph = stage(
        model,
        (block, block),
        ShardSpec(BATCH, LENGTH, form="float32", attention=attention, network=network),
        1,
        first=True,
        last=True,
    ).graph
    values = list(_values(graph))
    loss, *sums = interpret(graph, values)
    named = {v.name: torch.from_numpy(value) for v, value in zip(graph.inputs, values)}
    weights = {n: t.requires_grad_() for n, t in named.items() if not n.startswith(("given", "sum_"))}
    expected = _reference(model, weights, named)
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    targets = [graph.inputs[source].name.removeprefix("sum_") for source in graph.aliases.values()]
    assert set(targets) == set(weights)
    for name, got in zip(targets, sums):
        wanted = weights[name].grad.numpy()
        bound = 2e-5 * np.abs(wanted).max() + 1e-8  # the gradient of a bias of keys is zero but for rounding
        np.testing.assert_allclose(got, wanted, rtol=0, atol=bound, err_msg=name)


def test_images_are_patches_and_a_class_token():
    """Loss and gradients of a vision transformer of one block, as PyTorch has them."""
    block = Block(
        HIDDEN, Attention(4, 4, 4, 4, causal=False, rope=False, bias="all"), Dense(32, False, True), "layer"
    )
    model = Model("image", HIDDEN, ((1, block),), LENGTH, positions=LENGTH, patch=12, classes=5)
    graph = stage(model, (block,), ShardSpec(BATCH, LENGTH, form="float32"), 1, first=True, last=True).graph
    values = [v % 5 if v.dtype == np.int32 else v for v in _values(graph)]
    loss, *sums = interpret(graph, values)
    w = {
        v.name: torch.from_numpy(value).requires_grad_(value.dtype != np.int32)
        for v, value in zip(graph.inputs, values)
    }
    patches = F.linear(w["given_1"], w["patches"], w["patches_bias"])
    x = torch.cat([w["class"].expand(BATCH, 1, HIDDEN), patches], 1) + w["positions"]
    first = _normed(_through(block, w, "block_0", x)[:, :1], w, "final")
    expected = F.cross_entropy(
        F.linear(first, w["head"], w["head_bias"]).flatten(0, 1), w["given_2"].long().flatten()
    )
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    targets = [graph.inputs[source].name.removeprefix("sum_") for source in graph.aliases.values()]
    assert {"patches", "patches_bias", "class", "positions", "head", "head_bias"} < set(targets)
    for name, got in zip(targets, sums):
        np.testing.assert_allclose(got, w[name].grad.numpy(), rtol=0, atol=1e-6, err_msg=name)


def test_tensor_parallel_ranks_have_their_part_of_the_work():
    """Shapes of weights are divided, and each block gathers and scatters twice forward, and as often back, where what
    the products read is gathered once more."""
    block = Block(64, Attention(8, 4, 8, 8), Dense(128))
    model = Model("small", 64, ((1, block),), 32, 128)
    whole = stage(model, (block,), ShardSpec(1, 32, 1), 1).graph
    part = stage(model, (block,), ShardSpec(1, 32, 4), 8).graph
    for name, shape in (("block_0_q", (16, 64)), ("block_0_k", (8, 64)), ("block_0_down", (64, 32))):
        assert next(v.shape for v in part.inputs if v.name == name) == shape
    assert not any(op.name in ("all_gather", "reduce_scatter") for op in whole.ops)
    counts = [sum(op.name == name for op in part.ops) for name in ("all_gather", "reduce_scatter")]
    assert counts == [2 + 2 + 2, 2 + 2]
