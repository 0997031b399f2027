# SPDX-License-Identifier: Apache-2.0
"""A training step that was captured from somebody's script, and the model that its parameters are.

Parameters by name and shape, and the operands of attention, say what a stack of equal blocks is made of. A model is
recognised only where every parameter is accounted for, and the products of the step are those of the model.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from trnlab.fleet.layers.sizes import Attention, Dense
from trnlab.fleet.models.counts import Counted
from trnlab.fleet.models.transformer import Block, Model
from trnlab.fleet.models.unpartitioned import Whole
from trnlab.graph.flops import model_flops
from trnlab.graph.ir import Op
from trnlab.porting.forecast import Work

Shape = tuple[int, ...]
NEAR = 0.05  # by which the products of a step may differ from those of the model that its parameters are
_NUMBERED = re.compile(r"(?P<before>.*?)\.?\b(?P<number>\d+)\.(?P<inside>.+)")
_TURNED = ("concatenate", "negate", "subtract")  # of rotary positions


@dataclass(frozen=True)
class Captured:
    """A step of one rank. work: its programs; samples: sequences or images of its batch, of so many `units` each:
    tokens, or 1 of an image. parameters: shapes by name. source: the script."""

    name: str
    work: Work
    samples: int
    units: int
    parameters: Mapping[str, Shape]
    source: str = ""

    @property
    def count(self) -> int:
        """Number of all parameters."""
        return sum(map(prod, self.parameters.values()))

    @property
    def flops(self) -> float:
        """Floating-point operations of the products of the step."""
        return float(sum(model_flops(part.graph) * part.times for part in self.work.parts))

    @property
    def batch_bytes(self) -> int:
        """Bytes of what comes from the host for a step of one rank."""
        inputs = [(v, k) for part in self.work.parts for v, k in zip(part.graph.inputs, part.kinds)]
        return sum(v.type.nbytes for v, kind in inputs if kind == "batch")

    @property
    def layers(self) -> int:
        """Equal blocks, whose exchange can overlap the work of others; 1 where there are none."""
        return max(len(blocks_of(self.parameters)[0]), 1)


@dataclass(frozen=True)
class Recognised:
    """model: None where the step is no stack of equal blocks; why: what was in the way."""

    model: Model | None
    why: str = ""


def whole(step: Captured) -> Whole:
    """The model of a step that is only divided by data."""
    per_unit = step.flops / max(step.samples * step.units, 1)
    return Whole(
        step.name,
        0,
        (),
        step.units,
        patch=int(step.units == 1),
        source=step.source,
        figures=Counted(step.count, per_unit, step.batch_bytes / max(step.samples, 1)),
    )


def recognised(step: Captured) -> Recognised:
    """The model that a step trains, as a stack of equal blocks with an embedding and a head."""
    blocks, outside = blocks_of(step.parameters)
    if len(blocks) < 2:
        return Recognised(None, "its parameters repeat in no numbered blocks")
    if len({tuple(sorted(block.items())) for block in blocks}) > 1:
        return Recognised(None, "its blocks are not equal")
    attention = [op for part in step.work.parts for op in part.graph.ops if op.name == "trn.attention"]
    seen = {(*(x.shape for x in op.operands[:3]), bool(op.attrs.get("causal"))) for op in attention}
    if len(seen) != 1:
        return Recognised(None, f"its blocks have {len(seen) or 'no'} kinds of attention")
    length = attention[0].operands[0].shape[2]
    found = next(_blocks(attention[0], Counter(_plain(shape) for shape in blocks[0].values())), None)
    if found is None:
        return Recognised(None, "its blocks are no attention followed by a dense network")
    model = _model(step, found, len(blocks), length, Counter(outside.values()))
    if model is None:
        return Recognised(None, "what surrounds its blocks is no embedding and head")
    return _checked(step, model, length)


def _checked(step: Captured, model: Model, length: int) -> Recognised:
    """Refused where the step's products are not those of the model: something is in it that has no parameters."""
    each = step.flops / (step.samples * length)
    masked = model.flops_per_token(length)
    stacks = tuple((n, replace(b, attention=replace(b.attention, causal=False))) for n, b in model.stacks)
    full = replace(model, stacks=stacks).flops_per_token(length)  # as operations of a graph are counted
    if not masked * (1 - NEAR) <= each <= full * (1 + NEAR):
        return Recognised(None, f"its products are {each / full:.2f} times those of a stack of its parameters")
    return Recognised(model)


