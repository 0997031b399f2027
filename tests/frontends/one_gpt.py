# SPDX-License-Identifier: Apache-2.0
"""One GPT, as it is written in PyTorch, JAX and Keras, from the same weights: pre-norm blocks, causal attention,
GELU by tanh, an own head, cross entropy, SGD.

Each function of MODELS takes the sizes and the weights and returns a step: step(ids, labels) -> loss. Attention is
PyTorch's operator (`torch`), written out by hand (`torch_by_hand`, `jax_by_hand`), or the framework's layer (`flax`,
`keras`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

RATE = 0.1


@dataclass(frozen=True)
class Sizes:
    """Tokens in the table, width, heads, length, sequences in a batch, layers."""

    vocabulary: int = 64
    width: int = 64
    heads: int = 4
    length: int = 64
    batch: int = 2
    layers: int = 2


def weights_of(sizes, seed=0):
    """By name, matrices as [in, out]."""
    rng, w = np.random.default_rng(seed), sizes.width

    def normal(*shape):
        return (0.2 * rng.standard_normal(shape)).astype(np.float32)

    found = {"tokens": normal(sizes.vocabulary, w), "positions": normal(sizes.length, w)}
    for i in range(sizes.layers):
        for name in ("q", "k", "v", "out"):
            found |= {f"{i}.{name}.w": normal(w, w), f"{i}.{name}.b": normal(w)}
        found |= {f"{i}.up.w": normal(w, 4 * w), f"{i}.up.b": normal(4 * w)}
        found |= {f"{i}.down.w": normal(4 * w, w), f"{i}.down.b": normal(w)}
        for name in ("norm1", "norm2"):
            found |= {f"{i}.{name}.w": 1 + normal(w), f"{i}.{name}.b": normal(w)}
    found |= {"norm.w": 1 + normal(w), "norm.b": normal(w), "head.w": normal(w, sizes.vocabulary)}
    return found


def batch(sizes, seed=1):
    """Token ids and the labels, int32 [batch, length]."""
    rng = np.random.default_rng(seed)
    shape = sizes.batch, sizes.length
    return tuple(rng.integers(0, sizes.vocabulary, shape).astype(np.int32) for _ in range(2))


# -- PyTorch -------------------------------------------------------------------------------------------------------


def _torch(sizes, weights, by_hand):
    import torch
    from torch import nn
    from torch.nn import functional as F

    import trnlab.frontends.torch as neuron

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            w = sizes.width
            self.norm1, self.norm2 = nn.LayerNorm(w, 1e-5), nn.LayerNorm(w, 1e-5)
            self.q, self.k, self.v, self.out = (nn.Linear(w, w) for _ in range(4))
            self.up, self.down = nn.Linear(w, 4 * w), nn.Linear(4 * w, w)

        def attend(self, q, k, v):
            if not by_hand:
                return F.scaled_dot_product_attention(q, k, v, is_causal=True)
            t = q.shape[2]
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
            keep = torch.tril(torch.ones(t, t, dtype=torch.bool, device=q.device))
            return scores.masked_fill(~keep, float("-inf")).softmax(-1) @ v

        def forward(self, x):
            h = self.norm1(x)
            q, k, v = (f(h).unflatten(-1, (sizes.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
            x = x + self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))
            return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(sizes.vocabulary, sizes.width)
            self.positions = nn.Parameter(torch.zeros(sizes.length, sizes.width))
            self.blocks = nn.ModuleList(Block() for _ in range(sizes.layers))
            self.norm = nn.LayerNorm(sizes.width, 1e-5)
            self.head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)

        def forward(self, ids):
            x = self.tokens(ids) + self.positions
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    model = GPT()
    held = {}
    for name, value in weights.items():
        value = torch.from_numpy(value.copy())
        place, _, kind = name.rpartition(".")
        place = ("blocks." if name[0].isdigit() else "") + (place or kind)
        linear = value.dim() == 2 and kind == "w"
        full = place if kind == "positions" else place + (".bias" if kind == "b" else ".weight")
        held[full] = value.T if linear and kind == "w" else value
    model.load_state_dict(held)

    model = model.to("neuron")

    def loss_of(model, ids, labels):
        return F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())

    run = neuron.compile_step(model, torch.optim.SGD(model.parameters(), RATE), loss_of)
    return lambda ids, labels: float(run(*(torch.from_numpy(x).to("neuron") for x in (ids, labels))))


def torch_op(sizes, weights):
    """Attention is `scaled_dot_product_attention`."""
    return _torch(sizes, weights, by_hand=False)


def torch_by_hand(sizes, weights):
    """Attention is products, a mask and a softmax."""
    return _torch(sizes, weights, by_hand=True)


# -- JAX -----------------------------------------------------------------------------------------------------------


def _plain_gpt(sizes, times, look_up):
    """Logits by plain functions of arrays. times: how a layer multiplies; look_up: how it reads a table."""
    import jax
    import jax.numpy as jnp

    def norm(p, name, x):
        mean = x.mean(-1, keepdims=True)
        variance = jnp.var(x, -1, keepdims=True)
        return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * p[f"{name}.w"] + p[f"{name}.b"]

    def linear(p, name, x):
        return times(x, p[f"{name}.w"]) + p[f"{name}.b"]

    def logits_of(p, ids):
        x = look_up(p["tokens"], ids) + p["positions"]
        b, t, w = x.shape
        keep = jnp.tril(jnp.ones((t, t), bool))
        for i in range(sizes.layers):
            h = norm(p, f"{i}.norm1", x)
            q, k, v = (
                linear(p, f"{i}.{n}", h).reshape(b, t, sizes.heads, -1).transpose(0, 2, 1, 3) for n in ("q", "k", "v")
            )
            scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(q.shape[-1])
            weights = jax.nn.softmax(jnp.where(keep, scores, -jnp.inf), axis=-1)
            x = x + linear(p, f"{i}.out", (weights @ v).transpose(0, 2, 1, 3).reshape(b, t, w))
            x = x + linear(p, f"{i}.down", jax.nn.gelu(linear(p, f"{i}.up", norm(p, f"{i}.norm2", x))))
        return times(norm(p, "norm", x), p["head.w"])

    return logits_of


def jax_same(sizes, weights):
    """Plain functions of arrays, and PyTorch's mathematics throughout: weights as [out, in], indices that are
    promised to be in the table, labels of -100 that do not count, a rate that is an input."""
    import jax
    import jax.numpy as jnp

    import trnlab.frontends.jax as neuron

    def look_up(table, ids):
        return table.at[ids].get(mode="promise_in_bounds", wrap_negative_indices=False)

    logits_of = _plain_gpt(sizes, lambda x, w: x @ w.T, look_up)

    def loss_of(p, ids, labels):
        logs = jax.nn.log_softmax(logits_of(p, ids).reshape(-1, sizes.vocabulary))
        labels = labels.reshape(-1)
        counts = labels != -100
        chosen = jnp.arange(sizes.vocabulary) == labels[:, None]
        return jnp.where(counts, -jnp.where(chosen, logs, 0).sum(-1), 0).sum() / counts.sum()

    def train_step(p, ids, labels, rate):
        loss, grads = jax.value_and_grad(loss_of)(p, ids, labels)
        return jax.tree.map(lambda p, g: p + -rate * g, p, grads), loss

    turned = {k: v.T if v.ndim == 2 and k.endswith(".w") else v for k, v in weights.items()}
    run, held = neuron.jit(train_step, donate_argnums=0), [{k: jnp.array(v) for k, v in turned.items()}]

    def step(ids, labels):
        held[0], loss = run(held[0], ids, labels, np.float32(RATE))
        return float(loss)

    return step


def _jax_step(params, logits_of):
    import jax
    import optax

    import trnlab.frontends.jax as neuron

    def loss_of(params, ids, labels):
        return optax.softmax_cross_entropy_with_integer_labels(logits_of(params, ids), labels).mean()

    def train_step(params, ids, labels):
        loss, grads = jax.value_and_grad(loss_of)(params, ids, labels)
        return jax.tree.map(lambda p, g: p - RATE * g, params, grads), loss

    run, held = neuron.jit(train_step, donate_argnums=0), [params]

    def step(ids, labels):
        held[0], loss = run(held[0], ids, labels)
        return float(loss)

    return step


def jax_by_hand(sizes, weights):
    """Plain functions of arrays."""
    import jax.numpy as jnp

    logits_of = _plain_gpt(sizes, lambda x, w: x @ w, lambda table, ids: table[ids])
    return _jax_step({name: jnp.array(value) for name, value in weights.items()}, logits_of)


def flax(sizes, weights):
    """Flax's layers, its MultiHeadDotProductAttention among them."""
    import jax.numpy as jnp
    from flax import linen as nn

    class GPT(nn.Module):
        @nn.compact
        def __call__(self, ids):
            positions = self.param("positions", nn.initializers.zeros, (sizes.length, sizes.width))
            x = nn.Embed(sizes.vocabulary, sizes.width, name="tokens")(ids) + positions
            mask = nn.make_causal_mask(ids)
            for i in range(sizes.layers):
                h = nn.LayerNorm(epsilon=1e-5, name=f"{i}.norm1")(x)
                x = x + nn.MultiHeadDotProductAttention(sizes.heads, name=f"{i}")(h, mask=mask)
                h = nn.gelu(
                    nn.Dense(4 * sizes.width, name=f"{i}.up")(nn.LayerNorm(epsilon=1e-5, name=f"{i}.norm2")(x))
                )
                x = x + nn.Dense(sizes.width, name=f"{i}.down")(h)
            x = nn.LayerNorm(epsilon=1e-5, name="norm")(x)
            return nn.Dense(sizes.vocabulary, use_bias=False, name="head")(x)

    heads = sizes.heads, sizes.width // sizes.heads
    params = {"tokens": {"embedding": weights["tokens"]}, "positions": weights["positions"]}
    for name, value in weights.items():
        place, _, kind = name.rpartition(".")
        layer, _, part = place.partition(".")
        if not place:
            continue
        if part in ("q", "k", "v"):
            value = value.reshape((sizes.width, *heads) if kind == "w" else heads)
            at = params.setdefault(layer, {}).setdefault({"q": "query", "k": "key", "v": "value"}[part], {})
        elif part == "out":
            value = value.reshape(*heads, sizes.width) if kind == "w" else value
            at = params.setdefault(layer, {}).setdefault("out", {})
        else:
            at = params.setdefault(place, {})
        at[("scale" if "norm" in place else "kernel") if kind == "w" else "bias"] = jnp.array(value)
    model = GPT()
    return _jax_step(params, lambda params, ids: model.apply({"params": params}, ids))


