# SPDX-License-Identifier: Apache-2.0
"""Layer norm and RMS norm with their gradients, in one form, whoever wrote them.

From each 1 / sqrt(variance + eps) of rows, the values that follow are read as terms (`row_terms`) in r, that number;
d, the distances from the mean; m, the mean; and whatever comes from elsewhere. With n = d r, three of them are known
again, each perhaps with another value added:

    n, n times another value           the result, and the products whose sums are the weight's gradient
    r g - r avg(g) - r n avg(g n)      the gradient, for any product g

They are written as PyTorch's operators are. An RMS norm has no mean, and nothing is subtracted for it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from trnlab.compiler.rewriting.recognize.row_terms import (
    Factors,
    Term,
    Terms,
    Total,
    inverse,
    joined,
    plus,
    summed,
    symbol,
    times,
    values_of,
)
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.passes.dead import remove_dead_ops
from trnlab.graph.passes.rewrite import made_by, splat
from trnlab.numerics.dtypes import float32

R, D, M = "r", "d", "m"
_TOLERANCE = 1e-5  # of coefficients, which are quotients of constants in float32
_D: Factors = frozenset({(D, 1)})
_R: Factors = frozenset({(R, 1)})


@dataclass(frozen=True, eq=False)
class Norm:
    """One normalisation: x, d and, unless it is an RMS norm, m, of which r is 1 / sqrt(variance + eps).

    cols: elements of a row.
    """

    x: Value
    centred: Value
    mean: Value | None
    root: Op
    cols: int

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self.x.type.size // self.cols


@dataclass(frozen=True)
class Scaled:
    """factor * n * other, + rest."""

    factor: float
    other: Value | None
    rest: tuple[Value, float] | None


@dataclass(frozen=True)
class Gradient:
    """factor * r (g - avg(g) - n avg(g n) beside) + rest, g the product of `values`; beside: numbers of rows."""

    factor: float
    values: tuple[Value, ...]
    beside: tuple[Value, ...]
    rest: tuple[Value, float] | None


def recognize_normalizations(graph: Graph) -> bool:
    """Write normalisations and their gradients in one form; whether there were any."""
    place = {op: i for i, op in enumerate(graph.ops)}
    users = graph.users()
    found: dict[Op, tuple[_Region, Scaled | Gradient]] = {}
    for op in graph.ops:
        norm = norm_of(op) if op.name == "rsqrt" else None
        if norm is not None:
            region = _Region(norm, users, place)
            for end, written in region.ends().items():
                found.setdefault(end, (region, written))
    if found:
        _replace(graph, found)
        remove_dead_ops(graph)
    return bool(found)


# -- finding ---------------------------------------------------------------------------------------------------------


def norm_of(root: Op) -> Norm | None:
    """What a reciprocal root belongs to, if it is of a variance of rows or of a mean of squares."""
    if root.result.dtype is not float32:
        return None
    variance = root.operands[0]
    eps = made_by(base(variance), "add")
    if eps is not None:
        variance = next((v for v, e in (eps.operands, eps.operands[::-1]) if splat(e) is not None), variance)
    positive = made_by(base(variance), "maximum")
    if positive is not None:
        variance = next((v for v, z in (positive.operands, positive.operands[::-1]) if splat(z) == 0), variance)
    return _of_distances(root, variance) or _of_squares(root, variance)


def _of_distances(root: Op, variance: Value) -> Norm | None:
    """avg((x - avg(x))^2), or avg(x^2)."""
    squares = _average(variance)
    x = _squared(squares[0]) if squares is not None else None
    if squares is None or x is None or x.type.size // squares[1] != root.result.type.size:
        return None
    apart = made_by(x, "subtract")
    mean = _per_row(apart.operands[1], squares[1]) if apart is not None else None
    average = _average(mean) if mean is not None else None
    if apart is not None and average is not None and average == (base(apart.operands[0]), squares[1]):
        return Norm(apart.operands[0], x, mean, root, squares[1])
    return Norm(x, x, None, root, squares[1])


def _of_squares(root: Op, variance: Value) -> Norm | None:
    """avg(x^2) - avg(x)^2."""
    difference = made_by(base(variance), "subtract")
    squares = _average(difference.operands[0]) if difference is not None else None
    x = _squared(squares[0]) if squares is not None else None
    mean = _squared(difference.operands[1]) if difference is not None else None
    average = _average(mean) if mean is not None else None
    if x is None or squares is None or average != (base(x), squares[1]):
        return None
    return Norm(x, x, mean, root, squares[1]) if x.type.size // squares[1] == root.result.type.size else None


def base(value: Value) -> Value:
    """The value whose elements, in their order, a value has in another shape."""
    while (moved := made_by(value, "reshape")) is not None:
        value = moved.operands[0]
    return value


def _squared(value: Value) -> Value | None:
    square = made_by(base(value), "multiply")
    return square.operands[0] if square is not None and square.operands[0] is square.operands[1] else None


def _average(value: Value) -> tuple[Value, int] | None:
    """(x, elements of a row) where a value is the average of x along rows; x without its last reshapes."""
    scaled = base(value).op
    number = splat(scaled.operands[1]) if scaled is not None and scaled.name in ("multiply", "divide") else None
    if scaled is None or not number:
        return None
    total = made_by(base(scaled.operands[0]), "reduce")
    count = _count(total) if total is not None else None
    factor = number if scaled.name == "multiply" else 1 / number
    if total is None or count is None or not math.isclose(factor * count, 1.0, rel_tol=2**-20):
        return None
    return base(total.operands[0]), count


def _count(total: Op) -> int | None:
    """Elements of a row, of a sum in float32 along rows."""
    shape, dims = total.operands[0].shape, tuple(sorted(total.attrs["dimensions"]))
    if total.attrs["kind"] != "add" or total.result.dtype is not float32 or not dims:
        return None
    return prod(shape[d] for d in dims) if dims == tuple(range(len(shape) - len(dims), len(shape))) else None


def _per_row(value: Value, cols: int) -> Value | None:
    """What is repeated along rows of `cols` elements."""
    repeated = made_by(base(value), "broadcast_in_dim")
    if repeated is None:
        return None
    (source,) = repeated.operands
    shape, into = repeated.result.shape, repeated.attrs["broadcast_dimensions"]
    outer = _outer(shape, cols)
    kept = [(d, n) for d, n in zip(into, source.shape) if n > 1]
    same = all(outer is not None and d < outer and shape[d] == n for d, n in kept)
    ordered = [d for d, _ in kept] == sorted(d for d, _ in kept)
    whole = source.type.size * cols == repeated.result.type.size
    return source if same and ordered and whole else None


def _outer(shape: tuple[int, ...], cols: int) -> int | None:
    """How many dimensions number rows of `cols` elements; None where rows are not whole dimensions."""
    outer, size = len(shape), 1
    while size < cols and outer:
        outer -= 1
        size *= shape[outer]
    return outer if size == cols else None


# -- following -------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Region:
    """All that follows from one normalisation, as terms. A value is in `facts` with whether it is full."""

    norm: Norm
    users: Mapping[Value, Sequence[Op]]
    place: Mapping[Op, int]
    facts: dict[Value, tuple[Terms, bool]] = field(default_factory=dict)
    _waiting: list[tuple[int, Op]] = field(default_factory=list)
    _queued: set[Op] = field(default_factory=set)
    _bare: set[Value] = field(default_factory=set)  # x by itself, in its shapes

    def ends(self) -> dict[Op, Scaled | Gradient]:
        """What is to be written, by the op that makes it now."""
        self._begin()
        while self._waiting:
            op = heapq.heappop(self._waiting)[1]
            if op.result not in self.facts and op.result.dtype is float32:
                self._visit(op)
        found: dict[Op, Scaled | Gradient] = {}
        for value, (terms, full) in self.facts.items():
            if full and value.op is not None and value.op.name in ("add", "subtract", "multiply", "negate", "divide"):
                written = self._scaled(terms) or self._gradient(terms)
                if written is not None and not (written.rest is not None and _has_rest(value.op, found)):
                    found[value.op] = written
        return found

    def _begin(self) -> None:
        norm = self.norm
        root = base(norm.root.operands[0])
        self._know(norm.root.result, symbol(R, full=False), full=False)
        self._know(root, {Term(frozenset({(R, -2)})): 1.0}, full=False)
        d = symbol(D, full=True)
        x = base(norm.x)
        if norm.mean is None:
            self._know(x, d, full=True)
        else:
            self._know(base(norm.mean), symbol(M, full=False), full=False)
            both = plus(d, symbol(M, full=False))
            assert both is not None
            self._know(x, both, full=True)
        self._bare.add(x)

    def _know(self, value: Value, terms: Terms | None, *, full: bool) -> None:
        if terms is not None and value not in self.facts:
            self.facts[value] = terms, full
            for op in self.users.get(value, ()):
                if op not in self._queued and len(op.results) == 1:
                    self._queued.add(op)
                    heapq.heappush(self._waiting, (self.place[op], op))

    def _visit(self, op: Op) -> None:
        first = op.operands[0]
        if op.name == "reshape":
            terms, full = self.facts[first]
            if not full or _outer(op.result.shape, self.norm.cols) is not None:
                self._know(op.result, terms, full=full)
                self._bare |= {op.result} if first in self._bare else set()
        elif op.name == "broadcast_in_dim":
            terms, full = self.facts[first]
            if not full and _per_row(op.result, self.norm.cols) is first:
                self._know(op.result, terms, full=True)
        elif op.name == "reduce":
            terms, full = self.facts[first]
            if full and first not in self._bare and _count(op) == self.norm.cols:
                vanishes = _D if self.norm.mean is not None else frozenset()
                self._know(op.result, summed(terms, self.norm.cols, vanishes), full=False)
        elif op.name in ("negate", "add", "subtract", "multiply", "divide"):
            self._combine(op)

    def _combine(self, op: Op) -> None:
        kinds = {self.facts[v][1] for v in op.operands if v in self.facts}
        alone = [v for v in op.operands if v in self.facts and v not in self._bare]
        if len(kinds) > 1 or (op.name in ("add", "subtract") and not alone):
            return
        full = kinds.pop()
        read = [self._read(v, full=full) for v in op.operands]
        if op.name == "negate":
            terms = plus({}, read[0], -1.0)
        elif op.name in ("add", "subtract"):
            terms = plus(read[0], read[1], 1.0 if op.name == "add" else -1.0)
        else:
            other = inverse(read[1]) if op.name == "divide" else read[1]
            terms = times(read[0], other) if other is not None else None
        self._know(op.result, terms, full=full)

    def _read(self, value: Value, *, full: bool) -> Terms:
        """What a value is, or that it is itself: a number, numbers of rows, or elements."""
        if value in self.facts:
            return self.facts[value][0]
        number = splat(value)
        if number is not None and math.isfinite(number):
            return {Term(): float(number)} if number else {}
        row = _per_row(value, self.norm.cols) if full else value
        return self._from_elsewhere(value) if row is None else self._of_rows(row)

    def _of_rows(self, row: Value) -> Terms:
        average, total = _average(row), made_by(base(row), "reduce")
        if average is not None and average[1] == self.norm.cols:
            return {Term(_total(average[0])): 1 / self.norm.cols}
        if total is not None and _count(total) == self.norm.cols:
            return {Term(_total(base(total.operands[0]))): 1.0}
        return symbol(base(row), full=False)

    def _from_elsewhere(self, value: Value) -> Terms:
        """Itself, or its distance from the average of its row, as PyTorch's gradient has it; a sign by itself."""
        negative = made_by(base(value), "negate")
        if negative is not None:
            return {term: -factor for term, factor in self._from_elsewhere(negative.operands[0]).items()}
        apart = made_by(base(value), "subtract")
        row = _per_row(apart.operands[1], self.norm.cols) if apart is not None else None
        if apart is not None and row is not None and _average(row) == (g := base(apart.operands[0]), self.norm.cols):
            return {Term(full=frozenset({(g, 1)})): 1.0, Term(_total(g)): -1 / self.norm.cols}
        return symbol(base(value), full=True)

    # -- what it comes to -------------------------------------------------------------------------------------------
    def _scaled(self, terms: Terms) -> Scaled | None:
        split = _split(terms)
        if split is None or len(split[1]) != 1:
            return None
        ((term, factor),) = split[1].items()
        others = values_of(term.full - _D)
        if term.row != _R or not term.full >= _D or others is None or len(others) > 1:
            return None
        return Scaled(factor, others[0] if others else None, split[0])

    def _gradient(self, terms: Terms) -> Gradient | None:
        split = _split(terms)
        if split is None:
            return None
        rest, own = split
        for term in own:
            total = next((s for s, _ in term.row if isinstance(s, Total) and s.of >= _D), None)
            if total is None or term.full != _D:
                continue
            g = total.of - _D
            values, beside = values_of(g), values_of(term.row - {(total, 1), (R, 3)})
            factor = own.get(Term(_R, g), 0.0)
            if values and beside is not None and factor and self._is_gradient(own, term, g, factor):
                place = {v: -1 if v.op is None else self.place[v.op] for v in values}
                return Gradient(factor, tuple(sorted(values, key=place.__getitem__)), tuple(beside), rest)
        return None

    def _is_gradient(self, own: Terms, last: Term, g: Factors, factor: float) -> bool:
        """Whether terms are factor * r (g - avg(g) - n avg(g n)), the last of these with more numbers of rows."""
        total = joined(g, _D)
        wanted = {Term(_R, g): factor, last: -factor / self.norm.cols}
        if self.norm.mean is not None:
            wanted[Term(joined(_R, frozenset({(Total(g), 1)})))] = -factor / self.norm.cols
        cubed = {(R, 3), (Total(total), 1)} <= last.row
        return (
            cubed
            and own.keys() == wanted.keys()
            and all(math.isclose(own[t], wanted[t], rel_tol=_TOLERANCE) for t in own)
        )


