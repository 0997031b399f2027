# SPDX-License-Identifier: Apache-2.0
"""Instruction selection: the ops of a group on one tile, as few instructions as the engines allow.

Two scalar operations make one tensor_scalar, a scalar and a tensor operation one scalar_tensor_tensor; scales and biases
ride in the activation instruction, sums along a row come out of it; casts happen on the way out of whatever computed the value.

Shape letters: P partition (rows of the tile), F free (columns of the tile).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from trnlab.compiler.groups import Class, Group, Partition
from trnlab.compiler.tiles import Plan, TileSpace, origin
from trnlab.compiler.tilesource import Frame, Loader
from trnlab.graph.ir import Op, Value
from trnlab.isa.base import Engine, Memory
from trnlab.numerics.dtypes import DType, bool_, float32, int32, uint32
from trnlab.program import AP, Builder

ALU = {
    "add": "add",
    "subtract": "subtract",
    "multiply": "multiply",
    "maximum": "max",
    "minimum": "min",
    "remainder": "mod",
}
LOGICAL = {"and": "logical_and", "or": "logical_or", "xor": "logical_xor"}
BITWISE = {"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"}
COMPARE = {"EQ": "is_equal", "NE": "not_equal", "LT": "is_lt", "LE": "is_le", "GT": "is_gt", "GE": "is_ge"}
ACTIVATION = {
    "exponential": "exp",
    "log": "log",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "tanh": "tanh",
    "logistic": "sigmoid",
    "erf": "erf",
    "abs": "abs",
    "sign": "sign",
    "trn.silu": "silu",
    "trn.silu_dx": "silu_dx",
}
SAFE_RECIPROCAL = 2.0**-42  # the activation engine's reciprocal is valid from here to 2^42 (nki.api.shared.rst)

Number = float
Narrow = float | AP


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

    def __init__(self, b: Builder, group: Group, part: Partition, loader: Loader, wide: TileSpace, narrow: TileSpace):
        self.b, self.group, self.part, self.loader = b, group, part, loader
        self.wide, self.narrow = wide, narrow
        self.values: dict[Value, float | AP | Pending] = {}
        self.rows: dict[Value, float | AP] = {}  # row values that outlive a sweep (staged loops)
        self.refs: dict[Value, int] = {}
        self.sums: dict[Value, list[AP]] = {}
        self.busy = {Engine.VECTOR: 0.0, Engine.SCALAR: 0.0}
        self._clock = {Engine.VECTOR: b.chip.vector.clock.value, Engine.SCALAR: b.chip.scalar.clock.value}
        self._owned: dict[Value, tuple[TileSpace, AP]] = {}
        self._done: set[Op] = set()
        self._temps: list[tuple[TileSpace, AP]] = []

    def sibling(self) -> Emitter:
        """Another one for the next tile of the same loop: tiles, engines' loads and what was loaded for good are shared."""
        twin = Emitter(self.b, self.group, self.part, self.loader.sibling(), self.wide, self.narrow)
        twin.busy = self.busy
        return twin

    # -- one sweep ----------------------------------------------------------------------------------------------
    def sweep(self, plan: Plan, frame: Frame, base: dict[Value, AP] | None = None) -> None:
        """Compute and store what the plan says for the rows and columns of `frame`; `base` is given already."""
        for _ in self.steps(plan, frame, base):
            pass

    def steps(self, plan: Plan, frame: Frame, base: dict[Value, AP] | None = None) -> Iterator[None]:
        """The same op by op, for sweeps that take turns."""
        self.plan, self.frame = plan, frame
        self.values = {**self.rows, **(base or {})}
        self.refs = dict(plan.uses)
        self._owned, self._done = {}, set()
        for value in base or {}:
            self._store_if_asked(value)
        for op in plan.ops:
            if op not in self._done:
                self.b.location = op.loc or self.b.location
                _RULES[op.name](self, op)
                self._after(op)
            yield
        self._give_temps()

    def temp(self, space: TileSpace, like: AP, dtype: DType = float32) -> AP:
        """A tile that is free again once the op at hand is done."""
        tile = space.take(like.partitions, like.free, dtype)
        self._temps.append((space, tile))
        return tile

    def _give_temps(self) -> None:
        for space, tile in self._temps:
            space.give(tile)
        self._temps = []

    def _after(self, op: Op) -> None:
        if not any(isinstance(self.values.get(r), Pending) for r in op.results):
            self._give_temps()
        for value in op.operands:
            self._release(value)
        for result in op.results:
            folded = self.plan.converted.get(result)
            for value in (result,) if folded is None else (result, folded.result):
                self._store_if_asked(value)
                if self.refs.get(value, 0) == 0:
                    self._drop(value)

    def _store_if_asked(self, value: Value) -> None:
        if value in self.plan.stores:
            if self.group.classes[value] is not Class.FINAL:  # those are written out after the last rows
                self.loader.store(self, value, self.frame)
            self._release(value)

    def _release(self, value: Value) -> None:
        seen = origin(value, self.group)
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
                self._release(source)
            return
        if value in self._owned:
            space, tile = self._owned.pop(value)
            space.give(tile)

    # -- operands -----------------------------------------------------------------------------------------------
    def cls(self, value: Value) -> Class:
        """Along what a value varies."""
        seen = origin(value, self.group)
        if seen in self.group.classes:
            return self.group.classes[seen]
        return self.loader.outer_class(seen)

    def is_wide(self, value: Value) -> bool:
        return self.cls(value) in (Class.FULL, Class.COL)

    def get(self, value: Value) -> float | AP | Pending:
        """The value on this tile: a number, an access pattern, or something still pending."""
        seen = origin(value, self.group)
        if seen in self.values:
            return self.values[seen]
        return self.loader.load(seen, self.frame)

    def ap(self, value: Value) -> AP:
        """The value as an access pattern: pending work is issued, numbers are written to a [P, 1] tile."""
        held = self.get(value)
        if isinstance(held, Pending):
            held = self._issue(held)
        return self.loader.constant(held, self.frame.rows) if isinstance(held, float) else held

    def narrow_form(self, value: Value) -> Narrow:
        """A value that does not vary along the row, as the number or fp32 [P, 1] operand that instructions take."""
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
        if narrow is None:
            narrow = self.group.classes[value] in (Class.ROW, Class.SCALAR)
        space, free = (self.narrow, 1) if narrow else (self.wide, self.frame.cols)
        tile = space.take(self.frame.rows, free, dtype)
        self._bind(value, space, tile)
        return tile

    def _bind(self, value: Value, space: TileSpace, tile: AP) -> None:
        """Give a value its tile; a folded convert's result gets it too."""
        self.values[value] = tile
        if self.plan.per_row:
            self.rows[value] = tile
            return
        folded = self.plan.converted.get(value)
        self._owned[folded.result if folded is not None else value] = space, tile
        if folded is not None:
            self._done.add(folded)
            self.values[folded.result] = tile
            self.refs[value] = 0

    def _issue(self, pending: Pending) -> AP:
        data = self.ap(pending.source)
        tile = self.dst(pending.value)
        self.scalar_op(tile, data, pending.op, pending.operand, pending.reverse)
        for value in pending.holds:
            self._release(value)
        return tile

    # -- instructions with a choice of engine -------------------------------------------------------------------
    def lighter(self, cols: int) -> Engine:
        """Of Vector and Scalar the engine with less to do so far; charges it with `cols` elements per partition."""
        cost = {e: self.busy[e] + cols / self._clock[e] for e in self.busy}
        engine = min(cost, key=lambda e: cost[e])
        self.busy[engine] = cost[engine]
        return engine

    def charge(self, engine: Engine, cols: int) -> None:
        """Note that an engine got an instruction of `cols` cycles."""
        self.busy[engine] += cols / self._clock[engine]

    def copy(self, dst: AP, src: AP) -> None:
        """Copy or cast on whichever of Vector and Scalar is less busy."""
        if self.lighter(dst.free) is Engine.VECTOR:
            self.b.tensor_copy(dst=dst, src=src)
        else:
            self.b.activation(dst=dst, data=src, op="copy")

    def scalar_op(self, dst: AP, data: AP, op: str, operand: Narrow, reverse: bool) -> None:
        """dst = data op operand, with a number or a [P, 1] operand."""
        if op == "multiply" and self.lighter(dst.free) is Engine.SCALAR:
            self.b.activation(dst=dst, data=data, op="copy", scale=operand)
            return
        if op != "multiply":
            self.charge(Engine.VECTOR, dst.free)
        self.b.tensor_scalar(dst=dst, data=data, operand0=operand, op0=op, reverse0=reverse)

    def tensor_op(self, dst: AP, x: AP, y: AP, op: str) -> None:
        """dst = x op y on whole tiles; exact integer arithmetic runs on GpSimd."""
        if x.memory is Memory.PSUM and y.memory is Memory.PSUM:
            y = self.sbuf(y)
        exact = {x.dtype, y.dtype} <= {int32, uint32} and op not in BITWISE.values()
        engine = Engine.GPSIMD if exact or op == "power" else Engine.VECTOR
        if engine is Engine.VECTOR:
            self.charge(engine, 2 * dst.free)
        self.b.tensor_tensor(dst=dst, data1=x, data2=y, op=op, engine=engine)

    # -- rules --------------------------------------------------------------------------------------------------
    def binary(self, op: Op) -> None:
        """Arithmetic and comparisons."""
        lhs, rhs = op.operands
        alu = self._alu(op)
        if op.name == "multiply" and origin(lhs, self.group) is origin(rhs, self.group) and self.is_wide(lhs):
            self.activate(op, "square")
            return
        wide_lhs, wide_rhs = self.is_wide(lhs), self.is_wide(rhs)
        if wide_lhs and wide_rhs:
            self._tensor_tensor(op, lhs, rhs, alu)
        elif wide_lhs:
            self._tensor_scalar(op, lhs, alu, self.narrow_form(rhs), reverse=False)
        elif wide_rhs:
            self._tensor_scalar(op, rhs, alu, self.narrow_form(lhs), reverse=True)
        elif self.is_wide(op.result):  # asked for in full though it varies less
            self.scalar_op(self.dst(op.result), self._spread(lhs), alu, self.narrow_form(rhs), reverse=False)
        else:
            self._narrow_binary(op, lhs, rhs, alu)

    def _alu(self, op: Op) -> str:
        if op.name == "compare":
            return COMPARE[op.attrs["comparison_direction"]]
        if op.name in LOGICAL:
            return LOGICAL[op.name] if op.result.dtype is bool_ else BITWISE[op.name]
        return ALU.get(op.name, op.name)

    def _narrow_binary(self, op: Op, lhs: Value, rhs: Value, alu: str) -> None:
        x, y = self.get(lhs), self.get(rhs)
        if isinstance(x, float) and isinstance(y, float):
            self.values[op.result] = _fold(op, x, y)
        elif isinstance(y, float):
            self.scalar_op(self.dst(op.result), self.ap(lhs), alu, y, reverse=False)
        elif isinstance(x, float):
            self.scalar_op(self.dst(op.result), self.ap(rhs), alu, x, reverse=True)
        else:
            self.tensor_op(self.dst(op.result), self.ap(lhs), self.ap(rhs), alu)

    def _tensor_scalar(self, op: Op, data: Value, alu: str, operand: Narrow, *, reverse: bool) -> None:
        held = self.get(data)
        if isinstance(held, Pending):
            source = self.ap(held.source)
            tile = self.dst(op.result)
            self.charge(Engine.VECTOR, tile.free)
            self.b.tensor_scalar(
                dst=tile, data=source, operand0=held.operand, op0=held.op, reverse0=held.reverse,
                operand1=operand, op1=alu, reverse1=reverse,
            )  # fmt: skip
        elif self._can_wait(op):
            for value in op.operands:
                self.refs[origin(value, self.group)] += 1
            self.values[op.result] = Pending(op.result, data, alu, operand, reverse, op.operands)
        else:
            source = self.ap(data)
            self.scalar_op(self.dst(op.result), source, alu, operand, reverse)

    def _can_wait(self, op: Op) -> bool:
        value = op.result
        if self.plan.uses[value] != 1 or value in self.plan.stores or value.dtype is not float32:
            return False
        reader = self.plan.reader.get(value)
        foldable = (*ALU, *ACTIVATION, "trn.gelu", "trn.gelu_dx", "compare")
        return reader is not None and reader.name in foldable and self.is_wide(reader.result)

    def _tensor_tensor(self, op: Op, lhs: Value, rhs: Value, alu: str) -> None:
        x, y = self.get(lhs), self.get(rhs)
        pending = x if isinstance(x, Pending) else y if isinstance(y, Pending) else None
        if pending is None:
            a, c = self.ap(lhs), self.ap(rhs)
            self.tensor_op(self.dst(op.result), a, c, alu)
            return
        data = self.ap(pending.source)
        other = self.ap(rhs if pending is x else lhs)
        if data.memory is Memory.PSUM and other.memory is Memory.PSUM:
            other = self.sbuf(other)
        tile = self.dst(op.result)
        self.charge(Engine.VECTOR, 2 * tile.free)
        self.b.scalar_tensor_tensor(
            dst=tile, data=data, operand0=pending.operand, op0=pending.op, reverse0=pending.reverse,
            operand1=other, op1=alu, reverse1=pending is not x,
        )  # fmt: skip

    def activate(self, op: Op, func: str) -> None:
        """A function of the Scalar engine, with what precedes it as scale or bias and its row sum if one is wanted."""
        value = op.operands[0]
        held = self.get(value)
        if isinstance(held, float):
            held = self.loader.constant(held, self.frame.rows)
        scale: Narrow = 1.0
        bias: AP | None = None
        if isinstance(held, Pending):
            folded = self._as_affine(held)
            data = self.ap(held.source) if folded else self.ap(value)
            scale, bias = folded or (1.0, None)
        else:
            data = held
        tile = self.dst(op.result)
        data = self._as_wide_as(tile, data)
        extra: dict[str, Any] = {} if bias is None else {"bias": bias}
        total = self.plan.summed.get(op.result)
        if total is not None and self.is_wide(op.result) and self.plan.converted.get(op.result) is None:
            extra["reduce_res"] = self._row_sum(total)
        self.charge(Engine.SCALAR, tile.free)
        self.b.activation(dst=tile, data=data, op=func, scale=scale, **extra)
        if total is not None and "reduce_res" in extra:
            self._combine(total, extra["reduce_res"])
            self._done.add(total)
            self._release(op.result)
            self._store_if_asked(total.result)

    def _as_affine(self, held: Pending) -> tuple[Narrow, AP | None] | None:
        if held.op == "multiply":
            return held.operand, None
        if held.op == "add":
            return 1.0, self._as_bias(held.operand)
        if held.op == "subtract" and not held.reverse:
            if isinstance(held.operand, float):
                return 1.0, self._as_bias(-held.operand)
            negated = self.temp(self.narrow, held.operand)
            self.b.tensor_scalar(dst=negated, data=held.operand, operand0=-1.0, op0="multiply")
            return 1.0, negated
        return None

    def _as_bias(self, operand: Narrow) -> AP:
        return self.loader.constant(operand, self.frame.rows) if isinstance(operand, float) else operand

    def unary(self, op: Op) -> None:
        """Functions that one instruction computes."""
        held = self.get(op.operands[0])
        if isinstance(held, float):
            held = self.loader.constant(held, self.frame.rows)
        func = ACTIVATION.get(op.name)
        if op.name in ("trn.gelu", "trn.gelu_dx"):
            tanh = op.attrs["approximate"] == "tanh"
            func = {"trn.gelu": "gelu", "trn.gelu_dx": "gelu_dx"}[op.name]
            func = func.replace("gelu", "gelu_apprx_tanh") if tanh else func
        assert func is not None
        self.activate(op, func)

    def negate(self, op: Op) -> None:
        self._tensor_or_narrow_scalar(op, op.operands[0], "multiply", -1.0)

    def logical_not(self, op: Op) -> None:
        self._tensor_or_narrow_scalar(op, op.operands[0], "is_equal", 0.0)

    def _tensor_or_narrow_scalar(self, op: Op, value: Value, alu: str, number: float, reverse: bool = False) -> None:
        if self.is_wide(value):
            self._tensor_scalar(op, value, alu, number, reverse=reverse)
        else:
            self.scalar_op(self.dst(op.result), self.ap(value), alu, number, reverse)

    def divide(self, op: Op) -> None:
        """Multiplication by the reciprocal; the engines have no division."""
        lhs, rhs = op.operands
        divisor = self.get(rhs)
        if isinstance(divisor, float):
            held = self.get(lhs)
            if isinstance(held, float):
                self.values[op.result] = _fold(op, held, divisor)
                return
            self._tensor_or_narrow_scalar(op, lhs, "multiply", float(np.float32(1.0) / np.float32(divisor)))
            return
        narrow = not self.is_wide(rhs)
        source = self.ap(rhs)
        space = self.narrow if narrow else self.wide
        inverse = self.temp(space, source)
        self._reciprocal(inverse, source, rhs)
        if self.get(lhs) == 1.0:
            self.copy(self.dst(op.result), inverse)
        elif narrow and self.is_wide(lhs):
            data = self.ap(lhs)
            self.scalar_op(self.dst(op.result), data, "multiply", inverse, False)
        elif self.is_wide(lhs) or narrow:
            data = self.ap(lhs)
            self.tensor_op(self.dst(op.result), data, inverse, "multiply")
        else:
            operand = self.narrow_form(lhs)
            self.scalar_op(self.dst(op.result), inverse, "multiply", operand, False)

    def _reciprocal(self, dst: AP, src: AP, value: Value) -> None:
        if dst.free > 1 and _is_bounded_away_from_zero(value):
            self.charge(Engine.SCALAR, dst.free)
            self.b.activation(dst=dst, data=src, op="reciprocal")
        else:
            self.charge(Engine.VECTOR, 8 * dst.free)
            self.b.reciprocal(dst=dst, data=src)

    def power(self, op: Op) -> None:
        """x**2 is a square; anything else runs on GpSimd, the one engine with a power operation, tile by tile."""
        base, exponent = (self.get(v) for v in op.operands)
        if isinstance(base, float) and isinstance(exponent, float):
            self.values[op.result] = _fold(op, base, exponent)
        elif exponent == 2.0:
            self.activate(op, "square")
        else:
            wide = self.is_wide(op.result)
            x, y = (self.sbuf(self._spread(v) if wide else self.ap(v)) for v in op.operands)
            self.tensor_op(self.dst(op.result), x, y, "power")

    def convert(self, op: Op) -> None:
        """A cast by itself."""
        held = self.get(op.operands[0])
        if isinstance(held, float):
            self.values[op.result] = float(np.array(held, op.result.dtype.numpy))
            return
        source = self.ap(op.operands[0])
        tile = self.dst(op.result)
        source = self._as_wide_as(tile, source)
        if op.result.dtype is bool_:
            self.b.tensor_scalar(dst=tile, data=source, operand0=0.0, op0="not_equal")
        else:
            self.copy(tile, source)

    def select(self, op: Op) -> None:
        """Elements of one of two values; numbers and row values need no tile of their own."""
        pred, on_true, on_false = op.operands
        if not self.is_wide(op.result):
            self._narrow_select(op)
            return
        mask = self._spread(pred)
        if self.is_wide(on_true) and not self.is_wide(on_false):
            data, other = self.ap(on_true), self.narrow_form(on_false)
            self.b.select_reduce(dst=self.dst(op.result), predicate=mask, on_true=data, on_false=other)
        elif self.is_wide(on_false) and not self.is_wide(on_true):
            data, other = self.ap(on_false), self.narrow_form(on_true)
            self.b.select_reduce(
                dst=self.dst(op.result), predicate=mask, on_true=data, on_false=other, reverse_pred=True
            )
        else:
            chosen, rest = self._spread(on_true), self._spread(on_false)
            tile = self.dst(op.result)
            self.copy(tile, rest)
            self.b.tensor_copy_predicated(dst=tile, src=self._in_format_of(tile, chosen), predicate=mask)
        self.charge(Engine.VECTOR, self.frame.cols)

    def _narrow_select(self, op: Op) -> None:
        mask, chosen, rest = (self.ap(v) for v in op.operands)
        tile = self.dst(op.result)
        self.b.tensor_copy(dst=tile, src=rest)
        self.b.tensor_copy_predicated(dst=tile, src=self._in_format_of(tile, chosen), predicate=mask)

    def _in_format_of(self, tile: AP, source: AP) -> AP:
        if source.dtype is tile.dtype:
            return source
        cast = self.temp(self.wide if tile.free > 1 else self.narrow, tile, tile.dtype)
        self.copy(cast, source)
        return cast

    def _spread(self, value: Value) -> AP:
        """A value as [P, F]: what does not vary along the row is read F times over."""
        tile = self.ap(value)
        return tile.with_dims((0, self.frame.cols)) if tile.free != self.frame.cols else tile

    def _as_wide_as(self, dst: AP, src: AP) -> AP:
        return src.with_dims((0, dst.free)) if src.free != dst.free else src

    def clamp(self, op: Op) -> None:
        low, value, high = op.operands
        data = self.ap(value)
        if self.is_wide(low) or self.is_wide(high):
            raised = self.temp(self.wide, data)
            self.tensor_op(raised, data, self._spread(low), "max")
            self.tensor_op(self.dst(op.result), raised, self._spread(high), "min")
            return
        bounds = self.narrow_form(low), self.narrow_form(high)
        self.charge(Engine.VECTOR, self.frame.cols)
        self.b.tensor_scalar(
            dst=self.dst(op.result), data=data, operand0=bounds[0], op0="max", operand1=bounds[1], op1="min"
        )

    def rounding(self, op: Op) -> None:
        """Whole numbers by way of int32, which rounds half to even; floor and ceil correct by one where it overshot."""
        data = self.ap(op.operands[0])
        space = self.wide if data.free > 1 else self.narrow
        whole = self.temp(space, data, int32)
        self.b.tensor_copy(dst=whole, src=data)
        tile = self.dst(op.result)
        if op.name == "round_nearest_even":
            self.copy(tile, whole)
        else:
            over = self.temp(space, data)
            self.tensor_op(over, whole, data, "is_gt" if op.name == "floor" else "is_lt")
            self.tensor_op(tile, whole, over, "subtract" if op.name == "floor" else "add")

    def is_finite(self, op: Op) -> None:
        data = self.ap(op.operands[0])
        space = self.wide if data.free > 1 else self.narrow
        size = self.temp(space, data)
        self.b.activation(dst=size, data=data, op="abs")
        self.b.tensor_scalar(
            dst=self.dst(op.result), data=size, operand0=float(np.finfo(np.float32).max), op0="is_le"
        )

    def shifted(self, op: Op) -> None:
        """exp(x)-1 and log(1+x)."""
        if op.name == "log_plus_one":
            data = self.ap(op.operands[0])
            one = self.loader.constant(1.0, self.frame.rows)
            self.b.activation(dst=self.dst(op.result), data=data, op="log", bias=one)
        else:
            data = self.ap(op.operands[0])
            space = self.wide if data.free > 1 else self.narrow
            grown = self.temp(space, data)
            self.b.activation(dst=grown, data=data, op="exp")
            self.scalar_op(self.dst(op.result), grown, "subtract", 1.0, False)

    def wave(self, op: Op) -> None:
        """sin and cos: the activation engine's sine knows [-pi, pi] only, so whole turns are taken off first."""
        data = self.ap(op.operands[0])
        space = self.wide if data.free > 1 else self.narrow
        turns, rest, whole = self.temp(space, data), self.temp(space, data), self.temp(space, data, int32)
        quarter = 0.25 if op.name == "cosine" else 0.0
        self.b.tensor_scalar(
            dst=turns, data=data, operand0=1 / (2 * math.pi), op0="multiply", operand1=quarter, op1="add"
        )
        self.b.tensor_copy(dst=whole, src=turns)
        self.tensor_op(rest, turns, whole, "subtract")
        self.b.activation(dst=self.dst(op.result), data=rest, op="sin", scale=2 * math.pi)

    def gather(self, op: Op) -> None:
        """Rows of a table by index: one indirect DMA."""
        table, ids = op.operands
        index = self.loader.load_rows(ids, self.frame, int32)
        self.b.dma_copy(
            dst=self.dst(op.result), src=self.loader.table(table, self.frame), index=index, engine=Engine.GPSIMD, queue=2
        )

    def random(self, op: Op) -> None:
        """Uniform numbers in [0, 1) from the hardware's generator: the top 24 of 32 random bits.

        Every row of every sweep has a seed of its own, seed + its number among all rows and streams of the graph, so
        the numbers do not depend on how the loop is cut.
        """
        frame, stream = self.frame, op.attrs["stream"]
        chunks = -(-frame.domain.cols // frame.cols)
        first = (stream * frame.domain.rows + frame.row) * chunks + frame.col // frame.cols + frame.domain.offset
        seed, number = (self.narrow.take(frame.rows, 1, int32) for _ in range(2))
        bits = self.wide.take(frame.rows, frame.cols, uint32)
        self.b.iota(dst=number, pattern=((0, 1),), offset=first % 2**30, channel_multiplier=chunks)
        self.b.tensor_tensor(
            dst=seed, data1=self.ap(op.operands[0]), data2=number, op="add", engine=Engine.GPSIMD,
        )  # fmt: skip
        self.b.rng(dst=bits, seed=seed)
        self.b.tensor_scalar(dst=bits, data=bits, operand0=8, op0="right_shift")
        self.b.tensor_scalar(dst=self.dst(op.result), data=bits, operand0=2.0**-24, op0="multiply")
        self._temps += [(self.narrow, seed), (self.narrow, number), (self.wide, bits)]

    # -- reductions ---------------------------------------------------------------------------------------------
    def reduce(self, op: Op) -> None:
        """Along the row on Vector; over rows on the PE array, which sums partitions by multiplying with ones."""
        data = self._spread(op.operands[0])
        if self.group.classes[op.result] is Class.FINAL:
            self.loader.column_sum(op.result, data, self.frame)
            return
        tile = self._row_sum(op)
        self.charge(Engine.VECTOR, data.free)
        alu = {"add": "add", "maximum": "max", "minimum": "min", "multiply": "multiply", "and": "min", "or": "max"}
        self.b.tensor_reduce(dst=tile, data=data, op=alu[op.attrs["kind"]], axes=1)
        self._combine(op, tile)

    def _row_sum(self, op: Op) -> AP:
        """Where the sum over this sweep's columns goes: the result itself when they are all there are."""
        if self.frame.whole_row:
            return self.dst(op.result)
        return self.narrow.take(self.frame.rows, 1, op.result.dtype)

    def _combine(self, op: Op, part: AP) -> None:
        if self.frame.whole_row:
            return
        alu = {"add": "add", "maximum": "max", "minimum": "min", "multiply": "multiply"}[op.attrs["kind"]]
        if self.frame.first_cols:
            self.rows[op.result] = self.narrow.take(self.frame.rows, 1, op.result.dtype)
            self.b.tensor_copy(dst=self.rows[op.result], src=part)
        else:
            total = self.rows[op.result]
            assert isinstance(total, AP)
            self.b.tensor_tensor(dst=total, data1=total, data2=part, op=alu)
        self.narrow.give(part)

    def store_row(self, value: Value, frame: Frame) -> None:
        """Write out a row value that is kept."""
        self.values, self.frame = dict(self.rows), frame
        self.loader.store(self, value, frame)

    def end_row(self) -> None:
        """Give back what was kept for the rows at hand."""
        for tile in self.rows.values():
            if isinstance(tile, AP):
                self.narrow.give(tile)
        self.rows = {}
        self.loader.end_row()


def _fold(op: Op, x: float, y: float) -> float:
    functions: dict[str, Callable[[Any, Any], Any]] = {
        "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide, "maximum": np.maximum,
        "minimum": np.minimum, "power": np.power,
    }  # fmt: skip
    return float(functions[op.name](np.float32(x), np.float32(y)))


def _is_bounded_away_from_zero(value: Value) -> bool:
    """sqrt(...) plus a positive constant, the divisor of Adam: within the range of the fast reciprocal."""
    op = value.op
    if op is None or op.name != "add":
        return False
    numbers = [_splat(v) for v in op.operands]
    roots = [v.op is not None and v.op.name == "sqrt" for v in op.operands]
    return any(roots) and any(n is not None and n >= SAFE_RECIPROCAL for n in numbers)


def _splat(value: Value) -> float | None:
    while value.op is not None and value.op.name in ("broadcast_in_dim", "reshape"):
        value = value.op.operands[0]
    if value.op is None or value.op.name != "constant" or isinstance(value.op.attrs["value"], np.ndarray):
        return None
    return float(value.op.attrs["value"])


_RULES: dict[str, Callable[[Emitter, Op], None]] = {
    **dict.fromkeys((*ALU, *LOGICAL, "compare"), Emitter.binary),
    **dict.fromkeys((*ACTIVATION, "trn.gelu", "trn.gelu_dx"), Emitter.unary),
    **dict.fromkeys(("floor", "ceil", "round_nearest_even"), Emitter.rounding),
    **dict.fromkeys(("exponential_minus_one", "log_plus_one"), Emitter.shifted),
    **dict.fromkeys(("sine", "cosine"), Emitter.wave),
    "negate": Emitter.negate,
    "not": Emitter.logical_not,
    "divide": Emitter.divide,
    "power": Emitter.power,
    "convert": Emitter.convert,
    "select": Emitter.select,
    "clamp": Emitter.clamp,
    "is_finite": Emitter.is_finite,
    "gather": Emitter.gather,
    "reduce": Emitter.reduce,
    "trn.rng_uniform": Emitter.random,
}


def computable() -> Iterable[str]:
    """Names of the ops that a group of rows can compute."""
    return _RULES.keys()
