# SPDX-License-Identifier: Apache-2.0
"""A training step that was captured from somebody's script, and the model that its parameters are.

Which parameters lie between one attention and the next says what equal blocks are made of (`forward`); names are
asked only where that does not. What is tried are the blocks and ends of `transformer`, with the weights that they ask
for themselves. A model is recognised only where every parameter is accounted for, and the products of the step are
those of the model.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from trnlab.estimate.forecast import StepWork
from trnlab.fleet.layers.sizes import Attention, Dense, Experts
from trnlab.fleet.models import counts
from trnlab.fleet.models.counts import Counted
from trnlab.fleet.models.forward import AttentionContext, Forward
from trnlab.fleet.models.stored import Shape, plainly, stores
from trnlab.fleet.models.transformer import Block, Model
from trnlab.fleet.models.unpartitioned import UnpartitionedModel
from trnlab.graph.flops import model_flops

NEAR = 0.05  # by which the products of a step may differ from those of the model that its parameters are
_NUMBERED = re.compile(r"(?P<before>.*?)\.?\b(?P<number>\d+)\.(?P<inside>.+)")


@dataclass(frozen=True)
class CapturedWork:
    """A step of one rank."""

    name: str
    work: StepWork  # its programs
    samples: int  # sequences or images of its batch, of so many `units` each: tokens, or 1 of an image
    units: int
    parameters: Mapping[str, Shape]  # shapes by name
    source: str = ""  # the script

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
        forward = _forward(self)
        if (stack := _between_attentions(self, forward)) is not None:
            return stack.count
        return forward.rounds or max(len(blocks_of(self.parameters)[0]), 1)


@dataclass(frozen=True)
class RecognisedModel:
    """The model that a captured step trains."""

    model: Model | None  # None where the step is no stack of equal blocks
    why: str = ""  # what was in the way


def whole(step: CapturedWork) -> UnpartitionedModel:
    """The model of a step that is only divided by data."""
    per_unit = step.flops / max(step.samples * step.units, 1)
    return UnpartitionedModel(
        step.name,
        0,
        (),
        step.units,
        patch=int(step.units == 1),
        source=step.source,
        figures=Counted(step.count, per_unit, step.batch_bytes / max(step.samples, 1)),
    )


@dataclass(frozen=True)
class _Stack:
    """So many equal blocks, the weights of each, and those of what surrounds them."""

    count: int
    block: Counter[Shape]
    ends: Counter[Shape]


def recognised(step: CapturedWork) -> RecognisedModel:
    """The model that a step trains, as a stack of equal blocks with an embedding and a head."""
    forward = _forward(step)
    kinds = list(dict.fromkeys(seen for part in step.work.parts for seen in Forward(part, step.samples).attentions))
    if not kinds:
        return RecognisedModel(None, "its step has no attention whose queries, keys and values come from parameters")
    if len(kinds) > 1:
        return RecognisedModel(None, f"its attentions are of {len(kinds)} kinds: {'; '.join(map(_told, kinds[:3]))}")
    stack = _between_attentions(step, forward) or _numbered(step, len(forward.attentions))
    if isinstance(stack, str):
        return RecognisedModel(None, stack)
    block = next(_blocks(kinds[0], stack.block), None)
    if block is None:
        why = "its blocks are no attention followed by a dense network or experts: each has weights of "
        return RecognisedModel(None, why + _listed(stack.block))
    ends = (m for m in _models(step, block, stack, kinds[0]) if stores(stack.ends, counts.asked_by_ends(m)))
    model = next(ends, None)
    if model is None:
        return RecognisedModel(
            None, "what surrounds its blocks is no embedding and head: weights of " + _listed(stack.ends)
        )
    return _checked(step, model, kinds[0].length)


def _told(seen: AttentionContext) -> str:
    hides = "causal" if seen.causal else "not causal"
    shared = f" with {seen.kv_heads} of keys" if seen.kv_heads != seen.heads else ""
    return f"{seen.heads} heads of {seen.size}{shared} over {seen.length} tokens, {hides}"


def _listed(shapes: Counter[Shape]) -> str:
    found = [f"{' x '.join(map(str, shape)) or 1}{f' ({n})' if n > 1 else ''}" for shape, n in shapes.items()]
    return ", ".join(found[:8]) + (f" and {len(found) - 8} more shapes" if len(found) > 8 else "")


def _checked(step: CapturedWork, model: Model, length: int) -> RecognisedModel:
    """Refused where the step's products are not those of the model: something is in it that has no parameters. How
    many experts a token meets, no parameter says: so many as the products are nearest to."""
    each = step.flops / (step.samples * length)

    def full(model: Model) -> float:  # as operations of a graph are counted
        stacks = tuple((n, replace(b, attention=replace(b.attention, causal=False))) for n, b in model.stacks)
        return replace(model, stacks=stacks).flops_per_token(length)

    model = min(_of_active(model), key=lambda m: abs(each - full(m)))
    if not model.flops_per_token(length) * (1 - NEAR) <= each <= full(model) * (1 + NEAR):
        why = f"its products are {each / full(model):.2f} times those of a stack of its parameters"
        ((_, block),) = model.stacks
        if isinstance(block.network, Experts):
            why += f" of which a token meets {block.network.active} of {block.network.count} experts"
        return RecognisedModel(None, why)
    return RecognisedModel(model)


def _of_active(model: Model) -> list[Model]:
    """The model with each number of experts that a token may meet."""
    ((count, block),) = model.stacks
    if not isinstance(block.network, Experts):
        return [model]
    each = (replace(block.network, active=n) for n in range(1, block.network.count + 1))
    return [replace(model, stacks=((count, replace(block, network=network)),)) for network in each]


# -- which parameters are of which block ------------------------------------------------------------------------


def _forward(step: CapturedWork) -> Forward:
    """The forward pass: in the part of a step that has most attentions."""
    return max((Forward(part, step.samples) for part in step.work.parts), key=lambda f: len(f.attentions))


def _between_attentions(step: CapturedWork, forward: Forward) -> _Stack | None:
    """A stack of blocks by what lies between one attention and the next; None where that differs, or the graph does
    not read some parameter. Programs that were recorded may read another shape of one than it has."""
    shapes = [step.parameters.get(v.name, v.shape) for v in forward.parameters]
    blocks = [plainly(shapes[i] for i in block) for block in forward.between]
    if sum(map(prod, shapes)) != step.count or not blocks or any(block != blocks[0] for block in blocks):
        return None
    count, every = len(blocks) + 1, plainly(shapes)
    inside = Counter({shape: n * count for shape, n in blocks[0].items()})
    return _Stack(count, blocks[0], every - inside) if inside <= every else None


def _numbered(step: CapturedWork, attentions: int) -> _Stack | str:
    """A stack of blocks by names of parameters, or what was in the way. attentions: in one program."""
    blocks, outside = blocks_of(step.parameters)
    if len(blocks) < 2:
        seen = "what lies between one attention and the next is not equal"
        if attentions < 2:
            seen = "no program of its step has two attentions with weights of their own"
        return f"{seen}, and its parameters repeat in no numbered blocks"
    first, *others = (plainly(block.values()) for block in blocks)
    for i, other in enumerate(others, 1):
        if other != first:
            return f"its blocks are not equal: block {i} has {_unlike(other, first)} than block 0"
    return _Stack(len(blocks), first, plainly(outside.values()))


def _unlike(mine: Counter[Shape], first: Counter[Shape]) -> str:
    more, less = mine - first, first - mine
    return " and ".join(f"{word} {_listed(shapes)}" for word, shapes in (("more", more), ("less", less)) if shapes)


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


# -- candidates -------------------------------------------------------------------------------------------------


def _blocks(seen: AttentionContext, has: Counter[Shape]) -> Iterator[Block]:
    """Blocks around this attention that ask for just these weights."""
    size, hidden = sum(prod(shape) * n for shape, n in has.items()), seen.hidden
    if not hidden or not seen.kv_heads:
        return
    shared = [n for n in range(seen.kv_heads, 0, -1) if seen.heads % n == 0]  # heads of keys may be repeated before
    biases, norms = ("none", "qkv", "all", "unkeyed"), ("rms", "layer")
    for network, kv, bias, norm in product(_networks(hidden, has), shared, biases, norms):
        attention = Attention(
            seen.heads, kv, seen.size, seen.value_size, seen.causal, seen.turned, bias, norms=seen.normed
        )
        block = Block(hidden, attention, network, norm)
        if width := _width(block, size):
            block = _widened(block, width)
            if stores(has, counts.asked_by_block(block)):
                yield block


def _networks(hidden: int, has: Counter[Shape]) -> Iterator[Dense | Experts]:
    """Kinds of networks, of any size: dense ones, and experts with each matrix that could be their router's."""
    for gated, bias in product((True, False), repeat=2):
        yield Dense(1, gated, bias)
    for count in _rows(has, hidden):
        for gated in (True, False):
            yield Experts(count, 1, 1, gated=gated)