def _has_rest(op: Op, found: Mapping[Op, Scaled | Gradient]) -> bool:
    """Whether an op reads what is written with something added to it.

    Its result is left to follow from that sum: as c * rest + c * own, what the sum cancels would leave the rounding
    of both products, and the norm would be computed twice where the sum is read too.
    """
    ends = (found.get(end) for v in op.operands if (end := base(v).op) is not None)
    return any(end is not None and end.rest is not None for end in ends)


def _total(value: Value) -> Factors:
    """The sum along rows of a value from elsewhere."""
    return frozenset({(Total(frozenset({(value, 1)})), 1)})


def _split(terms: Terms) -> tuple[tuple[Value, float] | None, Terms] | None:
    """A value that is added, with its factor, and the other terms; None where more than a value is added."""
    added = {t: f for t, f in terms.items() if not t.row and not t.full >= _D}
    own = {t: f for t, f in terms.items() if t not in added}
    if not added:
        return None, own
    values = values_of(next(iter(added)).full)
    if len(added) > 1 or values is None or len(values) != 1:
        return None
    return (values[0], next(iter(added.values()))), own


# -- writing ---------------------------------------------------------------------------------------------------------


def _replace(graph: Graph, found: Mapping[Op, tuple[_Region, Scaled | Gradient]]) -> None:
    b, now = GraphBuilder(graph.name), dict[Value, Value]()
    writers: dict[_Region, _Writer] = {}
    for op in graph.ops:
        op.operands = tuple(now.get(v, v) for v in op.operands)
        if op in found:
            b.loc, b.origin = op.loc, op.origin
            region, what = found[op]
            writer = writers.setdefault(region, _Writer(b, region.norm, now))
            now[op.result] = writer.write(what, op.result.shape)
        else:
            b.graph.ops.append(op)
    graph.ops, graph.outputs = b.graph.ops, [now.get(v, v) for v in graph.outputs]


