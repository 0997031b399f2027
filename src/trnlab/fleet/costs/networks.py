# SPDX-License-Identifier: Apache-2.0
"""The training step of a network on one rank: forward, backward and the optimizer's update, in one graph.

Parameters, gradients and the optimizer's state are kept in one format. Updates are PyTorch's, with their roundings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from trnlab.estimate.forecast import GraphRuns, StepWork
from trnlab.fleet.costs.updates import LEARNING_RATES, STEPS
from trnlab.fleet.layers.convolutional import ConvolutionalLayers
from trnlab.fleet.layers.shares import ShardSpec
from trnlab.fleet.models.captured import CapturedWork
from trnlab.fleet.models.unpartitioned import UnpartitionedModel
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Value
from trnlab.graph.passes.dead import remove_dead_ops
from trnlab.numerics.dtypes import float32

BETAS, EPSILON, DECAY = (0.9, 0.999), 1e-8, 0.01  # of AdamW, PyTorch's defaults
# An optimizer, as it is appended to a step: from weights and their gradients to inputs that are its state.
Update = Callable[[GraphBuilder, Sequence[Value], Sequence[Value]], list[Value]]


def step(model: UnpartitionedModel, samples: int, again: bool, form: str) -> CapturedWork:
    """The step of so many samples. again: what is inside of blocks is made once more on the way back. form: of
    weights, activations and the optimizer's state."""
    assert model.network is not None, model.name
    share = ShardSpec(samples, 1, form=form, block="again" if again else "kept")
    layers = ConvolutionalLayers("train_step", share)
    b, loss = layers.b, model.network.loss(layers)
    b.output(loss)
    for old, new in layers.averages:
        b.output(new, alias_of=old)
    weights = list(layers.weights.values())
    gradients = b.gradients({loss: b.constant(1.0, loss.dtype)}, weights)
    kinds = dict.fromkeys(b.graph.inputs, "batch") | dict.fromkeys(weights, "parameter")
    kinds |= dict.fromkeys((old for old, _ in layers.averages), "buffer")
    kinds |= dict.fromkeys(UPDATES[model.network.update](b, weights, [gradients[w] for w in weights]), "state")
    if layers.overflows:
        b.output(b.concatenate(layers.overflows, 0))
    graph = b.build()
    remove_dead_ops(graph)
    part = GraphRuns(graph, 1, tuple(kinds.get(value, "temporary") for value in graph.inputs), loss=0)
    shapes = {name: weight.shape for name, weight in layers.weights.items()}
    return CapturedWork(model.name, StepWork([part], [], samples), samples, 1, shapes, model.source)


def momentum(b: GraphBuilder, weights: Sequence[Value], gradients: Sequence[Value]) -> list[Value]:
    """SGD with momentum and decay, as ResNets are trained (He et al. 2015, section 3.4)."""
    rate, state = _rate(b), []
    for weight, gradient in zip(weights, gradients):
        form, old = weight.dtype, b.input(f"{weight.name}.momentum", weight.shape, weight.dtype)
        gradient = b.add(gradient, b.convert(b.multiply(b.convert(weight, float32), 5e-5), form))
        new = b.add(b.convert(b.multiply(b.convert(old, float32), 0.9), form), gradient)
        step = b.broadcast_to(b.convert(b.negate(rate), form), weight.shape)
        b.output(b.add(weight, b.multiply(new, step)), alias_of=weight)
        b.output(new, alias_of=old)
        state.append(old)
    return state


def adamw(b: GraphBuilder, weights: Sequence[Value], gradients: Sequence[Value]) -> list[Value]:
    """AdamW with PyTorch's defaults (Loshchilov and Hutter 2017), and as PyTorch writes it of many tensors: each
    operation of all of them before the next one (`foreach`), which decides what is one call of a program."""
    count, rate = b.input("step", (), float32), _rate(b)
    b.graph.bounds[count.index] = STEPS
    now = b.add(count, 1.0)
    b.output(now, alias_of=count)
    first, second = (b.negate(b.op("exponential_minus_one", b.multiply(now, math.log(x)))) for x in BETAS)
    size = b.negate(b.divide(rate, first))
    rates = b.subtract(1.0, b.multiply(rate, DECAY)), b.multiply(b.sqrt(second), size)
    scalars = *rates, b.multiply(b.divide(1.0, size), EPSILON)
    olds = [[b.input(f"{x.name}.{name}", x.shape, x.dtype) for name in ("mean", "square")] for x in weights]
    _adamw(b, weights, gradients, olds, scalars)
    return [count, *(state for both in olds for state in both)]


def _adamw(
    b: GraphBuilder,
    weights: Sequence[Value],
    gradients: Sequence[Value],
    olds: Sequence[Sequence[Value]],
    scalars: Sequence[Value],
) -> None:
    def wide(values: Iterable[Value]) -> list[Value]:
        return [b.convert(x, float32) for x in values]

    def rounded(values: Iterable[Value]) -> list[Value]:
        return [b.convert(x, weight.dtype) for x, weight in zip(values, weights)]

    left, root, least = ([b.broadcast_to(b.convert(scalar, x.dtype), x.shape) for x in weights] for scalar in scalars)
    kept = wide(b.multiply(x, y) for x, y in zip(weights, left))
    given, before = wide(gradients), wide(mean for mean, _ in olds)
    mean = rounded(b.add(y, b.multiply(b.subtract(x, y), 1 - BETAS[0])) for x, y in zip(given, before))
    square = wide(rounded(b.multiply(x, BETAS[1]) for x in wide(square for _, square in olds)))
    square = rounded(b.add(y, b.multiply(b.multiply(x, x), 1 - BETAS[1])) for x, y in zip(given, square))
    below = wide(b.add(b.divide(b.sqrt(x), y), z) for x, y, z in zip(square, root, least))
    new = rounded(b.add(x, b.divide(y, z)) for x, y, z in zip(kept, wide(mean), below))
    for made, was in zip(zip(new, mean, square), ((x, *both) for x, both in zip(weights, olds))):
        for value, old in zip(made, was):
            b.output(value, alias_of=old)


def _rate(b: GraphBuilder) -> Value:
    rate = b.input("rate", (), float32)
    b.graph.bounds[rate.index] = LEARNING_RATES
    return rate


UPDATES: Mapping[str, Update] = {"momentum": momentum, "adamw": adamw}
