# SPDX-License-Identifier: Apache-2.0
"""From a loop to an object: Numba types and lowers it, a wrapper calls it, LLVM optimises both and makes the code.

The wrapper of a loop that Python calls takes two addresses, of its arguments and of its result, both in words as in
`kinds`; it returns Numba's status, zero where no exception was raised. That of a loop behind a symbol has the loop's
signature. Numba's arrays own their memory by a header with a count of references. The headers here are those that
Numba's code expects, and `malloc` makes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from itertools import count
from typing import Any

from llvmlite import ir
from numba.core import compiler
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.core.runtime import nrtdynmod

from trnlab.loops import CompiledLoop, Exported
from trnlab.loops.inlining import Inlined
from trnlab.loops.kinds import Name

types: Any = import_module("numba.core.types")
_I64, _I32, _I8 = ir.IntType(64), ir.IntType(32), ir.IntType(8)
_BYTES, _NOTHING = _I8.as_pointer(), ir.VoidType()
_HEADER = 64  # bytes, of which Numba's code knows the first 40


class _Emitted(JITCodeLibrary):  # type: ignore[misc]
    """What becomes an object, and nothing that this process calls: Numba's own functions keep Numba's memory."""

    def _finalize_final_module(self) -> None:
        self._verify_declare_only_symbols()
        self._finalized = True


def called(loop: CompiledLoop, arguments: tuple[Name, ...], symbol: str) -> tuple[bytes, set[str], str]:
    """Object of a loop that Python calls, the symbols that it needs, and the name of what it returns."""
    dispatcher = loop.dispatcher
    lowered = _lowered(dispatcher.py_func, dispatcher.targetoptions, [name.numba() for name in arguments], None)
    module = _module(symbol)
    _wrap_words(module, lowered, symbol)
    _define_release(module, f"{symbol}_release")
    code, needs = _object(module, lowered, {symbol, f"{symbol}_release"})
    return code, needs, _name(lowered.signature.return_type)


def exported(loop: Exported) -> tuple[bytes, set[str]]:
    """Object of a loop that compiled code calls, and the symbols that it needs."""
    signature = loop.signature.numba()
    options = {"error_model": "numpy", "nopython": True}
    lowered = _lowered(loop.function, options, signature.args, signature.return_type)
    module = _module(loop.symbol)
    _wrap_symbol(module, lowered, loop.symbol)
    return _object(module, lowered, {loop.symbol})


def _lowered(function: Any, options: dict[str, Any], arguments: Any, returns: Any) -> Any:
    """The result of Numba's compiler, up to machine code."""
    flags = compiler.Flags()
    cpu_target.options.parse_as_flags(flags, {name: value for name, value in options.items() if name != "cache"})
    flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    typing, target = cpu_target.typing_context, cpu_target.target_context
    typing.refresh()
    target.refresh()
    return compiler.compile_extra(
        typing, target, function, tuple(arguments), returns, flags, {}, pipeline_class=Inlined
    )


def _module(name: str) -> Any:
    return cpu_target.target_context.codegen()._create_empty_module(name)


def _wrap_words(module: Any, lowered: Any, symbol: str) -> None:
    context, signature = cpu_target.target_context, lowered.signature
    function = ir.Function(module, ir.FunctionType(_I32, [_I64.as_pointer()] * 2), symbol)
    taken, out = function.args
    builder = ir.IRBuilder(function.append_basic_block())
    kind = context.call_conv.get_function_type(signature.return_type, signature.args)
    target = ir.Function(module, kind, lowered.fndesc.llvm_func_name)
    given = (builder.load(builder.gep(taken, [_I64(number)])) for number in count())
    numbers = [word for argument in signature.args for word in _taken(builder, argument, given)]
    words = [_from_word(builder, word, argument) for word, argument in zip(numbers, kind.args[2:], strict=True)]
    result = builder.alloca(kind.args[0].pointee)
    builder.store(ir.Constant(kind.args[0].pointee, None), result)
    raised = builder.alloca(kind.args[1].pointee)
    status = builder.call(target, [result, raised, *words])
    with builder.if_then(builder.icmp_signed("==", status, _I32(-2))):  # it returned None
        builder.ret(_I32(0))
    for number, leaf in enumerate(_leaves(builder, builder.load(result))):
        builder.store(_to_word(builder, leaf), builder.gep(out, [_I64(number)]))
    builder.ret(status)