def _widened(block: Block, width: int) -> Block:
    return replace(block, network=replace(block.network, size=width))


def _width(block: Block, size: int) -> int:
    """Columns of its network with which a block has so many parameters, of which each column has equally many; 0
    where it never has."""
    least, next_ = (_widened(block, n).parameters for n in (1, 2))
    more, left = divmod(size - least, next_ - least)
    return 0 if left else max(more + 1, 0)


def _rows(shapes: Counter[Shape], hidden: int) -> list[int]:
    """Rows of all matrices that have so many columns, the most first."""
    matrices = [shape for shape in shapes if len(shape) == 2 and hidden in shape]
    return sorted({prod(shape) // hidden for shape in matrices}, reverse=True)


def _models(step: CapturedWork, block: Block, stack: _Stack, seen: AttentionContext) -> Iterator[Model]:
    """Models of these blocks with each embedding and head that tables of such sizes may be. The likeliest norm at an
    end is the one that completes the blocks': after the last where norms precede, else before the first."""
    hidden, rows = block.hidden, _rows(stack.ends, block.hidden)
    known = Model(step.name, hidden, ((stack.count, block),), seen.length, source=step.source)
    norms = sorted(product((False, True), repeat=2), key=lambda at: at == (seen.around, not seen.around))[::-1]
    if step.units == 1:
        patches = sorted({prod(s) // hidden for s in stack.ends if len(s) > 1 and prod(s) % hidden == 0})
        for patch, classes, positions, (first, final) in product(patches, rows, [0, *rows], norms):
            model = replace(known, patch=patch, classes=classes, positions=positions)
            yield replace(model, final_norm=final, embedding_norm=first)
    for extra, places, words in product(_apart(rows), _apart(rows), rows):
        model = replace(known, vocabulary=words, positions=places, types=extra)
        for tied, (first, final), transform in product((False, True), norms, (False, True)):
            yield replace(model, tied=tied, final_norm=final, embedding_norm=first, transform=transform)


def _apart(rows: list[int]) -> list[int]:
    """Rows of a table that there need not be, the fewest first."""
    return [0, *reversed(rows)]
