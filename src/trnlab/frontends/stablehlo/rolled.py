# SPDX-License-Identifier: Apache-2.0
"""Loops that stay loops: rounds whose number is known, read once, as the graph's op `loop`.

What goes round falls into three kinds. Counters depend on nothing but counters: their values in all rounds are
computed first. Sequences are only read, or only written, one step at a time at places that counters say: the
round sees a window of them. All else is carried from round to round. Within the round, what comes from counters is an
array with an entry per round, and ops on it are computed for all rounds at once; where data meets it, the round
reads its entry from that array.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from trnlab.errors import TrnlabError
from trnlab.frontends.stablehlo import mlir
from trnlab.frontends.stablehlo.entries import Array, TracedValue, Update, broken, compute, is_splat, known
from trnlab.frontends.stablehlo.mlir import WIDE
from trnlab.frontends.stablehlo.registry import OpSite, UnsupportedForm
from trnlab.frontends.stablehlo.tracer import Tracer, narrow
from trnlab.graph.infer import infer
from trnlab.graph.ir import Graph, Op, TensorType, Value
from trnlab.graph.loops import Body, LoopInput, LoopWindow, Write
from trnlab.graph.ops import ELEMENTWISE, OPS, REQUIRED
from trnlab.program.strided import row_major

MOST_ROUNDS = 1 << 20  # of a loop that is counted at all
MOST_WORK = 1 << 20  # rounds times ops of one
_LARGEST = 1 << 20  # elements, over all rounds, of what is computed for each round beforehand
_FLOATS = 1 << 12  # the same of floats, which the chip computes as well


class NotRolledError(Exception):
    """This loop, or one of the forms in which it was tried, cannot be read once for all rounds."""


def roll(site: OpSite) -> list[TracedValue] | None:
    """The results of a while as one op of the graph; None where its rounds are not alike, or nobody knows how many
    there are."""
    counted = _count(site, site.operands)
    if counted is None or counted.rounds < 1:
        return None
    carried: frozenset[int] = frozenset()
    while True:
        try:
            made = _Round(site, counted, carried)
        except NotRolledError:
            return None
        if made.rounds * len(made.graph.ops) > MOST_WORK:
            return None
        if not made.conflicts:
            return made.written()
        carried |= made.conflicts


# -- how often -------------------------------------------------------------------------------------------------------


@dataclass
class _Counted:
    """How many rounds there are."""

    rounds: int
    values: dict[int, Array]  # what counters are in each, by place in the state
    last: dict[int, Array]  # after the last


def _count(site: OpSite, state: Sequence[TracedValue]) -> _Counted | None:
    """Go round with the counters alone."""
    condition, block = (region.blocks[0] for region in site.raw.regions)
    body = _Block(block, site.t.functions)
    counters = {i for i, e in enumerate(state) if e.known is not None}
    while True:
        left = {i for i in counters if body.of(i) <= counters and _outer_known(body.outer(i), site)}
        if left == counters:
            break
        counters = left
    if not counters:
        return None
    walker, unknown = site.t.inner("count"), broken(NotKnownError())
    now: dict[int, TracedValue] = {i: state[i] for i in counters}
    found: dict[int, list[Array]] = {i: [] for i in counters}
    for number in range(MOST_ROUNDS):
        given = [now.get(i, unknown) for i in range(len(state))]
        (more,) = walker.block(condition, given, site.around)
        if more.known is None:
            return None
        if not bool(more.known):
            last = {i: np.asarray(now[i].known) for i in counters}
            return _Counted(number, {i: np.stack(v) for i, v in found.items() if v}, last)
        for i in counters:
            found[i].append(np.asarray(now[i].known))
        now = body.walk(walker, given, site.around, counters)
        if any(e.known is None for e in now.values()):
            return None
    return None


class NotKnownError(TrnlabError):
    """A value that only the chip computes, where a counter was expected."""

    def __init__(self) -> None:
        super().__init__("a value that is not known before the program runs")


def _outer_known(values: frozenset[Any], site: OpSite) -> bool:
    """Whether what a result reads from around the loop is known."""
    return all(site.around[v].known is not None for v in values if v in site.around)


class _Block:
    """Which of a block's arguments, and which values around it, each of its results is computed from. Calls are
    looked into: a counter may go round in the same function as data."""

    def __init__(self, block: Any, functions: Mapping[str, Any]) -> None:
        self.block = block
        self.ops = list(block.operations)
        self.returned = list(self.ops.pop().operands)
        self._called: dict[Any, _Block] = {}
        self._arguments: dict[Any, frozenset[int]] = {a: frozenset((i,)) for i, a in enumerate(block.arguments)}
        self._outer: dict[Any, frozenset[Any]] = dict.fromkeys(block.arguments, frozenset())
        self._steps: dict[frozenset[int], list[tuple[Any, frozenset[int]]]] = {}
        for op in self.ops:
            if op.operation.name in ("func.call", "call"):
                callee = functions[mlir.text(op, "callee")].regions[0].blocks[0]
                self._called[op] = _Block(callee, functions)
            for number, result in enumerate(op.results):
                read = self._read(op, number)
                self._arguments[result] = frozenset[int]().union(*(self._arguments.get(v, ()) for v in read))
                self._outer[result] = frozenset[Any]().union(*(self._outer.get(v, (v,)) for v in read))

    def of(self, index: int) -> frozenset[int]:
        """Numbers of the arguments that a result of the block needs."""
        return self._arguments.get(self.returned[index], frozenset())

    def outer(self, index: int) -> frozenset[Any]:
        """Values from around the block that it needs."""
        return self._outer.get(self.returned[index], frozenset((self.returned[index],)))

    def _read(self, op: Any, number: int) -> list[Any]:
        """What result `number` of an op is computed from."""
        called = self._called.get(op)
        return list(_read_by(op)) if called is None else [op.operands[i] for i in sorted(called.of(number))]

    def _steps_for(self, wanted: frozenset[int]) -> list[tuple[Any, frozenset[int]]]:
        """The ops that compute these results of the block, in order, and which of their results are needed."""
        if wanted not in self._steps:
            needed, kept = {self.returned[i] for i in wanted}, []
            for op in reversed(self.ops):
                numbers = frozenset(n for n, r in enumerate(op.results) if r in needed)
                if numbers:
                    needed.update(v for n in numbers for v in self._read(op, n))
                    kept.append((op, numbers))
            self._steps[wanted] = kept[::-1]
        return self._steps[wanted]

    def walk(
        self, walker: Tracer, given: Sequence[TracedValue], around: Mapping[Any, TracedValue], wanted: Iterable[int]
    ) -> dict[int, TracedValue]:
        """Some results of the block, by number, for its arguments."""
        values = {**around, **dict(zip(self.block.arguments, given))}
        for op, numbers in self._steps_for(frozenset(wanted)):
            called = self._called.get(op)
            if called is not None:
                unknown = broken(NotKnownError())
                found = called.walk(walker, [values.get(v, unknown) for v in op.operands], {}, numbers)
                values.update((op.results[n], e) for n, e in found.items())
                continue
            with walker._at(op):
                values.update(zip(op.results, walker._lowered(op, op.operation.name, values)))
        return {i: values[self.returned[i]] for i in wanted}


def _read_by(op: Any) -> Iterator[Any]:
    """What an op reads, its regions included."""
    yield from op.operands
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield from _read_by(inner)


# -- one round -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Seen:
    """A window of a tensor from outside of the round, and its value in the round. source: an argument, or an entry
    of the tracer around."""

    source: TracedValue
    window: LoopWindow
    value: Value


@dataclass
class _RoundTracer(Tracer):
    """Reads the round of a loop."""

    rounds: int = 0
    windows: list[_Seen] = field(default_factory=list)  # what it sees of sequences
    # arguments that are carried, so that no window of them is kept apart
    whole: set[TracedValue] = field(default_factory=set)

    @property
    def in_round(self) -> bool:
        """Whether what is read becomes the round of a loop, which the host cannot interrupt."""
        return True

    def op(self, name: str, *operands: TracedValue, **attrs: Any) -> TracedValue:
        """For all rounds at once where no operand needs data."""
        if any(e.each is not None and e.home is self for e in operands):
            found = self._each(name, operands, attrs)
            if found is not None:
                return found
        return super().op(name, *operands, **attrs)

    def _each(self, name: str, operands: tuple[TracedValue, ...], attrs: dict[str, Any]) -> TracedValue | None:
        if any(e.known is None and (e.each is None or e.home is not self) for e in operands):
            return None
        if OPS[name].kind == ELEMENTWISE and name != "clamp":
            operands = self._spread(operands)
        attrs = {**{k: a.default for k, a in OPS[name].attrs.items() if a.default is not REQUIRED}, **attrs}
        (kind,) = infer(name, [e.type for e in operands], attrs)
        wider = _with_rounds(name, attrs, self.rounds, [e.type for e in operands])
        most = max(kind.size, *(e.type.size for e in operands)) * self.rounds
        if wider is None or most > (_FLOATS if kind.dtype.is_float else _LARGEST):
            return None
        given = [known(self._rounds_of(e), TensorType((self.rounds, *e.shape), e.type.dtype)) for e in operands]
        array = compute(name, given, wider, TensorType((self.rounds, *kind.shape), kind.dtype))
        return TracedValue(kind, each=array, home=self)

    def _rounds_of(self, entry: TracedValue) -> Array:
        if entry.each is not None:
            return entry.each
        assert entry.known is not None
        return np.ascontiguousarray(np.broadcast_to(entry.known, (self.rounds, *entry.shape)))

    def use(self, entry: TracedValue) -> Value:
        """The entry in the round's graph: what is known for each round is a window of an array."""
        if entry.update is not None:
            raise NotRolledError
        if entry.each is None or entry.home is not self:
            return super().use(entry)
        found = self.segment.lifted.get(entry)
        if found is None:
            held = replace(entry, known=entry.each, each=None, home=None)
            array = _narrowed_each(held, entry.type)
            shape = (self.rounds, max(entry.type.size, 1))
            source = known(array.reshape(shape), TensorType(shape, narrow(entry.type).dtype))
            found = self._seen(source, LoopWindow(0, entry.type.size), narrow(entry.type))
            self.segment.lifted[entry] = found
        return found

    def _seen(self, source: TracedValue, window: LoopWindow, kind: TensorType) -> Value:
        if window.step * kind.dtype.itemsize % 2 or window.start * kind.dtype.itemsize % 2:
            raise NotRolledError  # transfers begin at even addresses
        for other in self.windows:
            if other.source is source and other.window == window and other.value.type == kind:
                return other.value
        value = self.b.input(f"w{len(self.windows)}", kind.shape, kind.dtype)
        self.windows.append(_Seen(source, window, value))
        return value

    def window(self, x: TracedValue, starts: Sequence[TracedValue], sizes: Sequence[int]) -> TracedValue | None:
        """A slice whose place moves on with the rounds; None where it does not, or x is computed in the round."""
        if x.known is not None and not is_splat(x.known) and not x.type.dtype.is_float:
            return self._slices(x, starts, sizes)
        if x.known is None and x.home is self and (x.slot is None or x in self.whole):
            return None
        window = self._place(x.shape, starts, sizes)
        kind = TensorType(tuple(sizes), x.type.dtype)
        if window is None or x.error is not None or x.type.dtype in WIDE or not kind.size:
            return None
        if x.known is not None and is_splat(x.known):
            return known(np.broadcast_to(x.known[(0,) * x.known.ndim], kind.shape), kind)
        return self.entry(self._seen(x, window, kind), kind)

    def _slices(self, x: TracedValue, starts: Sequence[TracedValue], sizes: Sequence[int]) -> TracedValue | None:
        """Slices of whole numbers that are known: counters of their own."""
        begins = self._begins(x.shape, starts, sizes)
        if begins is None or prod(sizes) * self.rounds > _LARGEST:
            return None
        parts = [np.asarray(x.known)[tuple(slice(b, b + n) for b, n in zip(at, sizes))] for at in begins.T]
        return TracedValue(TensorType(tuple(sizes), x.type.dtype), each=np.stack(parts), home=self)

    def updated(self, x: TracedValue, update: TracedValue, starts: Sequence[TracedValue]) -> TracedValue | None:
        """A tensor that goes round, of which this round writes a part that moves on; None where it is no such."""
        if x.home is not self or x.slot is None or x in self.whole or x.type.dtype in WIDE or not update.type.size:
            return None
        window = self._place(x.shape, starts, update.shape)
        if window is None or window.step * x.type.dtype.itemsize % 2 or window.start * x.type.dtype.itemsize % 2:
            return None
        return TracedValue(x.type, home=self, update=Update(x, update, window))

    def _begins(self, shape: Sequence[int], starts: Sequence[TracedValue], sizes: Sequence[int]) -> Array | None:
        """Where slices begin, [dimensions, rounds]; None where that is not known, or the same in all rounds."""
        if all(s.known is not None for s in starts):
            return None
        if any(s.known is None and (s.each is None or s.home is not self) for s in starts):
            return None
        rows = [np.clip(self._rounds_of(s).astype(np.int64), 0, n - size) for s, n, size in zip(starts, shape, sizes)]
        return np.stack(rows)

    def _place(self, shape: Sequence[int], starts: Sequence[TracedValue], sizes: Sequence[int]) -> LoopWindow | None:
        begins = self._begins(shape, starts, sizes)
        long = [d for d, n in enumerate(sizes) if n > 1]
        if begins is None or any(
            sizes[d] != shape[d] for d in range(long[0] + 1 if long else len(sizes), len(shape))
        ):
            return None
        strides = np.array(row_major(tuple(shape)), np.int64)
        offsets = strides @ begins
        step = int(offsets[1] - offsets[0]) if len(offsets) > 1 else 0
        if (np.diff(offsets) != step).any():
            return None
        return LoopWindow(int(offsets[0]), step)


