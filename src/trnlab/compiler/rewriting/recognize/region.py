# SPDX-License-Identifier: Apache-2.0
"""The values around one product of queries and keys: which of them are scores, probabilities or their gradients, and
which products take them in or out.

Letters: N axes that number pairs of a query head and a key head (batch, key heads), T axes of queries, S of keys, D
of heads.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from trnlab.compiler.rewriting.recognize.axes import Dim, Dims, flat, fresh, moved, moved_back, unify
from trnlab.compiler.rewriting.recognize.facts import Fact, Highest, Scores, Terms, follow, summed
from trnlab.graph.ir import Op, Value
from trnlab.graph.ops import ELEMENTWISE, OPS

_MOVES = ("reshape", "transpose")
_SIDES = ("lhs", "rhs")


@dataclass(frozen=True)
class RegionProduct:
    """A product of something within attention (`inner`, operand `side`) with `other`."""

    op: Op
    side: int

    @property
    def inner(self) -> Value:
        """The operand within."""
        return self.op.operands[self.side]

    @property
    def other(self) -> Value:
        """The other operand."""
        return self.op.operands[1 - self.side]

    def dims(self, kind: str, side: int) -> tuple[int, ...]:
        """Numbers of the batching or contracting dimensions of an operand."""
        return tuple(self.op.attrs[f"{_SIDES[side]}_{kind}_dimensions"])


@dataclass(eq=False)
class Context:
    """A graph's readers and the places of its ops."""

    users: Mapping[Value, Sequence[Op]]
    place: Mapping[Op, int]