def blocks_of(parameters: Mapping[str, Shape]) -> tuple[list[dict[str, Shape]], dict[str, Shape]]:
    """The largest list of numbered modules: the parameters of each, by their names within it, and all others."""
    lists: dict[str, dict[int, dict[str, Shape]]] = defaultdict(lambda: defaultdict(dict))
    for name, shape in parameters.items():
        if found := _NUMBERED.fullmatch(name):
            lists[found["before"]][int(found["number"])][found["inside"]] = shape
    if not lists:
        return [], dict(parameters)
    largest = max(lists, key=lambda before: sum(len(block) for block in lists[before].values()))
    outside = {
        name: shape
        for name, shape in parameters.items()
        if not ((found := _NUMBERED.fullmatch(name)) and found["before"] == largest)
    }
    return list(lists[largest].values()), outside


def _plain(shape: Shape) -> Shape:
    """Whichever way round a matrix is kept."""
    return tuple(sorted(shape))


def _blocks(op: Op, shapes: Counter[Shape]) -> Iterator[Block]:
    """Blocks around this attention that have parameters of just these shapes."""
    (_, heads, _, size), value_size = op.operands[0].shape, op.operands[2].shape[3]
    causal, rope = bool(op.attrs.get("causal")), _is_turned(op)
    sizes = sorted({n for shape in shapes if len(shape) == 2 for n in shape})
    shared = [n for n in range(1, heads + 1) if heads % n == 0]
    kinds = product(sizes, sizes, shared, ("none", "qkv", "all"), (False, True), (False, True), ("rms", "layer"))
    for hidden, width, kv, bias, norms, more, norm in kinds:
        attention = Attention(heads, kv, size, value_size, causal, rope, bias, norms=norms)
        for gated in (False, True):
            block = Block(hidden, attention, Dense(width, gated, more), norm)
            if any(shapes == has for has in _shapes(block)):
                yield block


def _shapes(block: Block) -> Iterator[Counter[Shape]]:
    """Shapes of a block's parameters: with projections apart, of keys with values, or all in one; likewise the
    network's."""
    a, n, h = block.attention, block.network, block.hidden
    assert isinstance(n, Dense)
    q, k, v = a.heads * a.size, a.kv_heads * a.size, a.kv_heads * a.value_size
    rest = [(h, a.heads * a.value_size), (h, n.size), *([(h,)] * (2 if block.norm == "rms" else 4))]
    rest += [(h,)] * (a.bias == "all") + [(a.size,)] * (2 * a.norms) + [(h,)] * n.bias
    into = [n.size] * (2 if n.gated else 1)
    for asked, opened in product(([q, k, v], [q, k + v], [q + k + v]), (into, [sum(into)])):
        biases = [(w,) for w in asked] if a.bias != "none" else []
        biases += [(w,) for w in opened] if n.bias else []
        yield Counter(map(_plain, [*rest, *((h, w) for w in (*asked, *opened)), *biases]))


def _is_turned(op: Op) -> bool:
    """Whether queries are turned by their positions between their projection and attention."""
    return any(other.name in _TURNED for other in _before(op))


def _before(op: Op) -> Iterator[Op]:
    """What lies between the projection of queries and an attention."""
    waiting, seen = [op.operands[0].op], set[int]()
    while waiting:
        made = waiting.pop()
        if made is None or made.name == "dot_general" or id(made) in seen:
            continue
        seen.add(id(made))
        yield made
        waiting += [x.op for x in made.operands]


def _model(step: Captured, block: Block, count: int, length: int, outside: Counter[Shape]) -> Model | None:
    """With an embedding, a head of its own or the embedding again, learned positions or none, a norm or none."""
    hidden = block.hidden
    rows = sorted((shape[0] for shape in outside.elements() if len(shape) == 2 and shape[1] == hidden), reverse=True)
    if not rows:
        return None
    for tied, placed, normed in product((False, True), (False, True), (True, False)):
        positions = rows[-1] if placed else 0
        model = Model(
            step.name,
            hidden,
            ((count, block),),
            length,
            rows[0],
            positions,
            tied,
            final_norm=normed,
            source=step.source,
        )
        norm = [(hidden,)] * ((1 if block.norm == "rms" else 2) if normed else 0)
        tables = [(rows[0], hidden)] * (1 if tied else 2) + [(positions, hidden)] * placed
        if Counter([*tables, *norm]) == outside and model.parameters == step.count:
            return model
    return None