# -- Keras ---------------------------------------------------------------------------------------------------------


def keras(sizes, weights):
    """Keras' layers, its MultiHeadAttention among them."""
    import keras as K

    import trnlab.frontends.tensorflow as neuron

    w, length, layers = sizes.width, sizes.length, K.layers
    ids = K.Input((length,), dtype="int32")
    x = layers.Embedding(sizes.vocabulary, w, name="tokens")(ids)
    x = _positions(K, length, w)(x)
    for i in range(sizes.layers):
        h = layers.LayerNormalization(epsilon=1e-5, name=f"{i}.norm1")(x)
        x = x + layers.MultiHeadAttention(sizes.heads, w // sizes.heads, name=f"{i}")(h, h, use_causal_mask=True)
        h = layers.Dense(4 * w, name=f"{i}.up")(layers.LayerNormalization(epsilon=1e-5, name=f"{i}.norm2")(x))
        x = x + layers.Dense(w, name=f"{i}.down")(K.activations.gelu(h, approximate=True))
    x = layers.LayerNormalization(epsilon=1e-5, name="norm")(x)
    model = K.Model(ids, layers.Dense(sizes.vocabulary, use_bias=False, name="head")(x))
    _load(model, sizes, weights)
    loss = K.losses.SparseCategoricalCrossentropy(from_logits=True)
    step = neuron.compile_step(model, loss, K.optimizers.SGD(RATE))
    return lambda ids, labels: float(step(ids, labels))


def _positions(K, length, width):
    class Positions(K.layers.Layer):
        def build(self, shape):
            self.table = self.add_weight(shape=(length, width), name="table")

        def call(self, x):
            return x + self.table

    return Positions(name="positions")


def _load(model, sizes, weights):
    """Into each layer, by name, in the order in which Keras keeps its variables."""
    heads = sizes.heads, sizes.width // sizes.heads
    for layer in model.layers:
        if layer.name.isdigit():
            found = []
            for part in ("q", "k", "v"):
                found.append(weights[f"{layer.name}.{part}.w"].reshape(sizes.width, *heads))
                found.append(weights[f"{layer.name}.{part}.b"].reshape(heads))
            found.append(weights[f"{layer.name}.out.w"].reshape(*heads, sizes.width))
            found.append(weights[f"{layer.name}.out.b"])
            order = [f"{p}/{n}" for p in ("query", "key", "value", "attention_output") for n in ("kernel", "bias")]
            by_name = dict(zip(order, found))
            layer.set_weights([by_name["/".join(v.path.split("/")[-2:])] for v in layer.weights])
        elif layer.weights:
            names = [layer.name] if layer.name in weights else [f"{layer.name}.w", f"{layer.name}.b"]
            layer.set_weights([weights[n] for n in names if n in weights])


MODELS = {
    "torch": torch_op,
    "torch_by_hand": torch_by_hand,
    "jax": jax_same,
    "jax_by_hand": jax_by_hand,
    "flax": flax,
    "keras": keras,
}