def _narrowed_each(entry: TracedValue, kind: TensorType) -> Array:
    """Numbers for each round in a format of the chip. Raises Refused where they do not fit."""
    array = np.asarray(entry.known)
    target = narrow(kind).dtype
    held = array.astype(target.numpy)
    if kind.dtype in WIDE and not kind.dtype.is_float and not (held == array).all():
        raise UnsupportedForm(f"a constant does not fit in the 32 bits of {target.name}", "use smaller numbers")
    return held


def _with_rounds(
    name: str, attrs: Mapping[str, Any], rounds: int, types: Sequence[TensorType]
) -> dict[str, Any] | None:
    """The attributes of an op on arrays that have the rounds as a first dimension; None for an op that is not known
    to be one."""
    attrs = dict(attrs)
    if OPS[name].kind == ELEMENTWISE:
        return attrs if name != "clamp" or all(t.shape == types[1].shape for t in types) else None
    if name == "reshape":
        return {"shape": (rounds, *attrs["shape"])}
    if name == "broadcast_in_dim":
        dims = tuple(d + 1 for d in attrs["broadcast_dimensions"])
        return {"shape": (rounds, *attrs["shape"]), "broadcast_dimensions": (0, *dims)}
    if name == "slice":
        low, high, steps = (attrs[k] for k in ("start_indices", "limit_indices", "strides"))
        return {"start_indices": (0, *low), "limit_indices": (rounds, *high), "strides": (1, *steps)}
    if name == "concatenate":
        return {"dimension": attrs["dimension"] + 1}
    if name == "transpose":
        return {"permutation": (0, *(p + 1 for p in attrs["permutation"]))}
    if name == "reduce":
        return {**attrs, "dimensions": tuple(d + 1 for d in attrs["dimensions"])}
    return None