@dataclass(eq=False)
class AttentionRegion:
    """All that follows from one product. Roles: "q", "k", "v", and "dout", of values moved or not."""

    product: Op
    context: Context
    facts: dict[Value, tuple[Fact, Dims]] = field(default_factory=dict)
    roles: dict[str, dict[Value, Dims]] = field(default_factory=dict)
    keys: Dim = ()
    pairs: Dim = ()
    queries: Dim = ()
    depth: Dim = ()
    out: RegionProduct | None = None
    into: RegionProduct | None = None  # dout and v
    others: list[RegionProduct] = field(default_factory=list)
    sums: list[Op] = field(default_factory=list)  # over anything but keys
    _sides: tuple[Dim, Dim] = ((), ())
    _operands: list[Dims] = field(default_factory=list)
    _waiting: list[tuple[int, Op]] = field(default_factory=list)
    _queued: set[Op] = field(default_factory=set)

    def explore(self) -> None:
        """Follow the product through the graph."""
        result = tuple(fresh(n) for n in self.product.result.shape)
        self._name_operands(result)
        self._know(self.product.result, Scores(()), result)
        while self._waiting:
            self._visit(heapq.heappop(self._waiting)[1])

    def _name_operands(self, result: Dims) -> None:
        """Axes of pairs, of what only one operand has, and of heads; the operands in terms of them."""
        op = self.product
        batch, *own = _free(op)
        ends = len(batch), len(batch) + len(own[0])
        parts = result[: ends[0]], result[ends[0] : ends[1]], result[ends[1] :]
        contracted = tuple(fresh(op.operands[0].shape[d]) for d in op.attrs["lhs_contracting_dimensions"])
        self.depth, self.pairs = _joined(contracted), _joined(parts[0])
        self._sides = _joined(parts[1]), _joined(parts[2])
        self._operands = []
        for side, free in enumerate(own):
            dims: list[Dim] = [()] * len(op.operands[side].shape)
            numbers = (
                *RegionProduct(op, side).dims("batching", side),
                *RegionProduct(op, side).dims("contracting", side),
                *free,
            )
            for d, dim in zip(numbers, (*parts[0], *contracted, *parts[1 + side])):
                dims[d] = dim
            self._operands.append(tuple(dims))

    # -- bookkeeping -------------------------------------------------------------------------------------------------
    def _know(self, value: Value, fact: Fact | None, dims: Dims | None) -> None:
        if fact is None or dims is None or value in self.facts:
            return
        self.facts[value] = fact, dims
        self._wait(self.context.users.get(value, ()))

    def _wait(self, ops: Iterable[Op]) -> None:
        for op in ops:
            if op not in self._queued:
                self._queued.add(op)
                heapq.heappush(self._waiting, (self.context.place[op], op))

    def _take(self, role: str, value: Value, dims: Dims) -> None:
        """All forms of a value that moves make, up to where it comes from."""
        found = self.roles.setdefault(role, {})
        pending = [(value, dims)]
        while pending:
            value, dims = pending.pop()
            if value in found:
                continue
            found[value] = dims
            if value.op is not None and value.op.name in _MOVES:
                back = moved_back(value.op, dims)
                if back is not None:
                    pending.append((value.op.operands[0], back))
            for op in self.context.users.get(value, ()):
                on = moved(op, dims) if op.name in _MOVES else None
                if on is not None:
                    pending.append((op.result, on))

    # -- ops ---------------------------------------------------------------------------------------------------------
    def _visit(self, op: Op) -> None:
        if op.name == "dot_general":
            self._meet(op)
        elif op.name in (*_MOVES, "broadcast_in_dim"):
            fact, dims = self.facts[op.operands[0]]
            self._know(op.result, fact, moved(op, dims) if op.name in _MOVES else _repeated(op, dims))
        elif op.name == "reduce":
            self._reduce(op)
        elif OPS[op.name].kind == ELEMENTWISE:
            self._elementwise(op)

    def _elementwise(self, op: Op) -> None:
        facts = [self.facts[v][0] if v in self.facts else None for v in op.operands]
        known = [self.facts[v][1] for v in op.operands if v in self.facts]
        if not all(unify(known[0], other) for other in known[1:]):
            return
        dims = [known[0] if v in self.facts else None for v in op.operands]
        self._know(op.result, follow(op, facts, dims), known[0])

    def _reduce(self, op: Op) -> None:
        fact, dims = self.facts[op.operands[0]]
        along = flat(a for d in op.attrs["dimensions"] for a in dims[d])
        left = tuple(dim for d, dim in enumerate(dims) if d not in op.attrs["dimensions"])
        if op.attrs["kind"] == "maximum" and isinstance(fact, Scores) and self._is_keys(along):
            self._know(op.result, Highest(fact.steps), left)
        elif op.attrs["kind"] == "add" and isinstance(fact, Terms) and self._is_keys(along):
            self._know(op.result, summed(fact), left)
        elif op.attrs["kind"] == "add" and isinstance(fact, Terms) and not {*along} & {*flat(self.keys)}:
            self.sums.append(op)

    def _is_keys(self, axes: Dim) -> bool:
        """Whether these are all axes of keys; the first time, of one of the two operands."""
        if not self.keys and axes:
            for side in (0, 1):
                if set(axes) == set(flat(self._sides[side])):
                    self.keys, self.queries = self._sides[side], self._sides[1 - side]
                    names = ("k", "q") if side == 0 else ("q", "k")
                    for role, value, dims in zip(names, self.product.operands, self._operands):
                        self._take(role, value, dims)
        return bool(axes) and len(axes) == len(set(axes)) and set(axes) == set(flat(self.keys))

    def _meet(self, op: Op) -> None:
        """A product of probabilities and values, of an incoming gradient and values, or of a gradient of scores."""
        values = self.roles.get("v", {})
        for side in (0, 1):
            meeting = RegionProduct(op, side)
            if meeting.inner in self.facts:
                if self.out is None and self._is_forward(meeting):
                    self._take_values(meeting)
                else:
                    self.others.append(meeting)
            elif meeting.inner in values and self._is_gradient(meeting, values[meeting.inner]):
                self._take_gradient(meeting, values[meeting.inner])

    def _is_forward(self, meeting: RegionProduct) -> bool:
        fact, dims = self.facts[meeting.inner]
        contracted = flat(a for d in meeting.dims("contracting", meeting.side) for a in dims[d])
        batch = flat(a for d in meeting.dims("batching", meeting.side) for a in dims[d])
        return isinstance(fact, Terms) and self._is_keys(contracted) and set(batch) == set(flat(self.pairs))

    def _take_values(self, meeting: RegionProduct) -> None:
        dims = self.facts[meeting.inner][1]
        own: list[Dim] = [fresh(n) for n in meeting.other.shape]
        for kind in ("batching", "contracting"):
            for mine, theirs in zip(meeting.dims(kind, meeting.side), meeting.dims(kind, 1 - meeting.side)):
                own[theirs] = dims[mine]
        self.out = meeting
        self._take("v", meeting.other, tuple(own))
        for value in self.roles["v"]:
            products = (op for op in self.context.users.get(value, ()) if op.name == "dot_general")
            self._wait(op for op in products if op is not meeting.op)

    def value_depth(self) -> Dim:
        """Axes of a value's head."""
        dims = next(iter(self.roles["v"].values()))
        outer = {*flat(self.pairs), *flat(self.keys)}
        return tuple(axis for axis in flat(a for dim in dims for a in dim) if axis not in outer)

    def _is_gradient(self, meeting: RegionProduct, dims: Dims) -> bool:
        contracted = flat(a for d in meeting.dims("contracting", meeting.side) for a in dims[d])
        batch = flat(a for d in meeting.dims("batching", meeting.side) for a in dims[d])
        return set(contracted) == set(self.value_depth()) and set(batch) == set(flat(self.pairs))

    def _take_gradient(self, meeting: RegionProduct, dims: Dims) -> None:
        """The gradient by probabilities: what stands for queries there is found where it meets probabilities."""
        own: list[Dim] = [fresh(n, free=True) for n in meeting.other.shape]
        for kind in ("batching", "contracting"):
            for mine, theirs in zip(meeting.dims(kind, meeting.side), meeting.dims(kind, 1 - meeting.side)):
                own[theirs] = dims[mine]
        _, left, right = _free(meeting.op)
        sides = [(own, left), (dims, right)] if meeting.side else [(dims, left), (own, right)]
        result = [own[d] for d in meeting.dims("batching", 1 - meeting.side)]
        result += [source[d] for source, free in sides for d in free]
        assert self.out is not None
        steps = self.facts[self.out.inner][0].steps
        if self.into is None:
            self.into = meeting
            self._take("dout", meeting.other, tuple(own))
            self._know(meeting.op.result, Terms(steps, {(0, 0, 1, 0): 1.0}, meeting.op), tuple(result))

    # -- what it comes to -------------------------------------------------------------------------------------------
    def escapes(self, ends: set[Op], outputs: set[Value]) -> bool:
        """Whether a value within is read by anything but the ops `ends`, other values within, or what nobody
        reads."""
        pending, seen = [self.product.result], set[Value]()
        while pending:
            value = pending.pop()
            if value in seen:
                continue
            seen.add(value)
            if value in outputs or (value not in self.facts and self.context.users.get(value)):
                return True
            pending.extend(v for op in self.context.users.get(value, ()) if op not in ends for v in op.results)
        return False


def _joined(dims: Dims) -> Dim:
    return flat(axis for dim in dims for axis in dim)


def _free(op: Op) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Batching dimensions of the lhs, then the dimensions of both operands that the result has besides."""
    found = []
    for side, operand in zip(_SIDES, op.operands):
        used = {*op.attrs[f"{side}_batching_dimensions"], *op.attrs[f"{side}_contracting_dimensions"]}
        found.append(tuple(d for d in range(len(operand.shape)) if d not in used))
    return tuple(op.attrs["lhs_batching_dimensions"]), found[0], found[1]


def _repeated(op: Op, dims: Dims) -> Dims:
    """Dimensions of a broadcast's result: free where it repeats."""
    found = [fresh(n, free=True) for n in op.result.shape]
    for source, d in enumerate(op.attrs["broadcast_dimensions"]):
        if op.operands[0].shape[source] > 1:
            found[d] = dims[source]
    return tuple(found)
