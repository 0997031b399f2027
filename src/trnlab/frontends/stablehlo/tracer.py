# SPDX-License-Identifier: Apache-2.0
"""Reads a module by walking through it, as an interpreter would, and writes down what is not known yet.

Calls are followed, loops whose condition is known go round, branches that depend on data are both written down, and
their results selected. See `entries` for what is known, `program` for what comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from trnlab.errors import GraphError, Location, TrnlabError, UnsupportedOpError
from trnlab.frontends.stablehlo import mlir, wide
from trnlab.frontends.stablehlo.entries import (
    Array,
    ConstantOrigin,
    TracedValue,
    broken,
    compute,
    is_splat,
    known,
    worth_computing,
)
from trnlab.frontends.stablehlo.mlir import FLOAT64, UINT64, WIDE
from trnlab.frontends.stablehlo.program import GraphRun, SegmentedProgram, WhileLoop
from trnlab.frontends.stablehlo.registry import LOWERINGS, OpSite, UnsupportedForm
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.infer import infer
from trnlab.graph.ir import Op, TensorType, Value
from trnlab.graph.ops import ELEMENTWISE, OPS, REQUIRED
from trnlab.graph.overflow import OverflowFlags
from trnlab.numerics.dtypes import dtype, int32

CONTROL = frozenset({"func.call", "call", "stablehlo.composite", "stablehlo.while", "stablehlo.case", "stablehlo.if"})
_FEW = 16  # elements: numbers that are a constant of the graph, however they came about
_DEEP = 200  # steps of a recipe that a graph is given
MOST_OPS = 20_000  # of one loop that is unrolled; a longer one is run round by round


class Segment:
    """One graph while it is written, and the slots that its inputs come from."""

    def __init__(self, name: str) -> None:
        self.b = GraphBuilder(name)
        self.watch = OverflowFlags(self.b)
        self.slots: dict[int, Value] = {}
        self.lifted: dict[TracedValue, Value] = {}
        self.outputs: dict[int, Value] = {}  # by slot: what later segments, or the caller, read

    def input(self, slot: int, kind: TensorType, name: str) -> Value:
        """The graph input that stands for a slot."""
        if slot not in self.slots:
            self.slots[slot] = self.b.input(name, kind.shape, kind.dtype)
        return self.slots[slot]

    def mark(self) -> tuple[int, int, dict[TracedValue, Value]]:
        """Where the graph stands, for `back_to`."""
        return len(self.b.graph.ops), len(self.watch.checks), dict(self.lifted)

    def back_to(self, mark: tuple[int, int, dict[TracedValue, Value]]) -> None:
        """Forget what was written since."""
        ops, checks, self.lifted = mark
        del self.b.graph.ops[ops:], self.watch.checks[checks:], self.watch._flags[checks:]


@dataclass
class Tracer:
    """Writes one program. `outer`: the tracer around it, whose values it may read as further arguments."""

    name: str
    functions: Mapping[str, Any]
    outer: Tracer | None = None
    most_ops: int = MOST_OPS
    ranks: int = 1
    locate: Callable[[Any], Location | None] = mlir.location
    segment: Segment = field(init=False)
    steps: list[Any] = field(default_factory=list)
    arguments: list[TracedValue] = field(default_factory=list)
    captured: dict[TracedValue, TracedValue] = field(default_factory=dict)
    constants: dict[int, Array] = field(default_factory=dict)
    count: int = 0
    place: tuple[Location | None, str] = (None, "")
    looping: bool = False  # whether the body of a loop is read, unrolled or not
    again: bool = False  # whether what is read is computed again, for a backward pass, as a checkpoint has it
    rank: TracedValue | None = None  # the argument that says which rank runs the program
    guards: list[TracedValue] = field(
        default_factory=list
    )  # what must hold for the branch to count that is being read

    def __post_init__(self) -> None:
        self.segment = Segment(self.name)

    # -- values ------------------------------------------------------------------------------------------------------
    @property
    def b(self) -> GraphBuilder:
        """The builder of the graph that is being written."""
        return self.segment.b

    def argument(self, kind: TensorType, name: str) -> TracedValue:
        """A new argument of the program."""
        entry = TracedValue(kind, slot=self._slot(), home=self)
        self.arguments.append(entry)
        try:
            self._check_runtime(kind, f"argument {name}")
        except UnsupportedOpError as error:
            entry.error = error
            return entry
        entry.value = self.segment.input(_number(entry.slot), narrow(kind), name)
        entry.segment = self.segment
        return entry

    def _slot(self) -> int:
        self.count += 1
        return self.count - 1

    def entry(self, value: Value, kind: TensorType | None = None) -> TracedValue:
        """The entry of a value of the graph that is being written; `kind` where the module has it in 64 bits."""
        return TracedValue(kind or value.type, value=value, segment=self.segment, home=self)

    def use(self, entry: TracedValue) -> Value:
        """The entry as a value of the graph that is being written. Raises what its op was refused with."""
        if entry.error is not None:
            raise entry.error
        if entry.segment is self.segment and entry.value is not None:
            return entry.value
        found = self.segment.lifted.get(entry)
        if found is None:
            found = self._lift(entry) if entry.known is not None else self._fetch(entry)
            self.segment.lifted[entry] = found
        return found

    def _fetch(self, entry: TracedValue) -> Value:
        """A value of another segment, or of the tracer around this one."""
        if entry.home is not self:
            if entry not in self.captured:
                self.captured[entry] = TracedValue(entry.type, slot=self._slot(), home=self)
            entry = self.captured[entry]
        slot = self.slot_of(entry)
        return self.segment.input(slot, narrow(entry.type), f"v{slot}")

    def slot_of(self, entry: TracedValue) -> int:
        """The slot that holds an entry when programs run. Raises what its op was refused with."""
        if entry.error is not None:
            raise entry.error
        if entry.known is not None:
            slot = self._slot()
            self.constants[slot] = np.asarray(_narrowed(entry), order="C")
            return slot
        self._check_runtime(entry.type, "a value that goes in, out or round a loop")
        if entry.home is not self:
            if entry not in self.captured:
                self.captured[entry] = TracedValue(entry.type, slot=self._slot(), home=self)
            entry = self.captured[entry]
        if entry.slot is None:
            entry.slot = self._slot()
            entry.segment.outputs[entry.slot] = entry.value
        return entry.slot

    def _lift(self, entry: TracedValue, depth: int = 0) -> Value:
        """Known numbers in the graph: the ops that made them, unless they are few or have 64 bits."""
        found = self.segment.lifted.get(entry)
        if found is not None:
            return found
        array, recipe = _narrowed(entry), entry.recipe
        kind = narrow(entry.type)
        ours = recipe is not None and not any(e.is_wide for e in (entry, *recipe.operands))
        if entry.type.size <= _FEW or is_splat(array) or not ours or depth > _DEEP:
            found = _described(self.b, array, kind)
        else:
            assert recipe is not None
            operands = [self._lift(e, depth + 1) for e in recipe.operands]
            with self.b.at(recipe.where, recipe.origin):
                found = self.b.append(recipe.name, operands, dict(recipe.attrs)).result
        self.segment.lifted[entry] = found
        return found

    # -- writing -----------------------------------------------------------------------------------------------------
    @property
    def in_round(self) -> bool:
        """Whether what is read becomes the round of a loop, which the host cannot interrupt."""
        return False

    def window(self, x: TracedValue, starts: Sequence[TracedValue], sizes: Sequence[int]) -> TracedValue | None:
        """A slice that the rounds of a loop see one after the other, see `rolled`."""
        return None

    def updated(self, x: TracedValue, update: TracedValue, starts: Sequence[TracedValue]) -> TracedValue | None:
        """A tensor that the rounds of a loop write one part after the other, see `rolled`."""
        return None

    def op(self, name: str, *operands: TracedValue, **attrs: Any) -> TracedValue:
        """An op of the graph with one result: computed at once where all is known, else written down."""
        defaults = {k: a.default for k, a in OPS[name].attrs.items() if a.default is not REQUIRED}
        attrs = {**defaults, **attrs}
        for entry in operands:
            if entry.error is not None:
                raise entry.error
        if OPS[name].kind == ELEMENTWISE and name != "clamp":
            operands = self._spread(operands)
        (kind,) = infer(name, [e.type for e in operands], attrs)
        if worth_computing(operands, kind):
            made = ConstantOrigin(name, operands, attrs, *self.place)
            return TracedValue(kind, known=compute(name, operands, attrs, kind), recipe=made)
        if kind.dtype is UINT64 or any(e.type.dtype is UINT64 for e in operands):
            return wide.lowered(self, name, tuple(operands), attrs, kind)
        self._check_runtime(kind, name)
        attrs = {k: WIDE.get(v, v) if k == "dtype" else v for k, v in attrs.items()}
        begin = len(self.b.graph.ops)
        with self.b.at(*self.place):
            value = self.b.append(name, [self.use(e) for e in operands], attrs).result
        self.follow(begin, operands, kind)
        return self.entry(value, kind)

    def follow(self, begin: int, operands: Sequence[TracedValue], kind: TensorType) -> None:
        """See that whole numbers of 64 bits stay within 32, or that the program notices when they do not."""
        given = [self.use(e) for e in operands if e.is_wide]
        unseen = self.segment.watch.follow(self.b.graph.ops[begin:], given, kind.dtype in WIDE)
        if unseen is not None:
            raise UnsupportedForm(
                f"its result may need more than the 32 bits that a 64-bit integer has on the chip, and nothing "
                f"watches {unseen.name} for that",
                "compute it in 32 bits, where it wraps",
            )

    def _spread(self, operands: tuple[TracedValue, ...]) -> tuple[TracedValue, ...]:
        shape = np.broadcast_shapes(*(e.shape for e in operands))
        return tuple(self.broadcast(e, shape) for e in operands)

    def broadcast(self, entry: TracedValue, shape: Sequence[int]) -> TracedValue:
        """NumPy's broadcast."""
        shape = tuple(shape)
        if entry.shape == shape:
            return entry
        dims = tuple(range(len(shape) - len(entry.shape), len(shape)))
        return self.op("broadcast_in_dim", entry, shape=shape, broadcast_dimensions=dims)

    def number(self, value: Any, kind: Any, shape: Sequence[int] = ()) -> TracedValue:
        """A known number, filled into `shape`."""
        held = dtype(kind) if isinstance(kind, str) else kind
        return known(
            np.broadcast_to(np.asarray(value).astype(held.numpy), tuple(shape)), TensorType(tuple(shape), held)
        )

    def _check_runtime(self, kind: TensorType, what: str) -> None:
        if kind.dtype in (FLOAT64, UINT64):
            name = kind.dtype.name
            raise UnsupportedOpError(
                f"{what} computes in {name}, which the chip does not have",
                code="TRN232",
                where=self.place[0],
                got=str(kind),
                remedy="compute it in 32 bits (JAX: leave jax_enable_x64 off)",
            )

    # -- walking -----------------------------------------------------------------------------------------------------
    def call(self, function: Any, arguments: Sequence[TracedValue]) -> list[TracedValue]:
        """The results of a function of the module."""
        return self.block(function.regions[0].blocks[0], arguments, {})

    def block(
        self, block: Any, arguments: Sequence[TracedValue], around: Mapping[Any, TracedValue]
    ) -> list[TracedValue]:
        """What a block returns for its arguments. `around`: values that it may read beside them."""
        values = dict(around)
        values.update(zip(block.arguments, arguments))
        for op in block.operations:
            name = op.operation.name
            if name in ("func.return", "stablehlo.return", "mhlo.return"):
                return [values[v] for v in op.operands]
            with self._at(op):
                results = self._lowered(op, name, values)
            for result, entry in zip(op.results, results):
                values[result] = entry
        return []

    def _lowered(self, op: Any, name: str, values: Mapping[Any, TracedValue]) -> Sequence[TracedValue]:
        """The results of an op; of one that is refused, entries that say so to who needs them."""
        operands = [values[v] for v in op.operands]
        failed = next((e.error for e in operands if e.error is not None), None)
        if failed is None or name in CONTROL:
            try:
                found = _lowering(name)(OpSite(self, op, operands, values))
                return found if isinstance(found, (list, tuple)) else [found]
            except UnsupportedForm as refusal:
                failed = _unsupported(name, op, self.place[0], refusal)
            except GraphError as error:
                reason = UnsupportedForm(f"{error.what}: limit {error.limit}, got {error.got}", "")
                failed = _unsupported(name, op, self.place[0], reason)
            except UnsupportedOpError as error:
                error.where = error.where or self.place[0]
                failed = error
        if not len(op.results):
            raise failed
        return [broken(failed) for _ in op.results]

    @contextmanager
    def _at(self, op: Any) -> Iterator[None]:
        """Stamp what is written with the op's place; one without is at the place of the call that leads to it."""
        saved = self.place, self.looping, self.again
        where = _within(self.place[0], self.locate(op), op)
        self.place = where, mlir.origin(op)
        self.looping, self.again = self.looping or mlir.is_loop(op), self.again or mlir.is_again(op)
        try:
            yield
        finally:
            self.place, self.looping, self.again = saved

    # -- loops and the end -------------------------------------------------------------------------------------------
    def loop(
        self, condition: Tracer, body: Tracer, state: Sequence[TracedValue], outs: Sequence[Sequence[TracedValue]]
    ) -> list[TracedValue]:
        """Cut the graph here, and let the host run `body` while `condition` holds. outs: what either returns."""
        programs = condition.finish(outs[0]), body.finish(outs[1])
        start = [self.slot_of(e) for e in state]
        shared = [[self.slot_of(e) for e in t.captured] for t in (condition, body)]
        results = [TracedValue(e.type, slot=self._slot(), home=self) for e in state]
        self._close()
        state_slots = [_number(e.slot) for e in results]
        self.steps.append(WhileLoop(*programs, start, state_slots, shared[0], shared[1], self.place[0]))
        self.segment = Segment(f"{self.name}.{len(self.steps)}")
        return results

    def inner(self, name: str) -> Tracer:
        """A tracer for a program inside of this one."""
        return Tracer(
            f"{self.name}.{len(self.steps)}.{name}",
            self.functions,
            self,
            self.most_ops,
            self.ranks,
            self.locate,
            place=self.place,
            looping=self.looping,
            again=self.again,
            rank=self.rank,
        )

    def _close(self) -> None:
        if self.segment.b.graph.ops or self.segment.outputs:
            self.steps.append(self.segment)

    def finish(self, results: Sequence[TracedValue], donated: Mapping[int, int] | None = None) -> SegmentedProgram:
        """The program, which returns `results`. donated: the result that takes an argument's place, by argument."""
        _raise_all([e.error for e in results if e.error is not None])
        given = [*self.arguments]
        outputs = [self.slot_of(e) for e in results]
        given += self.captured.values()
        self._close()
        alone = len(self.steps) == 1 and isinstance(self.steps[0], Segment)
        into = {_number(given[j].slot): outputs[i] for j, i in (donated or {}).items()} if alone else {}
        steps = [_built(s, into) if isinstance(s, Segment) else s for s in self.steps]
        read = {s for step in steps for s in (step.inputs if isinstance(step, GraphRun) else _read_by(step))} | {
            *outputs
        }
        inputs = [e.slot if e.slot in read else None for e in given]
        kinds = [e.type for e in given], [e.type for e in results]
        return SegmentedProgram(self.name, inputs, outputs, *kinds, steps, self.constants, dict(donated or {}))


