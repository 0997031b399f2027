# SPDX-License-Identifier: Apache-2.0
"""Graphs of an optimizer's step: gradients scaled by the norm of all of them, and AdamW.

Ranks of ZeRO-3 have a part of every parameter by itself, as PyTorch's `fully_shard` divides them: many small tensors,
each of which takes calls of its own. Other ranks have all of theirs in one flat buffer, as Megatron-LM's distributed
optimizer has them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from trnlab.collectives import Groups
from trnlab.fleet.costs.stages import ENTRY, JOIN, Stage, stage
from trnlab.fleet.layers.shares import ShardSpec
from trnlab.fleet.models.encoder_decoder import EncoderDecoderModel
from trnlab.fleet.models.transformer import Block, Model
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, Value
from trnlab.numerics.dtypes import dtype, float32

LARGEST_NORM = 1.0  # above which gradients are scaled down: Megatron-LM's default --clip-grad
BETAS, EPSILON, DECAY = (0.9, 0.95), 1e-8, 0.1  # of AdamW, as Llama was trained (Touvron et al. 2023, 2.3)
LEARNING_RATES = (2.0**-40, 2.0**20)  # what is promised of them, as of those of a captured step
STEPS = (0.0, 2.0**24)  # that float32 counts exactly
TOKENS = 128  # of the graph that the shapes of parameters are read from; they do not depend on it
Shape = tuple[int, ...]
Rates = tuple[Value, Value, Value]  # scalars of a step: of decay, below roots, and what is added to those


def adamw(parameters: int, rounded: bool = True) -> Graph:
    """The update of so many parameters in one buffer: gradients, weights and moments in float32, and where they are
    `rounded`, weights in bfloat16."""
    return _update("adamw", [(128, parameters // 128)], 1, rounded)


def sharded(model: Model, blocks: Sequence[Block], ranks: int) -> Graph:
    """The update of a rank's part of these blocks and of what precedes and follows them, divided among `ranks`. Parts
    are in float32; whoever gathers them rounds them."""
    shapes = [part_of(shape, ranks) for shape in _parameters(model, blocks)]
    return _update("adamw_of_parts", shapes, ranks, rounded=False)


def rounding(model: Model, blocks: Sequence[Block], ranks: int) -> Graph:
    """Those parts in bfloat16, to be gathered: once for each pass, as `fully_shard` makes them when it gathers."""
    b = GraphBuilder("rounding_of_parts")
    for i, shape in enumerate(_parameters(model, blocks)):
        part = b.input(f"part_{i}", part_of(shape, ranks), float32)
        for x in (part, b.optimization_barrier(part)):
            b.output(b.convert(x, dtype("bfloat16")))
    return b.build()


def _parameters(model: Model, blocks: Sequence[Block]) -> list[Shape]:
    """Shapes of all parameters of a model of these blocks."""
    if not isinstance(model, EncoderDecoderModel):
        return list(_named(stage(model, tuple(blocks), ShardSpec(1, TOKENS), 1, first=True, last=True)).values())
    found: dict[str, Shape] = {}
    for crossed, (_, kind) in enumerate(model.stacks):
        own, share = tuple(block for block in blocks if block == kind), model.share(kind, ShardSpec(1, TOKENS))
        for also in (JOIN if crossed else "", ENTRY):
            named = _named(stage(model, own, share, 1, first=not (crossed or also), last=bool(crossed), also=also))
            found |= {name if name == "table" else f"{crossed} {name}": shape for name, shape in named.items()}
    return list(found.values())


def _named(made: Stage) -> dict[str, Shape]:
    inputs = [made.graph.inputs[i] for i in made.weights]
    return {value.name: value.shape for value in inputs}


def part_of(shape: Shape, ranks: int) -> Shape:
    """Rows of one rank, of all dimensions but the last where they are few."""
    rows, rest = shape[0], shape[1:]
    if len(shape) > 2:
        rows, rest = shape[0] * shape[1], shape[2:]
    return (-(-rows // ranks), *rest)


def _update(name: str, shapes: Sequence[Shape], ranks: int, rounded: bool) -> Graph:
    b = GraphBuilder(name)
    update = OptimizerUpdate(b, ranks)
    update.apply([b.input(f"gradient_{i}", shape, float32) for i, shape in enumerate(shapes)], rounded=rounded)
    return b.build()


class OptimizerUpdate:
    """A step of the optimizer, appended to a graph. ranks: whose gradients were added up. everyone: the group of all
    ranks that have parts of the gradients; without one the norm is that of the gradients that are there."""

    def __init__(self, b: GraphBuilder, ranks: int, everyone: Groups = ()) -> None:
        self.b, self.ranks = b, ranks
        self.everyone = everyone if everyone and len(everyone[0]) > 1 else ()
        self.rates = _rates(b)

    def apply(self, gradients: Sequence[Value], masters: Sequence[Value] = (), rounded: bool = False) -> None:
        """New weights and moments in the place of the old ones; `masters` are inputs, made here where there are
        none. rounded: weights in bfloat16 are outputs, too."""
        b = self.b
        mean = [b.multiply(gradient, 1 / self.ranks) for gradient in gradients] if self.ranks > 1 else gradients
        factor = self._factor(mean)
        scaled = [b.multiply(gradient, b.broadcast_to(factor, gradient.shape)) for gradient in mean]
        masters = masters or [b.input(f"master_{i}", x.shape, float32) for i, x in enumerate(scaled)]
        _adamw(b, scaled, masters, self.rates, rounded)

    def _factor(self, gradients: Sequence[Value]) -> Value:
        """What gradients are multiplied by, so that the norm of all of them is at most `LARGEST_NORM`."""
        b = self.b
        each = [b.reduce(b.multiply(x, x), tuple(range(len(x.shape)))) for x in gradients]
        parts = [b.reshape(x, (1,)) for x in each]
        squares = b.concatenate(parts, 0) if len(parts) > 1 else parts[0]
        if self.everyone:
            squares = b.all_reduce([squares], self.everyone)[0]
        total = b.reduce(squares, (0,))
        return b.minimum(b.divide(LARGEST_NORM, b.add(b.sqrt(total), 1e-6)), 1.0)


def _rates(b: GraphBuilder) -> Rates:
    """From the learning rate and the number of the step, corrected for moments that began at zero."""
    rate, step = b.input("rate", (), float32), b.input("step", (), float32)
    b.graph.bounds.update({rate.index: LEARNING_RATES, step.index: STEPS})  # else divisions mind zeros
    later = b.add(step, 1.0)
    first, second = (b.negate(b.op("exponential_minus_one", b.multiply(later, math.log(x)))) for x in BETAS)
    size = b.negate(b.divide(rate, first))
    root, least = b.multiply(b.sqrt(second), size), b.multiply(b.divide(1.0, size), EPSILON)
    return b.subtract(1.0, b.multiply(rate, DECAY)), root, least


def _adamw(
    b: GraphBuilder, gradients: Sequence[Value], masters: Sequence[Value], rates: Rates, rounded: bool
) -> None:
    """As PyTorch writes AdamW of many tensors: each operation of all of them before the next one (`foreach`), which
    decides what is one call of a program; the rate is in what the roots are divided by."""
    moments = (
        [b.input(f"{kind}_{i}", x.shape, float32) for kind in ("mean", "square")] for i, x in enumerate(gradients)
    )
    given = [(master, *both) for master, both in zip(masters, moments)]
    wide = [[b.broadcast_to(rate, x.shape) for rate in rates] for x in gradients]
    left = [b.multiply(master, decay) for (master, _, _), (decay, _, _) in zip(given, wide)]
    average = [
        b.add(mean, b.multiply(b.subtract(x, mean), 1 - BETAS[0])) for x, (_, mean, _) in zip(gradients, given)
    ]
    old = [b.multiply(square, BETAS[1]) for _, _, square in given]
    size = [b.add(y, b.multiply(b.multiply(x, x), 1 - BETAS[1])) for x, y in zip(gradients, old)]
    roots = [b.add(b.divide(b.sqrt(y), root), least) for y, (_, root, least) in zip(size, wide)]
    new = [b.add(x, b.divide(mean, y)) for x, mean, y in zip(left, average, roots)]
    for made, was in zip(zip(new, average, size), given):
        if rounded:
            b.output(b.convert(made[0], dtype("bfloat16")))
        for value, before in zip(made, was):
            b.output(value, alias_of=before)
