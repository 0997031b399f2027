# SPDX-License-Identifier: Apache-2.0
"""The graph of one rank's step on one microbatch: some blocks of a model, with the embedding or the head, forward and
backward."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from trnlab.fleet.layers.shares import ShardSpec
from trnlab.fleet.layers.sizes import RelativeAttention
from trnlab.fleet.layers.training import TrainingLayers
from trnlab.fleet.models.transformer import Block, Model
from trnlab.graph.ir import Graph, Value
from trnlab.numerics.dtypes import float32

JOIN, ENTRY = "join", "entry"  # what a stage has besides: what joins a decoder to its encoder; what each makes anew


@dataclass(frozen=True)
class Stage:
    """A graph of forward and backward."""

    graph: Graph
    forward_end: int  # the output that the forward pass ends with
    # weights, gradients: inputs and outputs that are parameters and their gradients
    weights: tuple[int, ...] = ()
    gradients: tuple[int, ...] = ()
    sharded: bool = False  # whether ranks have parts of both, which come and go, see `ShardSpec`


def stage(
    model: Model,
    blocks: tuple[Block, ...],
    spec: ShardSpec,
    ranks: int,
    first: bool = False,
    last: bool = False,
    also: str = "",
) -> Stage:
    """Forward and backward of some blocks of a model; `first` with the embedding, `last` with head and loss.

    ranks: all that work at the same time, in tensor groups of neighbours. also: JOIN, what lies between an encoder
    and these first blocks of a decoder; ENTRY, what each stage makes for all of its blocks.
    """
    count = spec.tensor
    groups = tuple(tuple(range(i, i + count)) for i in range(0, ranks, count))
    layers = TrainingLayers(f"{model.name}_stage", spec, groups)
    entered, x = _entering(model, layers, first, also)
    relative = next((a for a in (block.attention for block in blocks) if isinstance(a, RelativeAttention)), None)
    if relative is not None:  # once, for all blocks
        layers.make_distances(relative) if also == ENTRY else layers.distances(relative)
    for i, block in enumerate(blocks):
        x = layers.block(partial(block.forward, layers, f"block_{i}"), x)
    if last:
        x = layers.loss(model.head(layers, x))
    return differentiated(layers, x, entered, summed=not spec.sharded)


def _entering(model: Model, layers: TrainingLayers, first: bool, also: str) -> tuple[Value | None, Value]:
    """What came from the stage before, None where nothing did, and what enters the first block."""
    if first:
        return None, model.embedding(layers)
    if also == JOIN:
        entered = layers.given(layers.read(model.hidden))
        return entered, model.join(layers, entered)
    entered = layers.given(layers.local(model.hidden))
    return entered, entered


def differentiated(layers: TrainingLayers, end: Value, entered: Value | None, summed: bool) -> Stage:
    """The stage that ends with a loss, a scalar, or with what goes to the next stage, which sends its gradient.

    Gradients of what entered and of what was received go back. Those of weights leave in float32, added to sums as
    over the microbatches of a step where they are `summed`.
    """
    b = layers.b
    b.output(end)
    arriving = b.constant(1.0, end.dtype) if end.shape == () else layers.given(end.shape)
    found = layers.gradients({end: arriving}, [entered] if entered is not None else [])
    for value in [*([entered] if entered is not None else []), *layers.received]:
        if value in found:
            b.output(found[value])
    weights = [weight for weight in layers.trained if weight in found]
    first = len(b.graph.outputs)
    for weight in weights:
        if summed:
            total = b.input(f"sum_{weight.name}", weight.shape, float32)
            b.output(b.add(total, found[weight]), alias_of=total)
        else:
            b.output(found[weight])
    inputs = tuple(b.graph.inputs.index(weight) for weight in layers.trained)
    outputs = tuple(range(first, first + len(weights)))
    return Stage(b.build(), 0, inputs, outputs, sharded=not summed and layers.share.sharded)
