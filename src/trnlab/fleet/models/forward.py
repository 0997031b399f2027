# SPDX-License-Identifier: Apache-2.0
"""What the graph of a captured step says of its model: its attentions, the parameters that lie before each, and the
points through which all of a forward pass goes. Nothing here reads a name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod

import numpy as np

from trnlab.compiler.rewriting.recognize.masks import KnownValues
from trnlab.estimate.forecast import GraphRuns
from trnlab.graph.ir import Op, Value

_TURNED = ("concatenate", "negate")  # by rotary positions
_NORMS = ("rsqrt", "sqrt")
_LOOKS = ("convert", "reshape", "transpose")  # at the same values


@dataclass(frozen=True)
class AttentionContext:
    """What an attention reads: heads of queries and of keys, their sizes, tokens of a sequence; whether later tokens
    are hidden, and queries turned by their positions, or normed; the width of what queries are projected from, and
    whether that also goes around the attention, as where norms follow what is added up (BERT)."""

    heads: int
    kv_heads: int
    size: int
    value_size: int
    length: int
    causal: bool
    turned: bool
    normed: bool
    hidden: int
    around: bool


@dataclass(frozen=True)
class _Scores:
    """An attention in a graph: what it reads, what makes its result, what may hide some of its scores, and the
    product that makes them where it is written out."""

    q: Value
    k: Value
    v: Value
    op: Op
    masks: tuple[Value, ...]
    product: Op | None = None


class Forward:
    """The forward pass in a part of a step. samples: of its batch."""

    def __init__(self, part: GraphRuns, samples: int) -> None:
        graph = part.graph
        self.parameters = [v for v, kind in zip(graph.inputs, part.kinds) if kind == "parameter"]
        self._loss = None if part.loss is None else graph.outputs[part.loss]
        self._samples, self._known = samples, KnownValues()
        self._tables = {v for v, kind in zip(graph.inputs, part.kinds) if kind == "buffer"}
        needed = set(graph.outputs) if self._loss is None else {self._loss}
        kept = []
        for op in reversed(graph.ops):
            if not needed.isdisjoint(op.results):
                kept.append(op)
                needed.update(op.operands)
        self._ops = kept[::-1]
        self._behind = {v: 1 << i for i, v in enumerate(self.parameters)}  # bits of the parameters behind a value
        self._fed = set(graph.inputs) - set(self.parameters)  # what a batch has a part in
        for op in self._ops:
            bits = 0
            for x in op.operands:
                bits |= self._behind.get(x, 0)
            fed = not self._fed.isdisjoint(op.operands)
            self._behind.update(dict.fromkeys(op.results, bits))
            if fed:
                self._fed.update(op.results)

    # -- attention ------------------------------------------------------------------------------------------------
    @cached_property
    def attentions(self) -> list[AttentionContext]:
        """Each attention of other parameters than those before it: what is made again is not met twice."""
        return [self._seen(scores) for scores in self._apart.values()]

    @property
    def between(self) -> list[list[int]]:
        """Parameters, by their places in `parameters`, that lie before an attention and not before the last one: in a
        stack of equal blocks, those of a block. One list less than there are attentions."""
        return [
            [i for i in range(len(self.parameters)) if (after & ~before) >> i & 1]
            for before, after in pairwise(self._apart)
        ]

    @cached_property
    def _apart(self) -> dict[int, _Scores]:
        """Attentions in order, by the bits of all parameters before them."""
        found: dict[int, _Scores] = {}
        for scores in self._scores():
            found.setdefault(self._behind[scores.op.result], scores)
        return found

    @cached_property
    def _users(self) -> dict[Value, list[Op]]:
        users: dict[Value, list[Op]] = {}
        for op in self._ops:
            for x in dict.fromkeys(op.operands):
                users.setdefault(x, []).append(op)
        return users

    def _scores(self) -> Iterator[_Scores]:
        for op in self._ops:
            if op.name == "trn.attention" and self._trained(op.operands[:3]):
                q, k, v, *masks = op.operands
                yield _Scores(q, k, v, op, tuple(masks))
            elif op.name == "exponential" and (written := self._written(op)) is not None:
                yield written

    def _trained(self, values: Iterable[Value]) -> bool:
        """Whether each is made of a batch and of parameters."""
        return all(v in self._fed and self._behind.get(v) for v in values)

    def _written(self, grown: Op) -> _Scores | None:
        """Attention that is written out around an exponential: a product of queries and keys before it, and one with
        values after it, with whatever lies between them (a mask, dropout)."""
        before, products = self._back(grown.operands[0])
        if len(products) != 1 or not self._of_heads(products[0]):
            return None
        waiting, met = [grown.result], set[Op]()
        closing: list[tuple[Op, Value]] = []
        while waiting:
            x = waiting.pop()
            for op in self._users.get(x, ()):
                if op.name == "dot_general":
                    closing.append((op, x))
                elif op not in met:
                    met.add(op)
                    waiting += op.results
        if not closing:
            return None
        op, x = min(closing, key=lambda pair: self._place[pair[0]])  # later ones are of the backward pass
        others = [y for y in op.operands if y is not x]
        if not others or not self._of_heads(op):
            return None
        masks = {y: None for b in before for y in b.operands if not self._behind.get(y)}
        q, k = products[0].operands
        return _Scores(q, k, others[0], op, tuple(masks), products[0])

    @cached_property
    def _place(self) -> dict[Op, int]:
        return {op: i for i, op in enumerate(self._ops)}

    def _of_heads(self, op: Op) -> bool:
        """Whether this product is one of activations, in groups."""
        return bool(op.attrs["lhs_batching_dimensions"]) and self._trained(op.operands)

    def _back(self, value: Value) -> tuple[list[Op], list[Op]]:
        """What lies between a value and the products behind it, of what parameters have a part in; those products."""
        waiting, seen = [value.op], set[Op]()
        between, products = [], []
        while waiting:
            op = waiting.pop()
            if op is None or op in seen:
                continue
            seen.add(op)
            if op.name == "dot_general":
                products.append(op)
                continue
            between.append(op)
            waiting += [x.op for x in op.operands if self._behind.get(x)]
        return between, products

    def _seen(self, scores: _Scores) -> AttentionContext:
        q, k, v = scores.q, scores.k, scores.v
        if scores.product is None:
            (_, heads, length, size), shared, wide = q.shape, k.shape[1], v.shape[3]
        else:
            size, length = _summed(scores.product), _keys(scores.product)
            each = self._samples * length
            heads, shared = q.type.size // (each * size), k.type.size // (each * size)
            wide = v.type.size // max(each * shared, 1)
        between, products = self._back(q)
        names = {op.name for op in between}
        normed = not names.isdisjoint(_NORMS)
        turned = not names.isdisjoint(_TURNED) or ("subtract" in names and not normed)  # norms about a mean do, too
        projections = [op for op in products if any(self._is_weight(x) for x in op.operands)]
        hidden = max((_summed(op) for op in projections), default=0)
        around = any(self._goes_around(x) for op in projections for x in op.operands if not self._is_weight(x))
        causal = bool(scores.op.attrs.get("causal")) or self._hides_later(scores.masks, length)
        return AttentionContext(heads, shared, size, wide, length, causal, turned, normed, hidden, around)

    def _is_weight(self, x: Value) -> bool:
        """Whether it is made of parameters alone."""
        return bool(self._behind.get(x)) and x not in self._fed

    def _goes_around(self, x: Value) -> bool:
        """Whether something other than products reads what a projection reads."""
        while x.op is not None and x.op.name in _LOOKS:
            (x,) = x.op.operands
        waiting = [x]
        while waiting:
            for op in self._users.get(waiting.pop(), ()):
                if op.name in _LOOKS:
                    waiting += op.results
                elif op.name != "dot_general":
                    return True
        return False

    def _hides_later(self, masks: Iterable[Value], length: int) -> bool:
        """Whether some mask hides the tokens that follow each: a comparison of places says so, or a square table that
        is the same in each step, as older scripts keep it."""
        waiting, met = list(masks), set[Value]()
        while waiting:
            x = waiting.pop()
            if x in met:
                continue
            met.add(x)
            if x in self._tables and len(x.shape) > 1 and x.shape[-1] == x.shape[-2] >= length:
                return True
            if x.op is None:
                continue
            if x.op.name == "compare" and x.shape[-2:] == (length, length) and self._is_triangle(x, length):
                return True
            waiting += x.op.operands
        return False

    def _is_triangle(self, x: Value, length: int) -> bool:
        found = self._known.get(x)
        if found is None:
            return False
        first, lower = found.reshape(-1, length, length)[0].astype(bool), np.tri(length, dtype=bool)
        return bool(np.array_equal(first, lower) or np.array_equal(first, ~lower))

    # -- points through which everything goes ---------------------------------------------------------------------
    @cached_property
    def rounds(self) -> int:
        """Parts of the pass around which its input goes (residual blocks) and that have a matrix or a convolution.
        0 where less than half of the parameters are in such, or half of them in one, and where the loss is not
        known."""
        if self._loss is None:
            return 0
        types = [v.type for v in self.parameters]
        parts = [[t for i, t in enumerate(types) if bits >> i & 1] for bits in self._parted()]
        sizes = [sum(t.size for t in part) for part in parts if any(t.rank > 1 for t in part)]
        half = sum(t.size for t in types) / 2
        return len(sizes) if sum(sizes) > half > max(sizes) else 0

    def _parted(self) -> Iterator[int]:
        """Bits of the parameters that are met between neighbouring points through which all goes that is made of a
        batch and of parameters, where what the first point has is read by several ops."""
        reads = Counter(x for op in self._ops for x in dict.fromkeys(op.operands) if self._trained([x]))
        left, live, known, forks = dict(reads), set[Value](), 0, False
        for op in self._ops:
            if not self._trained([op.result]):
                continue
            for x in dict.fromkeys(op.operands):
                if x in live:
                    left[x] -= 1
                    if not left[x]:
                        live.discard(x)
            live.update(x for x in op.results if reads[x])
            if live <= {op.result}:
                bits = self._behind[op.result]
                if forks:
                    yield bits & ~known
                known, forks = bits, reads[op.result] > 1


def _summed(op: Op) -> int:
    """Columns that a product sums over."""
    return prod(op.operands[0].shape[d] for d in op.attrs["lhs_contracting_dimensions"])


def _keys(op: Op) -> int:
    """Keys of each group, of a product of queries and keys: what of its second operand it neither sums over nor has
    as a batch."""
    used = {*op.attrs["rhs_batching_dimensions"], *op.attrs["rhs_contracting_dimensions"]}
    return prod(n for d, n in enumerate(op.operands[1].shape) if d not in used)