def _taken(builder: Any, kind: Any, given: Iterator[Any]) -> list[Any]:
    """What Numba takes of an argument, each as a number: of an array what NumPy's ABI has behind the address that was
    given, and no owner."""
    if isinstance(kind, types.BaseTuple):
        return [word for part in kind.types for word in _taken(builder, part, given)]
    if isinstance(kind, types.NoneType):
        return []
    word = next(given)
    if not isinstance(kind, types.Array):
        return [word]

    def at(address: Any, number: int) -> Any:
        return builder.load(builder.gep(builder.inttoptr(address, _I64.as_pointer()), [_I64(number)]))

    lengths, strides = ([at(at(word, place), i) for i in range(kind.ndim)] for place in (2, 3))
    size = _I64(1)
    for length in lengths:
        size = builder.mul(size, length)
    itemsize = cpu_target.target_context.get_abi_sizeof(cpu_target.target_context.get_data_type(kind.dtype))
    return [_I64(0), _I64(0), size, _I64(itemsize), at(word, 0), *lengths, *strides]


def _from_word(builder: Any, word: Any, kind: Any) -> Any:
    if isinstance(kind, ir.PointerType):
        return builder.inttoptr(word, kind)
    if isinstance(kind, ir.FloatType):
        return builder.bitcast(builder.trunc(word, _I32), kind)
    if isinstance(kind, ir.DoubleType):
        return builder.bitcast(word, kind)
    return word if kind == _I64 else builder.trunc(word, kind)


def _to_word(builder: Any, value: Any) -> Any:
    kind = value.type
    if isinstance(kind, ir.PointerType):
        return builder.ptrtoint(value, _I64)
    if isinstance(kind, ir.FloatType):
        return builder.sext(builder.bitcast(value, _I32), _I64)
    if isinstance(kind, ir.DoubleType):
        return builder.bitcast(value, _I64)
    if kind == _I64:
        return value
    return builder.zext(value, _I64) if kind.width in (1, 8) else builder.sext(value, _I64)


def _leaves(builder: Any, value: Any) -> list[Any]:
    """The numbers and pointers of an aggregate, in order."""
    kind = value.type
    if isinstance(kind, ir.ArrayType):
        count = kind.count
    elif isinstance(kind, (ir.LiteralStructType, ir.IdentifiedStructType)):
        count = len(kind.elements)
    else:
        return [value]
    return [leaf for i in range(count) for leaf in _leaves(builder, builder.extract_value(value, i))]


def _wrap_symbol(module: Any, lowered: Any, symbol: str) -> None:
    context, signature = cpu_target.target_context, lowered.signature
    kinds = {types.int64: _I64, types.float32: ir.FloatType(), types.void: _NOTHING, types.none: _NOTHING}
    kind = ir.FunctionType(kinds[signature.return_type], [kinds[argument] for argument in signature.args])
    function = ir.Function(module, kind, symbol)
    builder = ir.IRBuilder(function.append_basic_block())
    target = ir.Function(
        module,
        context.call_conv.get_function_type(signature.return_type, signature.args),
        lowered.fndesc.llvm_func_name,
    )
    _, result = context.call_conv.call_function(builder, target, signature.return_type, signature.args, function.args)
    if kind.return_type == _NOTHING:
        builder.ret_void()
    else:
        builder.ret(result)


