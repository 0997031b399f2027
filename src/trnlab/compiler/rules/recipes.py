# SPDX-License-Identifier: Apache-2.0
"""Short names for the instructions that a function of several is written in: `TileRecipe(e, x).fused(...)`.

Every method emits one instruction into a tile that is free again once the op at hand is done.

Shape letters: P partition (rows of the tile), F free (columns of the tile).
"""

from __future__ import annotations

from collections.abc import Sequence

from trnlab.compiler.emission.emitter import Emitter, Narrow
from trnlab.graph.ir import Op, Value
from trnlab.isa.base import Engine
from trnlab.numerics.dtypes import DType, bool_, float32, uint32
from trnlab.program import AP

WHOLE = 1.5 * 2.0**23
"""x + WHOLE - WHOLE is x rounded to a whole number, ties to even, for |x| <= 2^22: the sum has no fraction bits."""
SIGN, MAGNITUDE = 0x80000000, 0x7FFFFFFF


class TileRecipe:
    """Instructions on tiles of one shape, fp32 unless said otherwise."""

    def __init__(self, e: Emitter, *, wide: bool) -> None:
        self.e, self.b, self.is_wide = e, e.b, wide
        self._space, self._free = (e.wide, e.frame.cols) if wide else (e.narrow, 1)

    def tile(self, dtype: DType = float32) -> AP:
        """A temporary tile."""
        tile = self._space.take(self.e.frame.rows, self._free, dtype)
        self.e.give_later(self._space, tile)
        return tile

    def scalars(
        self,
        x: AP,
        op0: str,
        n0: Narrow | None,
        op1: str | None = None,
        n1: Narrow | None = None,
        dtype: DType = float32,
        dst: AP | None = None,
    ) -> AP:
        """(x op0 n0) op1 n1."""
        dst = self.tile(dtype) if dst is None else dst
        self.e.charge(Engine.VECTOR, dst.free)
        self.b.tensor_scalar(dst=dst, data=x, operand0=n0, op0=op0, operand1=n1, op1=op1)
        return dst

    def less(self, n: float, x: AP) -> AP:
        """n - x."""
        dst = self.tile()
        self.e.charge(Engine.VECTOR, dst.free)
        self.b.tensor_scalar(dst=dst, data=x, operand0=n, op0="subtract", reverse0=True)
        return dst

    def fused(
        self,
        x: AP,
        op0: str,
        n0: Narrow,
        op1: str,
        y: AP,
        *,
        reverse: bool = False,
        dtype: DType = float32,
        dst: AP | None = None,
    ) -> AP:
        """(x op0 n0) op1 y; reversed, y op1 (x op0 n0)."""
        dst = self.tile(dtype) if dst is None else dst
        self.e.charge(Engine.VECTOR, 2 * dst.free)
        self.b.scalar_tensor_tensor(dst=dst, data=x, operand0=n0, op0=op0, operand1=y, op1=op1, reverse1=reverse)
        return dst

    def pair(self, x: AP, op: str, y: AP, dtype: DType = float32, dst: AP | None = None) -> AP:
        """x op y."""
        dst = self.tile(dtype) if dst is None else dst
        self.e.tensor_op(dst, x, y, op)
        return dst

    def function(self, x: AP, name: str, scale: Narrow = 1.0, bias: float = 0.0, dst: AP | None = None) -> AP:
        """name(x * scale + bias) on the Scalar engine."""
        dst = self.tile() if dst is None else dst
        extra = {"bias": self.e.loader.constant(bias, self.e.frame.rows)} if bias else {}
        self.e.charge(Engine.SCALAR, dst.free)
        self.b.activation(dst=dst, data=x, op=name, scale=scale, **extra)
        return dst

    def reciprocal(self, x: AP) -> AP:
        """1 / x, rounded once."""
        dst = self.tile()
        self.e.charge(Engine.VECTOR, 8 * dst.free)
        self.b.reciprocal(dst=dst, data=x)
        return dst

    def where(self, x: AP, op: str, n: float, *, magnitude: bool = False) -> AP:
        """The mask of x op n, or of |x| op n; no comparison with NaN holds."""
        if magnitude:
            return self.scalars(x, "abs", 0.0, op, n, bool_)
        return self.scalars(x, op, n, dtype=bool_)

    def replace(self, dst: AP, mask: AP, source: AP | int) -> AP:
        """dst, with what `source` holds where the mask does; the rest stays as it is."""
        self.e.charge(Engine.VECTOR, dst.free)
        self.b.tensor_copy_predicated(dst=dst, src=source, predicate=mask)
        return dst

    def float32(self, x: AP) -> AP:
        """x in an fp32 tile of its own shape, so that its bits can be looked at and its values replaced."""
        if x.dtype is float32:
            return x
        dst = self.tile()
        self.e.copy(dst, x)
        return dst

    # -- bits and 32-bit integers ---------------------------------------------------------------------------------
    def bits(
        self, x: AP, op0: str, n0: int, op1: str | None = None, n1: int | None = None, dst: AP | None = None
    ) -> AP:
        """(x op0 n0) op1 n1 on bits, as uint32."""
        dst = self.tile(uint32) if dst is None else dst.cast(uint32)
        self.e.charge(Engine.VECTOR, dst.free)
        self.b.tensor_scalar(dst=dst, data=x.cast(uint32), operand0=n0, op0=op0, operand1=n1, op1=op1)
        return dst

    def bit_pair(self, x: AP, op: str, y: AP, dst: AP | None = None) -> AP:
        """x op y on bits, as uint32."""
        dst = self.tile(uint32) if dst is None else dst.cast(uint32)
        self.e.charge(Engine.VECTOR, 2 * dst.free)
        self.b.tensor_tensor(dst=dst, data1=x.cast(uint32), data2=y.cast(uint32), op=op, engine=Engine.VECTOR)
        return dst

    def whole(self, x: AP, op: str, y: AP) -> AP:
        """x op y on 32-bit integers, wrapping, on GpSimd."""
        dst = self.tile(uint32)
        self.b.tensor_tensor(dst=dst, data1=x.cast(uint32), data2=y.cast(uint32), op=op, engine=Engine.GPSIMD)
        return dst

    def filled(self, number: int) -> AP:
        """A 32-bit number in every element."""
        dst = self.tile(uint32)
        self.b.memset(dst=dst, value=number)
        return dst

    def with_sign(self, magnitude: AP, x: AP, dst: AP | None = None) -> AP:
        """`magnitude`, which has the sign of x or none, with the sign of x."""
        sign = self.bits(x, "bitwise_and", SIGN)
        result = self.bit_pair(magnitude, "bitwise_or", sign, dst)
        return result.cast(float32)


class ResultRecipe(TileRecipe):
    """The recipe of an op's result: `operands` as tiles of its width, `out` an fp32 tile to compute it in."""

    def __init__(self, e: Emitter, op: Op, operands: Sequence[Value] | None = None) -> None:
        super().__init__(e, wide=e.is_wide(op.result))
        read = op.operands if operands is None else operands
        self.operands = [e.spread(v) if self.is_wide else e.ap(v) for v in read]
        self._dst = e.dst(op.result)
        self.out = self._dst if self._dst.dtype is float32 else self.tile()

    def done(self) -> None:
        """The result is in `out`: give it its format."""
        if self.out is not self._dst:
            self.e.copy(self._dst, self.out)