def _within(outer: Location | None, own: Location | None, op: Any) -> Location | None:
    """An op's place: its module lies in that of the call which leads to it, and so does its phase."""
    if own is None or outer is None:
        return own or outer
    if not mlir.is_within(op):
        return own
    layer = ".".join(part for part in (outer.layer, own.layer) if part)
    return replace(own, layer=layer, phase="backward" if outer.phase == "backward" else own.phase or outer.phase)


def _raise_all(errors: Sequence[TrnlabError]) -> None:
    """Raise the first, with what else stands in the way of results."""
    others = list(dict.fromkeys(f"{e.what}, at {e.where}" for e in errors))[1:]
    if errors:
        if others:
            errors[0].what += "".join(f"\n  also   {other}" for other in others)
        raise errors[0]


def _lowering(name: str) -> Any:
    found = LOWERINGS.get(name)
    if found is None and name.startswith("chlo."):
        return LOWERINGS["chlo"]
    if found is None:
        raise UnsupportedForm("it has no lowering to the chip", "compute it on the host, before the step")
    return found


def _read_by(loop: WhileLoop) -> list[int]:
    return [*loop.start, *loop.condition_shared, *loop.body_shared]


def _built(segment: Segment, into: Mapping[int, int]) -> GraphRun:
    """The graph of a segment: without the inputs that nobody reads, outputs in the order of their slots.

    into: the output that overwrites an input, both by slot.
    """
    graph, b = segment.b.graph, segment.b
    by_value = {v: s for s, v in segment.slots.items()}
    takes = {out: segment.slots[source] for source, out in into.items() if source in segment.slots}
    for slot, value in segment.outputs.items():
        alias = takes.get(slot)
        b.output(value, f"v{slot}", alias if alias is not None and alias.type == value.type else None)
    segment.watch.finish(_needed(graph)[0])
    graph.ops[:] = _needed(graph)[1]
    read = {v for op in graph.ops for v in op.operands} | {*graph.outputs}
    kept = [v for v in graph.inputs if v in read]
    place = {v: i for i, v in enumerate(kept)}
    graph.aliases = {i: place[graph.inputs[j]] for i, j in graph.aliases.items() if graph.inputs[j] in place}
    graph.limits = {place[graph.inputs[j]]: c for j, c in graph.limits.items() if graph.inputs[j] in place}
    graph.inputs = kept
    for i, value in enumerate(kept):
        value.index = i
    return GraphRun(b.build(), [by_value[v] for v in kept], list(segment.outputs))


