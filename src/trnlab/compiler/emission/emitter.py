# SPDX-License-Identifier: Apache-2.0
"""Instruction selection: the ops of a group on one tile, as few instructions as the engines allow.

Two scalar operations make one tensor_scalar, a scalar and a tensor operation one scalar_tensor_tensor; scales and
biases ride in the activation instruction, sums along a row come out of it; casts happen on the way out of whatever
computed the value.

Shape letters: P partition (rows of the tile), F free (columns of the tile).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trnlab.compiler.emission.domain import SweepSlice
from trnlab.compiler.emission.tilesource import TileLoader
from trnlab.compiler.emission.totals import PartSums
from trnlab.compiler.fusing.fusion import Partition
from trnlab.compiler.fusing.groups import FusionGroup, ValueClass
from trnlab.compiler.fusing.tiles import PsumSpace, TilePlan, TileSpace, origin
from trnlab.graph.interpret import apply
from trnlab.graph.ir import Op, TensorType, Value
from trnlab.isa.base import Engine, Memory
from trnlab.numerics.dtypes import DType, bfloat16, float32, int32, uint16, uint32
from trnlab.program import AP, Builder

Narrow = float | AP
_VECTOR, _SCALAR = Engine.VECTOR, Engine.SCALAR  # to look a member up takes 200 ns in Python 3.11
WORDS = frozenset({int32, uint32})
PAIRING = frozenset({"add", "subtract", "multiply", "maximum", "minimum", "select"})
"""Ops of which Vector reads two whole operands in one instruction."""
PAIRED = PAIRING | {"divide", "exponential", "sqrt", "rsqrt", "tanh", "logistic", "erf"}
"""Ops whose results may lie in PSUM: Vector or Scalar writes them with the last instruction, in float32. In bfloat16,
for which Vector has fast modes from SBUF to SBUF, only those of `select`, which has none."""


@dataclass
class Pending:
    """`data op operand` not yet issued, for the next instruction to take along."""

    value: Value
    source: Value
    op: str
    operand: Narrow
    reverse: bool
    holds: tuple[Value, ...]  # what must stay in its tile until then


class Emitter:
    """Evaluates the ops of a plan on one tile after another."""

    def __init__(
        self,
        b: Builder,
        group: FusionGroup,
        part: Partition,
        loader: TileLoader,
        wide: TileSpace,
        narrow: TileSpace,
        psum: PsumSpace | None = None,
        part_sums: PartSums | None = None,
    ):
        self.b, self.group, self.part, self.loader, self.psum = b, group, part, loader, psum
        self.part_sums = part_sums
        self.wide, self.narrow = wide, narrow
        self.values: dict[Value, float | AP | Pending] = {}
        self.rows: dict[Value, float | AP] = {}  # row values that outlive a sweep (staged loops)
        self.refs: dict[Value, int] = {}
        self.sums: dict[Value, list[AP]] = {}
        self.busy = {Engine.VECTOR: 0.0, Engine.SCALAR: 0.0}
        self._clock = {Engine.VECTOR: b.chip.vector.clock.value, Engine.SCALAR: b.chip.scalar.clock.value}
        self._owned: dict[Value, tuple[TileSpace | PsumSpace, AP]] = {}
        self.done: set[Op] = set()
        self.inverted: dict[Value, bool] = {}  # predicates that hold where their tile is zero
        self._temps: list[tuple[TileSpace | PsumSpace, AP]] = []
        self._origins: dict[Value, Value] = {}  # what was found out about values, which each tile asks again
        self._wide: dict[Value, bool] = {}

    def sibling(self) -> Emitter:
        """Another one for the next tile of the same loop: tiles, engines' loads and what was loaded for good are
        shared."""
        twin = Emitter(
            self.b, self.group, self.part, self.loader.sibling(), self.wide, self.narrow, self.psum, self.part_sums
        )
        twin.busy, twin._origins, twin._wide = self.busy, self._origins, self._wide
        return twin

    # -- one sweep ----------------------------------------------------------------------------------------------
    def begin(self, plan: TilePlan, frame: SweepSlice, base: dict[Value, AP]) -> None:
        """Set out to compute what the plan says for the rows and columns of `frame`; `base` is given already."""
        self.plan, self.frame = plan, frame
        self.values = {**self.rows, **base}
        self.refs = dict(plan.uses)
        self._owned, self.done = {}, set()
        for value in base:
            self.store_if_asked(value)

    def after(self, op: Op) -> None:
        """An op was computed: store its results if asked, give back tiles that nobody needs any more."""
        for result in op.results:
            if isinstance(self.values.get(result), Pending):
                break
        else:
            self.end()
        for value in op.operands:
            self.release(value)
        for result in op.results:
            self.computed(result)

    def computed(self, result: Value) -> None:
        """A result, and the cast that was folded into it, are there: store what is asked for, give back the rest."""
        folded = self.plan.converted.get(result)
        for value in (result,) if folded is None else (result, folded.result):
            self.store_if_asked(value)
            if self.refs.get(value, 0) == 0:
                self._drop(value)

    def end(self) -> None:
        """Give back temporary tiles."""
        if self._temps:
            for space, tile in self._temps:
                space.give(tile)
            self._temps = []

    def temp(self, space: TileSpace, like: AP, dtype: DType = float32) -> AP:
        """A tile that is free again once the op at hand is done."""
        tile = space.take(like.partitions, like.free, dtype)
        self.give_later(space, tile)
        return tile

    def temp_beside(self, other: Value) -> AP:
        """The same in float32 for what Vector reads together with another whole value: in PSUM where there is room,
        and the other one is not."""
        size, banks = (self.frame.rows, self.frame.cols), None if self._in_psum(other) else self.psum
        found = banks.take(*size, float32) if banks is not None else None
        tile = self.wide.take(*size, float32) if found is None else found
        self.give_later(self.wide if found is None or banks is None else banks, tile)
        return tile

    def give_later(self, space: TileSpace | PsumSpace, tile: AP) -> None:
        """A tile is free again once the op at hand is done."""
        self._temps.append((space, tile))

    def store_if_asked(self, value: Value) -> None:
        """Write out a value that has just been computed, when somebody outside reads it."""
        if value in self.plan.stores:
            if self.group.classes[value] is not ValueClass.FINAL:  # those are written out after the last rows
                self._store(value, self.frame)
            self.release(value)

    def _store(self, value: Value, frame: SweepSlice) -> None:
        """Write a value out, from a tile in SBUF and in its format, as long as the frame is; where it stays in SBUF,
        to there."""
        tile = self.ap(value)
        at_home = self._at_home(value)
        if at_home is not None:
            if tile != at_home:
                self.copy(at_home, tile if tile.free == frame.cols else tile.with_dims((0, frame.cols)))
            return
        if value.type.size == self.group.size:
            if tile.free != frame.cols:
                tile = tile.with_dims((0, frame.cols))
            if tile.memory is Memory.PSUM or tile.dtype is not value.dtype or (tile.dims and tile.dims[-1][0] == 0):
                copied = self.wide.take(frame.rows, frame.cols, value.dtype)
                self.copy(copied, tile)
                self.wide.give(copied)
                tile = copied
        self.loader.store(value, tile, frame)

    def _at_home(self, value: Value) -> AP | None:
        """Where this sweep's part of a stored value stays in SBUF, if it does."""
        whole = value in self.plan.stores and self.group.classes[value] is ValueClass.FULL
        return self.loader.at_home(value, self.frame) if whole and value in self.loader.ports else None

    def release(self, value: Value) -> None:
        """One reader of a value is done."""
        seen = self.origin(value)
        self.refs[seen] -= 1
        if self.refs[seen] == 0:
            self._drop(seen)

    def _drop(self, value: Value) -> None:
        if value not in self.group.classes:
            self.loader.release(value)
            return
        held = self.values.get(value)
        if isinstance(held, Pending):
            for source in held.holds:
                self.release(source)
            return
        if value in self._owned:
            space, tile = self._owned.pop(value)
            space.give(tile)

    # -- operands -----------------------------------------------------------------------------------------------
    def origin(self, value: Value) -> Value:
        """The value of the group that it is a look at; from outside, the value that is loaded for it."""
        seen = self._origins.get(value)
        if seen is None:
            seen = self._origins[value] = origin(value, self.group)
        return seen

    def cls(self, value: Value) -> ValueClass:
        """Along what a value varies."""
        seen = self.origin(value)
        if seen in self.group.classes:
            return self.group.classes[seen]
        return self.loader.outer_class(seen)

    def is_wide(self, value: Value) -> bool:
        """Whether it has an element per column."""
        wide = self._wide.get(value)
        if wide is None:
            wide = self._wide[value] = self.cls(value) in (ValueClass.FULL, ValueClass.COL)
        return wide

    def get(self, value: Value) -> float | AP | Pending:
        """The value on this tile: a number, an access pattern, or something still pending."""
        seen = self.origin(value)
        if seen in self.values:
            return self.values[seen]
        return self.loader.load(seen, self.frame)

    def ap(self, value: Value) -> AP:
        """The value as an access pattern: pending work is issued, numbers are written to a [P, 1] tile."""
        held = self.get(value)
        if isinstance(held, Pending):
            held = self.issue(held)
        if isinstance(held, float):
            return self.loader.constant(held, self.frame.rows, float32 if value.dtype.is_float else value.dtype)
        return held

    def narrow_form(self, value: Value) -> Narrow:
        """A value that does not vary along the row, as the number or fp32 [P, 1] operand that instructions take."""
        number = self.loader.number(self.origin(value), self.frame)
        if number is not None:
            return number
        held = self.get(value)
        if isinstance(held, float):
            return held
        tile = self.ap(value)
        if tile.dtype is not float32:
            cast = self.temp(self.narrow, tile)
            self.b.tensor_copy(dst=cast, src=tile)
            return cast
        return tile

    def sbuf(self, tile: AP) -> AP:
        """The same elements in SBUF, for the second of two operands in PSUM."""
        if tile.memory is Memory.SBUF:
            return tile
        copy = self.temp(self.wide, tile)
        self.copy(copy, tile)
        return copy

    def dst(self, value: Value, narrow: bool | None = None) -> AP:
        """A new tile for a result; in the format of the one `convert` that reads it, if there is just that."""
        dtype = value.dtype
        folded = self.plan.converted.get(value)
        if folded is not None:
            dtype = folded.attrs["dtype"]
        at_home = self._at_home(value if folded is None else folded.result)
        if at_home is not None:
            self._bind(value, None, at_home)
            return at_home
        if narrow is None:
            narrow = self.group.classes[value] in (ValueClass.ROW, ValueClass.SCALAR)
        paired = None if narrow or self.psum is None or not self._is_paired(value) else self.psum
        tile = paired.take(self.frame.rows, self.frame.cols, dtype) if paired is not None else None
        if paired is not None and tile is not None:
            self._bind(value, paired, tile)
            return tile
        space, free = (self.narrow, 1) if narrow else (self.wide, self.frame.cols)
        tile = space.take(self.frame.rows, free, dtype)
        self._bind(value, space, tile)
        return tile

    def _is_paired(self, value: Value) -> bool:
        """Whether Vector will read a value together with another one that is not in PSUM."""
        plan = self.plan
        may_be = plan.may_be_paired.get(value)
        if may_be is None:
            may_be = plan.may_be_paired[value] = self._may_be_paired(value)
        return may_be and any(self._pairs(value, op) for op in plan.readers.get(value, ()))

    def _may_be_paired(self, value: Value) -> bool:
        """The same, wherever other values lie."""
        made, plan = value.op, self.plan
        if made is None or made.name not in PAIRED or value in plan.converted or value in plan.stores:
            return False
        readers = plan.readers.get(value, ())
        slow = value.dtype is float32 or (
            value.dtype is bfloat16 and made.name == "select" and all(op.result.dtype is float32 for op in readers)
        )
        return slow and all(self._reads_psum(op) for op in readers)

    def _reads_psum(self, reader: Op) -> bool:
        """Whether an op's instructions read their operand from PSUM as well."""
        row_sum = reader.name == "reduce" and self.group.classes[reader.result] is ValueClass.ROW
        return row_sum or (reader.name in PAIRED and self.is_wide(reader.result))

    def _pairs(self, value: Value, reader: Op) -> bool:
        """Whether an op, or the next one if it takes a number or a row value along, has another whole operand."""
        others = [v for v in reader.operands if self.origin(v) is not value and self.is_wide(v)]
        if others:
            return reader.name in PAIRING and not any(self._in_psum(v) for v in others)
        following = self.plan.readers.get(reader.result, [])
        alone = len(following) == 1 and self.plan.uses[reader.result] == 1 and reader.name in PAIRING
        return alone and self._reads_psum(following[0]) and self._pairs(reader.result, following[0])

    def _in_psum(self, value: Value) -> bool:
        """Whether a value, or what it waits to be computed from, lies in PSUM already."""
        held = self.values.get(self.origin(value))
        if isinstance(held, Pending):
            return self._in_psum(held.source)
        return isinstance(held, AP) and held.memory is Memory.PSUM

    def _bind(self, value: Value, space: TileSpace | PsumSpace | None, tile: AP) -> None:
        """Give a value its tile, of no space where it stays there; a folded convert's result gets it too."""
        self.values[value] = tile
        if self.plan.per_row:
            self.rows[value] = tile
            return
        folded = self.plan.converted.get(value)
        if space is not None:
            self._owned[folded.result if folded is not None else value] = space, tile
        if folded is not None:
            self.done.add(folded)
            self.values[folded.result] = tile
            self.refs[value] = 0

    def marks(self, op: Op) -> AP:
        """A new tile in bf16 for the result of a comparison of x with zero: max(x, 0), which is zero or not."""
        space: TileSpace | PsumSpace = self.wide
        tile = None
        if self.psum is not None and not any(self._in_psum(v) for v in self.plan.reader[op.result].operands):
            tile = self.psum.take(self.frame.rows, self.frame.cols, bfloat16)  # `select` is twice as fast then
        if self.psum is not None and tile is not None:
            space = self.psum
        else:
            tile = self.wide.take(self.frame.rows, self.frame.cols, bfloat16)
        self._bind(op.result, space, tile)
        self.values[op.result] = tile.cast(uint16)
        self.inverted[op.result] = op.attrs["comparison_direction"] == "LE"
        return tile

    def issue(self, pending: Pending) -> AP:
        """Issue what was pending as an instruction of its own."""
        data = self.ap(pending.source)
        tile = self.dst(pending.value)
        self.scalar_op(tile, data, pending.op, pending.operand, pending.reverse)
        for value in pending.holds:
            self.release(value)
        return tile

    # -- instructions with a choice of engine -------------------------------------------------------------------
    def lighter(self, cols: int) -> Engine:
        """Vector or Scalar: the engine with less to do so far; charges it with `cols` elements per partition."""
        vector = self.busy[_VECTOR] + cols / self._clock[_VECTOR]
        scalar = self.busy[_SCALAR] + cols / self._clock[_SCALAR]
        if vector <= scalar:
            self.busy[_VECTOR] = vector
            return _VECTOR
        self.busy[_SCALAR] = scalar
        return _SCALAR

    def charge(self, engine: Engine, cols: int) -> None:
        """Note that an engine got an instruction of `cols` cycles."""
        self.busy[engine] += cols / self._clock[engine]

    def is_quick(self, *tiles: AP) -> bool:
        """Whether VectorE takes four elements a cycle of such tiles, of bf16 in SBUF throughout."""
        narrow = all(t.dtype is bfloat16 and t.memory is Memory.SBUF for t in tiles)
        return narrow and self.b.chip.has("vector_fast_modes")

    def charge_vector(self, dst: AP) -> None:
        """Note that Vector got an instruction that fills `dst`."""
        self.charge(Engine.VECTOR, dst.free)

    def copy(self, dst: AP, src: AP) -> None:
        """Copy or cast on whichever of Vector and Scalar is less busy; 32-bit integers on Vector: it copies bits."""
        if src.dtype in WORDS or self.lighter(dst.free) is Engine.VECTOR:
            self.b.tensor_copy(dst=dst, src=src)
        else:
            self.b.activation(dst=dst, data=src, op="copy")

    def scalar_op(self, dst: AP, data: AP, op: str, operand: Narrow, reverse: bool) -> None:
        """dst = data op operand, with a number or a [P, 1] operand, in float32."""
        if op == "multiply" and self.lighter(dst.free) is Engine.SCALAR:
            self.b.activation(dst=dst, data=data, op="copy", scale=operand)
            return
        if op != "multiply":
            self.charge(Engine.VECTOR, dst.free)
        self.b.tensor_scalar(dst=dst, data=data, operand0=operand, op0=op, reverse0=reverse)

    def tensor_op(self, dst: AP, x: AP, y: AP, op: str) -> None:
        """dst = x op y on whole tiles, in float32; `power` exists on GpSimd alone."""
        if x.memory is Memory.PSUM and y.memory is Memory.PSUM:
            y = self.sbuf(y)
        engine = Engine.GPSIMD if op == "power" else Engine.VECTOR
        if engine is Engine.VECTOR:
            self.charge(engine, 2 * dst.free)
        rounds = {x.dtype, y.dtype} <= WORDS  # the caller knows that nothing is lost
        self.b.tensor_tensor(dst=dst, data1=x, data2=y, op=op, engine=engine, **({"exact": False} if rounds else {}))

    def word_op(self, dst: AP, x: AP, y: AP, op: str) -> None:
        """dst = x op y on 32-bit integers: exact, wrapping, on GpSimd."""
        self.b.tensor_tensor(dst=dst, data1=x, data2=y, op=op, engine=Engine.GPSIMD)

    def fold(self, op: Op, *numbers: float) -> float:
        """An op of numbers alone, as the graph defines it."""
        types = [TensorType((), v.dtype) for v in op.operands]
        arrays = [np.asarray(n).astype(t.dtype.numpy) for n, t in zip(numbers, types)]
        return float(apply(op.name, arrays, types, op.attrs)[0].item())

    # -- rules --------------------------------------------------------------------------------------------------
    def spread(self, value: Value) -> AP:
        """A value as [P, F]: what does not vary along the row is read F times over."""
        tile = self.ap(value)
        return tile.with_dims((0, self.frame.cols)) if tile.free != self.frame.cols else tile

    def as_wide_as(self, dst: AP, src: AP) -> AP:
        """A source as [P, F] like its destination."""
        return src.with_dims((0, dst.free)) if src.free != dst.free else src

    # -- reductions ---------------------------------------------------------------------------------------------
    def store_row(self, value: Value, frame: SweepSlice) -> None:
        """Write out a row value that is kept."""
        self.values, self.frame = dict(self.rows), frame
        self._store(value, frame)

    def share_row(self, other: Emitter) -> None:
        """Compute pieces of the same rows as another one, with what that keeps for them."""
        self.rows = other.rows
        self.loader.share_row(other.loader)

    def leave_row(self) -> None:
        """Leave what was shared to the other one."""
        self.rows = {}
        self.loader.leave_row()

    def end_row(self) -> None:
        """Give back what was kept for the rows at hand."""
        for tile in self.rows.values():
            if isinstance(tile, AP):
                self.narrow.give(tile)
        self.rows = {}
        self.loader.end_row()
