# SPDX-License-Identifier: Apache-2.0
"""Small models of JAX's world, each as (state, step): step(state, x, y, key) -> (state, loss)."""

from __future__ import annotations

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

RNG = np.random.default_rng(0)


def batch(shape, classes, like=np.float32):
    """Inputs (floats, or whole numbers below `classes`) and labels."""
    x = RNG.standard_normal(shape).astype(np.float32) if like is np.float32 else RNG.integers(0, classes, shape)
    return x.astype(like), RNG.integers(0, classes, shape if like is np.int32 else shape[0]).astype(np.int32)


def cross_entropy(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def linen(model, optimizer, x, *, train=False):
    """A model of Flax's linen: parameters, statistics of batches, dropout by key."""
    extra = {"train": True} if train else {}
    variables = jax.jit(lambda x: model.init(jax.random.key(0), x, **extra))(x)
    params, others = variables["params"], {k: v for k, v in variables.items() if k != "params"}

    def step(state, x, y, key):
        params, others, opt = state

        def loss(params):
            out, changed = model.apply(
                {"params": params, **others}, x, **extra, rngs={"dropout": key}, mutable=list(others)
            )
            return cross_entropy(out, y), changed

        (value, changed), grads = jax.value_and_grad(loss, has_aux=True)(params)
        updates, opt = optimizer.update(grads, opt, params)
        return (optax.apply_updates(params, updates), changed, opt), value

    return (params, others, jax.jit(optimizer.init)(params)), step


class MLP(nn.Module):
    """Dense layers with dropout."""

    @nn.compact
    def __call__(self, x, train=True):
        x = nn.Dropout(0.2, deterministic=not train)(nn.relu(nn.Dense(32)(x)))
        return nn.Dense(5)(nn.LayerNorm()(x))


class CNN(nn.Module):
    """Convolutions, batch norm, pooling."""

    @nn.compact
    def __call__(self, x, train=True):
        x = nn.BatchNorm(use_running_average=not train)(nn.Conv(6, (3, 3), strides=(2, 1))(x))
        x = nn.max_pool(nn.relu(x), (2, 2), strides=(2, 2))
        x = nn.avg_pool(nn.gelu(nn.Conv(8, (3, 3), padding="VALID")(x)), (2, 2))
        return nn.Dense(4)(x.reshape(x.shape[0], -1))


def mlp():
    x, y = batch((6, 12), 5)
    schedule = optax.cosine_decay_schedule(1e-2, 50)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))
    return linen(MLP(), optimizer, x, train=True), x, y


def cnn():
    x, y = batch((2, 16, 12, 3), 4)
    return linen(CNN(), optax.sgd(0.05, momentum=0.9, nesterov=True), x, train=True), x, y


class Block(nnx.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, width, rngs):
        self.norms = nnx.List([nnx.LayerNorm(width, rngs=rngs) for _ in range(2)])
        self.attention = nnx.MultiHeadAttention(4, width, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(width, 2 * width, rngs=rngs), nnx.Linear(2 * width, width, rngs=rngs)

    def __call__(self, x):
        mask = nnx.make_causal_mask(jnp.ones(x.shape[:2]))
        x = x + self.attention(self.norms[0](x), mask=mask)
        return x + self.down(nnx.gelu(self.up(self.norms[1](x))))


class GPT(nnx.Module):
    """Token and position tables, blocks, a head."""

    def __init__(self, rngs, vocabulary=17, width=16, length=8):
        self.tokens = nnx.Embed(vocabulary, width, rngs=rngs)
        self.positions = nnx.Param(0.02 * jax.random.normal(rngs.params(), (length, width)))
        self.blocks = nnx.List([Block(width, rngs) for _ in range(2)])
        self.norm, self.head = nnx.LayerNorm(width, rngs=rngs), nnx.Linear(width, vocabulary, rngs=rngs)

    def __call__(self, ids):
        x = self.tokens(ids) + self.positions[...]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def gpt():
    x, y = batch((2, 8), 17, np.int32)
    graphdef, state = nnx.split(nnx.jit(lambda: GPT(nnx.Rngs(0)))())
    optimizer = optax.adamw(1e-2)

    def step(held, x, y, key):
        state, opt = held
        value, grads = jax.value_and_grad(lambda s: cross_entropy(nnx.merge(graphdef, s)(x), y))(state)
        updates, opt = optimizer.update(grads, opt, state)
        return (optax.apply_updates(state, updates), opt), value

    return ((state, jax.jit(optimizer.init)(state)), step), x, y


class RNN(eqx.Module):
    """A GRU over time, by scan, and a head."""

    cell: eqx.nn.GRUCell
    head: eqx.nn.Linear

    def __init__(self, key):
        first, second = jax.random.split(key)
        self.cell, self.head = eqx.nn.GRUCell(5, 8, key=first), eqx.nn.Linear(8, 4, key=second)

    def __call__(self, xs):
        last, _ = jax.lax.scan(lambda h, x: (self.cell(x, h), None), jnp.zeros(8), xs)
        return self.head(last)


def rnn():
    x, y = batch((3, 6, 5), 4)
    params, static = eqx.partition(eqx.filter_jit(RNN)(jax.random.key(1)), eqx.is_array)
    optimizer = optax.lion(1e-3)

    def step(held, x, y, key):
        params, opt = held
        noisy = x + 0.1 * jax.random.normal(key, x.shape)
        value, grads = jax.value_and_grad(lambda p: cross_entropy(jax.vmap(eqx.combine(p, static))(noisy), y))(params)
        updates, opt = optimizer.update(grads, opt, params)
        return (eqx.apply_updates(params, updates), opt), value

    return ((params, jax.jit(optimizer.init)(params)), step), x, y


MODELS = {"mlp": mlp, "cnn": cnn, "gpt": gpt, "rnn": rnn}
