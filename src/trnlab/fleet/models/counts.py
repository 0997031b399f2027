# SPDX-License-Identifier: Apache-2.0
"""Parameters and operations of blocks and models, read from the graphs of their layers.

Blocks and models are those of `transformer`, which asks here; what is asked of them is `forward`, `embedding`,
`join`, `head` and `share`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from math import prod
from typing import Any

from trnlab.fleet.layers.convolutional import ConvolutionalLayers
from trnlab.fleet.layers.shares import DecoderShare, ShardSpec
from trnlab.fleet.layers.sizes import Attention, Experts, RelativeAttention
from trnlab.fleet.layers.training import TrainingLayers
from trnlab.graph.flops import op_flops
from trnlab.graph.ir import Value
from trnlab.graph.passes.dead import remove_dead_ops

TOKENS = 4  # of the graphs that weights are read from, which do not depend on it
BACKWARD = 2  # times the forward pass: each product has two gradients
BIAS = "_bias"  # after the name of the weight that it belongs to


@dataclass(frozen=True)
class Weights:
    """Parameters of a layer, and of those the ones of experts, of which a token meets a part."""

    parameters: int
    experts: int


@dataclass(frozen=True)
class Asked:
    """The weights that a definition asks for."""

    shapes: Mapping[str, tuple[int, ...]]  # by name
    together: tuple[tuple[str, ...], ...]  # those that are multiplied with the same thing, in order
    experts: frozenset[str]  # those of experts, one after another in their first dimension

    @property
    def size(self) -> int:
        """Parameters of all."""
        return sum(map(prod, self.shapes.values()))


@dataclass(frozen=True)
class Ends:
    """Parameters of what precedes the first block, lies between an encoder and its decoder, and follows the last
    block; and of the norm among the latter."""

    embedding: int
    join: int
    head: int
    final_norm: int


class Counting(TrainingLayers):
    """Layers whose attention is counted and not made. operations: of it, the masked half of causal ones left out."""

    operations = 0.0

    def attended(self, name: str, a: Attention, q: Value, k: Value, v: Value) -> Value:
        """Something of the result's shape, [B, N, S, columns of values]."""
        batch, heads, length, size = q.shape
        pairs = batch * heads * length * k.shape[2] * (0.5 if a.causal else 1.0)
        self.operations += 2.0 * pairs * (size + v.shape[3])
        return self.b.pad(q, (0,) * 4, (0, 0, 0, v.shape[3] - size)) if v.shape[3] != size else q


def _counting(spec: ShardSpec | None = None) -> Counting:
    return Counting("counted", spec or DecoderShare(1, TOKENS, memory=TOKENS))


def _size(layers: TrainingLayers) -> int:
    return sum(weight.type.size for weight in layers.weights.values())


def _asked(layers: TrainingLayers) -> Asked:
    names, readers = {v: name for name, v in layers.weights.items()}, dict[Value, list[str]]()
    for op in layers.b.graph.ops:
        if op.name == "dot_general" and op.operands[1] in names:
            readers.setdefault(op.operands[0], []).append(names[op.operands[1]])
    shapes = {name: v.shape for name, v in layers.weights.items()}
    return Asked(shapes, tuple(map(tuple, readers.values())), frozenset(layers.expert_weights))


@cache
def asked_by_block(block: Any) -> Asked:
    """The weights of a layer."""
    layers = _counting()
    block.forward(layers, "block", layers.given(layers.local(block.hidden)))
    return _asked(layers)


def asked_by_ends(model: Any) -> Asked:
    """The weights of what is no block, without biases by distance."""
    *_, layers = _along_ends(model)
    return _asked(layers)


@dataclass(frozen=True)
class Counted:
    """Parameters of a model that is no stack of blocks; operations of a unit, forward and backward; bytes of a sample
    that are given."""

    parameters: int
    operations: float
    given: float


@cache
def of_network(network: Any) -> Counted:
    """Count an `unpartitioned.UnpartitionedNetwork` by its `loss`, with the operations of the forward
    pass."""
    layers = ConvolutionalLayers("counted", ShardSpec(1, 1))
    network.loss(layers)
    others = {*layers.weights.values(), *(old for old, _ in layers.averages), *layers.received}
    given = sum(value.type.nbytes for value in layers.b.graph.inputs if value not in others)
    return Counted(_size(layers), _products(layers), float(given))


@cache
def operations_of_network(network: Any) -> float:
    """Operations of one sample, forward and backward."""
    layers = ConvolutionalLayers("counted", ShardSpec(1, 1))
    loss = network.loss(layers)
    for value in (loss, *layers.gradients({loss: layers.b.constant(1.0, loss.dtype)}, ()).values()):
        layers.b.output(value)
    remove_dead_ops(layers.b.graph)
    return _products(layers)


@cache
def of_block(block: Any) -> Weights:
    """Parameters of a layer."""
    asked = asked_by_block(block)
    return Weights(asked.size, sum(prod(asked.shapes[name]) for name in asked.experts))


def _along_ends(model: Any) -> Iterator[Counting]:
    """Layers after the embedding was made of them, after the join, and after the head."""
    layers = _counting()
    x = model.embedding(layers)
    yield layers
    if model.decoded:
        x = model.join(layers, layers.given(layers.read(model.hidden)))
    yield layers
    model.head(layers, x)
    yield layers


@cache
def of_ends(model: Any) -> Ends:
    """Parameters of what is no block. Biases by distance count where their stack begins; a table that serves twice
    counts where it is met first."""
    sizes = [0]
    for layers in _along_ends(model):
        sizes.append(_size(layers))
    distances = [_distances(block.attention) for _, block in model.stacks]
    embedding, join, head = (limit - start for start, limit in pairwise(sizes))
    norm = sum(weight.type.size for name, weight in layers.weights.items() if name.startswith("final_"))
    return Ends(embedding + distances[0], join + sum(distances[1:]), head, norm)


def _distances(a: Attention) -> int:
    layers = _counting()
    if isinstance(a, RelativeAttention):
        layers.make_distances(a)
    return _size(layers)


@cache
def operations(model: Any, sequence: int) -> float:
    """Operations of a sequence of so many tokens, forward and backward: two for each multiplication and addition of
    all products, of which gradients are two more, and attention's (Narayanan et al. 2021; PaLM, appendix B). Of
    experts, those that tokens are sent to by an even router; nothing that is made again."""
    found = [count * of_layer(model, block, sequence) for count, block in model.stacks]
    layers = _counting(model.share(model.stacks[0][1], ShardSpec(1, sequence)))
    x = model.embedding(layers)
    found.append(_forward(layers))
    layers = _counting(model.share(model.stacks[-1][1], ShardSpec(1, sequence)))
    if model.decoded:
        x = model.join(layers, layers.given(layers.read(model.hidden)))
    model.head(layers, x if model.decoded else layers.given(layers.local(model.hidden)))
    return (1 + BACKWARD) * sum([*found, _forward(layers)])


@cache
def of_layer(model: Any, block: Any, sequence: int) -> float:
    """Operations of a layer forward, for one sequence; as many at once as give all experts equal rows."""
    batch = 1
    if isinstance(block.network, Experts):
        batch = block.network.count
        block = replace(block, network=replace(block.network, capacity=1.0))
    layers = _counting(model.share(block, ShardSpec(batch, sequence)))
    block.forward(layers, "block", layers.given(layers.local(block.hidden)))
    return _forward(layers) / batch


def _forward(layers: Counting) -> float:
    return _products(layers) + layers.operations


def _products(layers: TrainingLayers) -> float:
    return float(sum(map(op_flops, layers.b.graph.ops)))