@dataclass(eq=False)
class _Writer:
    """Writes what one normalisation comes to. now: what replaces values that are gone."""

    b: GraphBuilder
    norm: Norm
    now: dict[Value, Value]
    _normalized: Value | None = None

    def write(self, what: Scaled | Gradient, shape: tuple[int, ...]) -> Value:
        """In a shape."""
        own = self._scaled(what, shape) if isinstance(what, Scaled) else self._gradient(what, shape)
        if what.factor != 1:
            own = self.b.multiply(own, what.factor)
        if what.rest is None:
            return own
        value, factor = what.rest
        rest = self._in(value, shape)
        return self.b.add(rest if factor == 1 else self.b.multiply(rest, factor), own)

    def _in(self, value: Value, shape: tuple[int, ...]) -> Value:
        return self.b.reshape(self.now.get(value, value), shape)

    def _per_row(self, value: Value, shape: tuple[int, ...]) -> Value:
        outer = _outer(shape, self.norm.cols)
        return self._in(value, (*shape[:outer], *(1 for _ in shape[outer:])))

    def _n(self, shape: tuple[int, ...]) -> Value:
        """The distance from the mean by r: made once, where it is first read."""
        if self._normalized is None:
            d = self._in(self.norm.centred, shape)
            if self.norm.mean is not None and self.norm.centred is self.norm.x:
                d = self.b.subtract(d, self._per_row(self.norm.mean, shape))
            self._normalized = self.b.multiply(d, self._per_row(self.norm.root.result, shape))
        return self.b.reshape(self._normalized, shape)

    def _scaled(self, what: Scaled, shape: tuple[int, ...]) -> Value:
        n = self._n(shape)
        if what.other is None:
            return n
        other = self._in(what.other, shape)
        return self.b.multiply(n, other) if made_by(base(other), "broadcast_in_dim") else self.b.multiply(other, n)

    def _gradient(self, what: Gradient, shape: tuple[int, ...]) -> Value:
        b, n = self.b, self._n(shape)
        dims = tuple(range(_outer(shape, self.norm.cols) or 0, len(shape)))
        g, *others = (self._in(v, shape) for v in what.values)
        for other in others:
            g = b.multiply(g, other)
        along = self._average(b.multiply(g, n), dims)
        for row in what.beside:
            along = b.multiply(along, self._per_row(row, shape))
        root = self._per_row(self.norm.root.result, shape)
        if self.norm.mean is None:
            return b.multiply(root, b.subtract(g, b.multiply(self._by_halves(root, shape), along)))
        return b.multiply(root, b.subtract(b.subtract(g, self._average(g, dims)), b.multiply(n, along)))

    def _by_halves(self, root: Value, shape: tuple[int, ...]) -> Value:
        """n as 2 x (r / 2). The gradient of a square has 2 x, which may be infinite where n is zero: that is NaN."""
        doubled = self.b.multiply(self._in(self.norm.centred, shape), 2.0)
        return self.b.multiply(doubled, self.b.multiply(root, 0.5))

    def _average(self, x: Value, dims: tuple[int, ...]) -> Value:
        return self.b.divide(self.b.reduce(x, dims, keepdims=True), float(self.norm.cols))