def _needed(graph: Any) -> tuple[set[Value], list[Op]]:
    """The values that the outputs need, and the ops; conditions and both ways of a branch leave others behind."""
    needed, kept = set(graph.outputs), []
    for op in reversed(graph.ops):
        if any(v in needed for v in op.results):
            needed.update(op.operands)
            kept.append(op)
    return needed, kept[::-1]


def narrow(kind: TensorType) -> TensorType:
    """The type that a value has on the chip."""
    return TensorType(kind.shape, WIDE.get(kind.dtype, kind.dtype))


def _number(slot: int | None) -> int:
    assert slot is not None
    return slot


def _narrowed(entry: TracedValue) -> Array:
    """Known numbers in a format of the chip. Raises Refused where they do not fit."""
    assert entry.known is not None
    target = narrow(entry.type).dtype
    if not entry.is_wide:
        return entry.known
    held = entry.known.astype(target.numpy)
    if target is not WIDE[FLOAT64] and not (held == entry.known).all():
        raise UnsupportedForm(f"a constant does not fit in the 32 bits of {target.name}", "use smaller numbers")
    return held


def _described(b: GraphBuilder, array: Array, kind: TensorType) -> Value:
    """Known numbers as few ops: filled with one, the same along some dimensions, counting, or an array."""
    if array.size == 0 or is_splat(array):
        value = array[(0,) * array.ndim] if array.size else array.dtype.type(0)
        return b.constant(np.broadcast_to(value, kind.shape), kind.dtype, kind.shape)
    varies = [a for a, n in enumerate(array.shape) if n > 1 and (array != array.take([0], a)).any()]
    if array.size > _FEW and len(varies) < sum(n > 1 for n in array.shape):
        line = array[tuple(slice(None) if a in varies else 0 for a in range(array.ndim))]
        small = _described(b, np.ascontiguousarray(line), TensorType(line.shape, kind.dtype))
        return b.broadcast_in_dim(small, kind.shape, varies)
    if array.size > _FEW and kind.dtype in (int32, WIDE[UINT64]):
        flat = array.reshape(-1)
        if (flat == np.arange(flat[0], int(flat[0]) + array.size, dtype=np.int64)).all():
            count = b.reshape(b.iota((array.size,), kind.dtype), kind.shape)
            return count if flat[0] == 0 else b.add(count, int(flat[0]))
    return b.constant(array, kind.dtype, kind.shape)


def _unsupported(name: str, op: Any, where: Location | None, refusal: UnsupportedForm) -> UnsupportedOpError:
    types = ", ".join(str(v.type) for v in op.operands)
    return UnsupportedOpError(
        f"{name}({types}): {refusal.reason}", code=refusal.code, where=where, remedy=refusal.do or None
    )
