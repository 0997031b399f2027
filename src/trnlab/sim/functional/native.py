# SPDX-License-Identifier: Apache-2.0
"""Loads, stores, bit casts and the matmul micro-kernel as LLVM instructions, for the interpreter's loops.

An address is an int64. `load_f32(base, i)` reads element i of the array at `base`: the base stays loop-invariant,
which is what lets LLVM vectorise the loops. Nothing is bounds-checked here; the builder checked every access
pattern.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from trnlab.loops import External, intrinsic
from trnlab.loops.kinds import i32
from trnlab.loops.vectors import LANES, REGISTERS

_F32, _I64, _I32 = ir.FloatType(), ir.IntType(64), ir.IntType(32)


TILE_N = 2 * LANES  # moving columns of one register tile of the matmul
TILE_M = 8 if REGISTERS == 32 else 4  # stationary columns of it


def _typed(returns: str, *arguments: str) -> Any:
    """A signature of Numba's, which is imported when the first loop is compiled."""
    from numba import types

    return getattr(types, returns)(*(getattr(types, argument) for argument in arguments))


def _loader(kind: str, element: ir.Type, signed: bool | None, streaming: bool) -> Any:
    @intrinsic
    def load(typingctx: Any, base: Any, index: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            value = builder.load(_element(builder, args, element), align=1)
            if streaming:
                value.set_metadata("alias.scope", _scopes(builder.module))
            if signed is None:
                return value
            return builder.sext(value, _I32) if signed else builder.zext(value, _I32)

        return _typed(kind, "int64", "int64"), codegen

    return load


def _storer(kind: str, element: ir.Type, narrow: bool, streaming: bool) -> Any:
    @intrinsic
    def store(typingctx: Any, base: Any, index: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            value = builder.trunc(args[2], element) if narrow else args[2]
            instruction = builder.store(value, _element(builder, args, element), align=1)
            if streaming:
                instruction.set_metadata("noalias", _scopes(builder.module))
            return context.get_dummy_value()

        return _typed("void", "int64", "int64", kind), codegen

    return store


def _element(builder: Any, args: Any, element: ir.Type) -> Any:
    return builder.gep(builder.inttoptr(args[0], element.as_pointer()), [args[1]])


def _scopes(module: Any) -> Any:
    """The scope of all streamed loads, which no streamed store is in."""
    domain = module.add_metadata(["trnlab"])
    return module.add_metadata([module.add_metadata(["trnlab streamed loads", domain])])


_I16, _I8 = ir.IntType(16), ir.IntType(8)

load_f32 = _loader("float32", _F32, None, False)
load_u32 = _loader("uint32", _I32, None, False)
load_i32 = _loader("int32", _I32, None, False)
store_f32 = _storer("float32", _F32, False, False)

# For loops from one array to another: `read_*` and `write_*` promise that nothing written is read later in the same
# function, except element i of the same array before it is written. So a loop in place vectorises like any other.
read_f32 = _loader("float32", _F32, None, True)
read_u32 = _loader("uint32", _I32, None, True)
read_i32 = _loader("int32", _I32, None, True)
read_u16 = _loader("uint32", _I16, False, True)
read_i16 = _loader("int32", _I16, True, True)
read_u8 = _loader("uint32", _I8, False, True)
read_i8 = _loader("int32", _I8, True, True)
write_f32 = _storer("float32", _F32, False, True)
write_u32 = _storer("uint32", _I32, False, True)
write_i32 = _storer("int32", _I32, False, True)
write_u16 = _storer("uint32", _I16, True, True)
write_i16 = _storer("int32", _I16, True, True)
write_u8 = _storer("uint32", _I8, True, True)
write_i8 = _storer("int32", _I8, True, True)


def _bitcast(source: str, target: str, llvm_type: ir.Type) -> Any:
    @intrinsic
    def cast(typingctx: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.bitcast(args[0], llvm_type)

        return _typed(target, source), codegen

    return cast


bits = _bitcast("float32", "uint32", _I32)  # the bits of a float32
from_bits = _bitcast("uint32", "float32", _F32)  # the float32 of some bits


@intrinsic
def fma(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c in float32, rounded once."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.call(_math(builder, "fma", _F32, 3), args)

    return _typed("float32", "float32", "float32", "float32"), codegen


@intrinsic
def sqrt(typingctx: Any, value: Any) -> Any:
    """Correctly rounded float32 square root; NaN below zero."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.call(_math(builder, "sqrt", _F32, 1), args)

    return _typed("float32", "float32"), codegen


@intrinsic
def rint(typingctx: Any, value: Any) -> Any:
    """float32 rounded to the nearest integer, ties to even."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.call(_math(builder, "rint", _F32, 1), args)

    return _typed("float32", "float32"), codegen


@intrinsic
def copy_bytes(typingctx: Any, target: Any, source: Any, count: Any) -> Any:
    """memmove of `count` bytes between two addresses."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        target, source = (builder.inttoptr(address, pointer) for address in args[:2])
        from numba.core import cgutils

        cgutils.raw_memmove(builder, target, source, args[2], 1, align=1)
        return context.get_dummy_value()

    return _typed("void", "int64", "int64", "int64"), codegen


def _math(builder: Any, name: str, kind: ir.Type, arity: int) -> Any:
    suffix = f"v{kind.count}f32" if isinstance(kind, ir.VectorType) else "f32"
    from numba.core import cgutils

    signature = ir.FunctionType(kind, [kind] * arity)
    return cgutils.get_or_insert_function(builder.module, signature, f"llvm.{name}.{suffix}")


@intrinsic
def multiply_tile(typingctx: Any, a: Any, b: Any, c: Any, pitch: Any, depth: Any, fresh: Any) -> Any:
    """c += a.T @ b, or c = a.T @ b when `fresh`, for one register tile.

    a is packed [depth, TILE_M], b [depth, TILE_N]; rows of c are `pitch` bytes apart. Each element of a.T @ b is one
    chain of fused multiply-adds over the depth, from zero on, and is added to c as a whole: the same bits on any
    machine, and the same as if the product were kept and added by another instruction.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        a, b, c, pitch, depth, fresh = args
        vector = ir.VectorType(_F32, LANES)
        cells = [(r, v) for r in range(TILE_M) for v in range(2)]
        rows = [builder.add(c, builder.mul(pitch, _I64(r))) for r in range(TILE_M)]
        where = [builder.inttoptr(builder.add(rows[r], _I64(v * LANES * 4)), vector.as_pointer()) for r, v in cells]
        entry, loop, done = builder.block, builder.append_basic_block("depth"), builder.append_basic_block("done")
        adding, end = builder.append_basic_block("add"), builder.append_basic_block("end")
        builder.branch(loop)
        builder.position_at_end(loop)
        step = builder.phi(_I64)
        sums = [builder.phi(vector) for _ in cells]
        new = _tile_step(builder, vector, a, b, step, sums)
        following = builder.add(step, _I64(1))
        for phi, first, update in zip(
            [step, *sums], [_I64(0), *[ir.Constant(vector, [0.0] * LANES)] * len(cells)], [following, *new]
        ):
            phi.add_incoming(first, entry)
            phi.add_incoming(update, loop)
        builder.cbranch(builder.icmp_signed("<", following, depth), loop, done)
        builder.position_at_end(done)
        builder.cbranch(builder.icmp_signed("!=", fresh, fresh.type(0)), end, adding)
        builder.position_at_end(adding)
        total = [builder.fadd(builder.load(pointer, align=4), value) for pointer, value in zip(where, new)]
        builder.branch(end)
        builder.position_at_end(end)
        results = [builder.phi(vector) for _ in cells]
        for result, pointer, product, summed in zip(results, where, new, total):
            result.add_incoming(product, done)
            result.add_incoming(summed, adding)
            builder.store(result, pointer, align=4)
        return context.get_dummy_value()

    return _typed("void", *["int64"] * 6), codegen


def _tile_step(builder: Any, vector: Any, a: Any, b: Any, step: Any, sums: list[Any]) -> list[Any]:
    """One contraction row: TILE_M broadcasts times two vectors of moving columns."""
    left = builder.gep(builder.inttoptr(a, _F32.as_pointer()), [builder.mul(step, _I64(TILE_M))])
    right = builder.gep(builder.inttoptr(b, vector.as_pointer()), [builder.mul(step, _I64(2))])
    columns = [builder.load(builder.gep(right, [_I64(v)]), align=4) for v in range(2)]
    multiply_add, nothing = _math(builder, "fma", vector, 3), ir.Constant(vector, ir.Undefined)
    everywhere = ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES)
    new = []
    for r in range(TILE_M):
        value = builder.load(builder.gep(left, [_I64(r)]), align=4)
        row = builder.shuffle_vector(builder.insert_element(nothing, value, _I32(0)), nothing, everywhere)
        new += [builder.call(multiply_add, [row, columns[v], sums[2 * r + v]]) for v in range(2)]
    return new


SIDE = 16  # of a tile that is transposed at once


def _transposer(element: ir.Type) -> Any:
    """Tiles of SIDE x SIDE elements, from rows `pitch` bytes apart to rows that are `other` bytes apart."""

    @intrinsic
    def transpose(typingctx: Any, target: Any, other: Any, source: Any, pitch: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            vector, numbers = ir.VectorType(element, SIDE), ir.VectorType(_I32, SIDE)

            def row(start: Any, step: Any, r: int) -> Any:
                return builder.inttoptr(builder.add(start, builder.mul(step, _I64(r))), vector.as_pointer())

            rows = [builder.load(row(args[2], args[3], r), align=1) for r in range(SIDE)]
            half, zipped = SIDE // 2, [i // 2 + i % 2 * SIDE for i in range(2 * SIDE)]
            for _ in range(SIDE.bit_length() - 1):  # rows of both halves, element by element
                rows = [
                    builder.shuffle_vector(
                        rows[i // 2],
                        rows[i // 2 + half],
                        ir.Constant(numbers, [n + i % 2 * half for n in zipped[:SIDE]]),
                    )
                    for i in range(SIDE)
                ]
            for r, value in enumerate(rows):
                builder.store(value, row(args[0], args[1], r), align=1)
            return context.get_dummy_value()

        return _typed("void", *["int64"] * 4), codegen

    return transpose


transpose_u16, transpose_u32 = _transposer(_I16), _transposer(_I32)


@intrinsic
def load_acquire(typingctx: Any, address: Any) -> Any:
    """An int64 that another thread writes; what that thread wrote before it is visible afterwards."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(args[0], _I64.as_pointer()), "acquire", 8)

    return _typed("int64", "int64"), codegen


@intrinsic
def store_release(typingctx: Any, address: Any, value: Any) -> Any:
    """Write an int64 that another thread reads, after everything written so far."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[1], builder.inttoptr(args[0], _I64.as_pointer()), "release", 8)
        return context.get_dummy_value()

    return _typed("void", "int64", "int64"), codegen


@intrinsic
def clock(typingctx: Any) -> Any:
    """The host's cycle counter."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        from numba.core import cgutils

        counter = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_I64, []), "llvm.readcyclecounter")
        return builder.call(counter, [])

    return _typed("int64"), codegen


give_way = External("sched_yield", i32())  # of the C library: let another thread have the core