# -- the op ----------------------------------------------------------------------------------------------------------


class _Round:
    """The round of a loop, and where its inputs and outputs lie. conflicts: places in the state that must be carried
    as a whole after all."""

    def __init__(self, site: OpSite, counted: _Counted, carried: frozenset[int]) -> None:
        self.site, self.counted, self.rounds = site, counted, counted.rounds
        t = self.tracer = _RoundTracer(
            f"{site.t.name}.round",
            site.t.functions,
            site.t,
            site.t.most_ops,
            site.t.ranks,
            site.t.locate,
            place=site.t.place,
            looping=True,
            again=site.t.again,
            rank=site.t.rank,
            rounds=counted.rounds,
        )
        state = site.operands
        self.arguments = [self._argument(i, e.type) for i, e in enumerate(state)]
        t.whole = {self.arguments[i] for i in carried}
        self.results = t.block(site.raw.regions[1].blocks[0], self.arguments, site.around)
        self.moving = [
            i for i, (a, r) in enumerate(zip(self.arguments, self.results)) if a.each is None and r is not a
        ]
        outputs = [t.use(self._output(i)) for i in self.moving]
        if t.segment.watch.checks or any(e.type.dtype in WIDE for e in (self.arguments[i] for i in self.moving)):
            raise NotRolledError
        self.graph = _graph(t, outputs)
        self.read = {v for op in self.graph.ops for v in op.operands} | {*self.graph.outputs}
        self.conflicts = frozenset(i for i in self.moving if self._conflicts(i))

    def _argument(self, index: int, kind: TensorType) -> TracedValue:
        t, values = self.tracer, self.counted.values.get(index)
        if values is not None:
            return TracedValue(kind, each=values, home=t)
        if not kind.size:
            raise NotRolledError
        return t.argument(kind, f"s{index}")

    def _output(self, index: int) -> TracedValue:
        result = self.results[index]
        if result.error is not None:
            raise NotRolledError
        update = result.update
        return update.value if update is not None and update.into is self.arguments[index] else result

    def _is_written(self, index: int) -> bool:
        return self.results[index].update is not None

    def _conflicts(self, index: int) -> bool:
        """Whether the round sees parts of what it carries or writes that are not what the loop began with."""
        argument = self.arguments[index]
        seen = [w for w in self.tracer.windows if w.source is argument and w.value in self.read]
        update = self.results[index].update
        if update is None:
            return bool(seen)
        size = update.value.type.size
        same = all(w.window == update.window and w.value.type.size == size for w in seen)
        return argument.value in self.read or not (same and (not seen or update.window.disjoint(size)))

    def written(self) -> list[TracedValue]:
        """The op, and the results of the loop."""
        outer, operands, reads = self.site.t, list[Value](), list[LoopInput]()
        place = {i: number for number, i in enumerate(self.moving)}
        source: dict[Value, tuple[TracedValue, LoopWindow | None, int | None]] = {}
        for i, argument in enumerate(self.arguments):
            if argument.value is not None:
                carry = place[i] if i in place and not self._is_written(i) else None
                source[argument.value] = self.site.operands[i], None, carry
        for entry, inner in self.tracer.captured.items():
            if inner.slot in self.tracer.segment.slots:
                source[self.tracer.segment.slots[inner.slot]] = entry, None, None
        for seen in self.tracer.windows:
            source[seen.value] = self._outside(seen.source), seen.window, None
        for value in self.graph.inputs:
            entry, window, carry = source[value]
            reads.append(LoopInput(len(operands), window, carry))
            operands.append(outer.use(entry))
        writes = []
        for i in self.moving:
            update = self.results[i].update
            if update is None:
                writes.append(Write())
            else:
                writes.append(Write(update.window, len(operands)))
                operands.append(outer.use(self.site.operands[i]))
        return self._results(Body(self.graph, self.rounds, tuple(reads), tuple(writes)), operands)

    def _outside(self, entry: TracedValue) -> TracedValue:
        """What an argument is before the loop."""
        at = next((i for i, a in enumerate(self.arguments) if a is entry), None)
        return entry if at is None else self.site.operands[at]

    def _results(self, body: Body, operands: Sequence[Value]) -> list[TracedValue]:
        t = self.site.t
        found: Sequence[Value] = ()
        if self.moving:
            with t.b.at(*t.place):
                found = t.b.append("loop", operands, {"body": body}).results
        made = dict(zip(self.moving, found))
        results = []
        for i, (argument, entry) in enumerate(zip(self.arguments, self.site.operands)):
            if argument.each is not None:
                results.append(known(self.counted.last[i], entry.type))
            else:
                results.append(t.entry(made[i], entry.type) if i in made else entry)
        return results


def _graph(tracer: _RoundTracer, outputs: Sequence[Value]) -> Graph:
    """The round's graph, without what no output needs."""
    b = tracer.b
    for number, value in enumerate(outputs):
        b.output(value, f"r{number}")
    graph = b.graph
    needed, kept = set(graph.outputs), list[Op]()
    for op in reversed(graph.ops):
        if any(v in needed for v in op.results):
            needed.update(op.operands)
            kept.append(op)
    graph.ops[:] = kept[::-1]
    graph.inputs = [v for v in graph.inputs if v in needed]
    for i, value in enumerate(graph.inputs):
        value.index = i
    return b.build()
