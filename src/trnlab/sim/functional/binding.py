# SPDX-License-Identifier: Apache-2.0
"""Lazy binding: a symbol for each loop, behind which the loop is compiled when it is first called.

As in the procedure linkage table of a shared library, a symbol is that of a stub, which jumps to the address in the
loop's cell. At first that is a resolver of the loop's own: it asks Python to compile the loop and to put its address
into the cell, then calls it. So a program pays for the loops that it runs, and no others.

An exception cannot pass through compiled callers. Where Python did not compile, the call returns zero and counts as
unresolved; whoever called compiled code from Python asks for the count before results are used.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import llvmlite.binding as llvm
from llvmlite import ir

from trnlab.loops.kinds import Signature, float32, i64, void

_I64 = ir.IntType(64)
_TYPES = {i64: _I64, float32: ir.FloatType(), void: ir.VoidType()}
_ASK = ir.FunctionType(ir.VoidType(), [_I64])
_RESOLVE = ctypes.CFUNCTYPE(None, ctypes.c_int64)


class Symbol(Protocol):
    """What compiled code calls by its symbol. signature: of int64, float32 and void."""

    symbol: str
    signature: Signature


L = TypeVar("L", bound=Symbol)


class Stubs(Generic[L]):
    """Stubs of loops, known to LLVM by their symbols. resolve: gives the address of a loop, or 0 where it cannot."""

    def __init__(self, loops: Sequence[L], resolve: Callable[[L], int]) -> None:
        self._loops, self._resolve = loops, resolve
        self._callback = _RESOLVE(self._bind)
        module = ir.Module("trnlab_stubs")
        counter = _variable(module, "unresolved", _I64(0))
        ask = _I64(ctypes.cast(self._callback, ctypes.c_void_p).value)
        for number, loop in enumerate(loops):
            arguments = [_TYPES[argument] for argument in loop.signature.arguments]
            kind = ir.FunctionType(_TYPES[loop.signature.returns], arguments)
            _stub(module, loop.symbol, kind, _resolver(module, number, kind, counter, ask))
        self._engine = _engine(module)
        self._counter = self._word(counter.name)
        for loop in loops:
            llvm.add_symbol(loop.symbol, self._engine.get_function_address(loop.symbol))

    def __len__(self) -> int:
        return len(self._loops)

    def _bind(self, number: int) -> None:
        """From now on the loop is called at its own address, if there is one."""
        if address := self._resolve(self._loops[number]):
            self._word(_cell(number)).value = address

    def unresolved(self) -> int:
        """How many calls have returned zero, because their loops could not be compiled."""
        return int(self._counter.value)

    def _word(self, name: str) -> ctypes.c_int64:
        return ctypes.c_int64.from_address(self._engine.get_global_value_address(name))


def _resolver(module: Any, number: int, kind: Any, counter: Any, ask: Any) -> Any:
    """What the cell of a loop holds before the loop's address: have it compiled, then call it."""
    function = ir.Function(module, kind, f"resolve_{number}")
    cell = _variable(module, _cell(number), function)
    builder = ir.IRBuilder(function.append_basic_block())
    builder.call(builder.inttoptr(ask, _ASK.as_pointer()), [_I64(number)])
    address = builder.load_atomic(cell, "acquire", 8)
    with builder.if_then(builder.icmp_unsigned("!=", address, function)):
        _return(builder, builder.call(address, function.args))
    builder.atomic_rmw("add", counter, _I64(1), "seq_cst")
    _return(builder, None if kind.return_type == ir.VoidType() else kind.return_type(0))
    return cell


def _stub(module: Any, symbol: str, kind: Any, cell: Any) -> None:
    function = ir.Function(module, kind, symbol)
    builder = ir.IRBuilder(function.append_basic_block())
    address = builder.load_atomic(cell, "acquire", 8)
    _return(builder, builder.call(address, function.args, tail=True))


def _return(builder: Any, value: Any) -> None:
    if value is None or value.type == ir.VoidType():
        builder.ret_void()
    else:
        builder.ret(value)


def _cell(number: int) -> str:
    return f"cell_{number}"


def _variable(module: Any, name: str, value: Any) -> Any:
    made = ir.GlobalVariable(module, value.type, name)
    made.initializer = value
    return made


def _engine(module: Any) -> Any:
    """Machine code of the module, with jumps where it says tail calls."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=2, jit=True)
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    engine = llvm.create_mcjit_compiler(parsed, machine)
    engine.finalize_object()
    return engine