def _define_release(module: Any, symbol: str) -> None:
    """What gives up an array that was returned, which nobody else has: the last to do so frees the memory."""
    function = ir.Function(module, ir.FunctionType(_NOTHING, [_I64]), symbol)
    builder = ir.IRBuilder(function.append_basic_block())
    count = builder.inttoptr(function.args[0], _I64.as_pointer())
    left = builder.sub(builder.load(count), _I64(1))
    builder.store(left, count)
    with builder.if_then(builder.icmp_signed("==", left, _I64(0))):
        free = ir.Function(module, ir.FunctionType(_NOTHING, [_BYTES]), "free")
        builder.call(free, [builder.bitcast(count, _BYTES)])
    builder.ret_void()


def _memory(module: Any) -> None:
    """What Numba's code asks for memory, and gives it back to."""
    malloc = ir.Function(module, ir.FunctionType(_BYTES, [_I64]), "malloc")
    free = ir.Function(module, ir.FunctionType(_NOTHING, [_BYTES]), "free")
    make = ir.Function(module, ir.FunctionType(_BYTES, [_I64, _I32]), "NRT_MemInfo_alloc_aligned")
    builder = ir.IRBuilder(make.append_basic_block())
    size, align = make.args[0], builder.zext(make.args[1], _I64)
    block = builder.call(malloc, [builder.add(builder.add(size, align), _I64(_HEADER))])
    with builder.if_then(builder.icmp_unsigned("==", block, ir.Constant(_BYTES, None))):
        builder.ret(block)
    header = builder.bitcast(block, nrtdynmod._meminfo_struct_type.as_pointer())
    after = builder.add(builder.ptrtoint(block, _I64), builder.add(align, _I64(_HEADER - 1)))
    data = builder.inttoptr(builder.and_(after, builder.neg(align)), _BYTES)
    nothing = ir.Constant(_BYTES, None)
    for at, value in enumerate((_I64(1), nothing, nothing, data, size)):
        builder.store(value, builder.gep(header, [_I32(0), _I32(at)]))
    builder.ret(block)
    give_back = ir.Function(module, ir.FunctionType(_NOTHING, [_BYTES]), "NRT_MemInfo_call_dtor")
    builder = ir.IRBuilder(give_back.append_basic_block())
    builder.call(free, [give_back.args[0]])
    builder.ret_void()


def _object(module: Any, lowered: Any, keep: set[str]) -> tuple[bytes, set[str]]:
    """Machine code of the wrapper, the loop, and what it calls; and the symbols that are still open."""
    with global_compiler_lock:
        return _emitted(module, lowered, keep)


def _emitted(module: Any, lowered: Any, keep: set[str]) -> tuple[bytes, set[str]]:
    codegen = cpu_target.target_context.codegen()
    library = _Emitted(codegen, module.name)
    library.add_ir_module(module)
    memory = _Emitted(codegen, f"{module.name} memory")
    own = _module(f"{module.name} memory")
    _memory(own)
    library.add_linking_library(lowered.library)
    memory.add_ir_module(own)
    memory.finalize()
    library.add_linking_library(memory)
    library.finalize()
    final = library._final_module
    needs = set()
    for function in final.functions:
        if function.is_declaration:
            if not function.name.startswith("llvm."):
                needs.add(function.name)
        elif function.name not in keep:
            function.linkage = "internal"
    for variable in final.global_variables:
        if not variable.is_declaration:
            variable.linkage = "internal"
    return codegen._tm.emit_object(final), needs


def _name(kind: Any) -> str:
    """The name of a type, as `kinds.name_of` has it."""
    if isinstance(kind, types.Array):
        return f"{kind.dtype if kind.dtype != types.boolean else 'bool'}:{kind.ndim}{kind.layout}"
    if isinstance(kind, types.BaseNamedTuple):
        own = f"{kind.instance_class.__module__}.{kind.instance_class.__qualname__}"
        return f"{own}({', '.join(map(_name, kind.types))})"
    if isinstance(kind, types.BaseTuple):
        return f"({', '.join(map(_name, kind))})"
    return {"boolean": "bool"}.get(str(kind), str(kind))
