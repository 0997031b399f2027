# SPDX-License-Identifier: Apache-2.0
"""Functions of nki.isa made from the declarations of instructions, for those that need nothing but to be recorded.

A declaration in `trnlab.isa` names operands and attributes; a kernel calls the instruction with these names,
destinations first. The function is compiled from a few lines of source, as `dataclasses` makes methods, so that its
signature, its refusals of wrong arguments and its speed are those of a function that is written out.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping
from inspect import Parameter, cleandoc
from pathlib import Path
from typing import Any

from trnlab.isa.activations import ACTIVATIONS
from trnlab.isa.alu import ALIASES, ALU
from trnlab.isa.base import Engine, Instruction, OperandSpec
from trnlab.lang import instructions as ins
from trnlab.lang.tensor import Tensor
from trnlab.nki.enums import chip_engine, engine
from trnlab.nki.handles import NkiInstruction, number
from trnlab.nki.operators import alu_name, function_name

_NAMED, _EMPTY = Parameter.POSITIONAL_OR_KEYWORD, Parameter.empty


def is_callable(instr: Instruction) -> bool:
    """Whether kernels may call it by name in nki.isa: all but collectives, which nki.collectives has."""
    return Engine.CC not in instr.engines


def operands(instr: Instruction) -> list[OperandSpec]:
    """The operands that a kernel passes; the rest (registers of an engine, indices) the recorder adds."""
    return [spec for spec in instr.operands if not (spec.optional and (spec.state or spec.index_of))]


def parameters(instr: Instruction) -> list[Parameter]:
    """What a kernel passes, in order: what `Instruction.required` names, then the rest with its defaults.

    An instruction that several engines execute takes `engine`; every one takes `name`, its label.
    """
    passed = operands(instr)
    required = instr.required or tuple(spec.name for spec in passed if not spec.optional)
    defaults = {spec.name: instr.attrs.get(spec.name) for spec in passed} | dict(instr.attrs)
    made = [Parameter(name, _NAMED) for name in required]
    made += [Parameter(name, _NAMED, default=value) for name, value in defaults.items() if name not in required]
    if len(instr.engines) > 1:
        made.append(Parameter("engine", _NAMED, default=engine.unknown))
    made.append(Parameter("name", _NAMED, default=None))
    kinds = {spec.name: Any if spec.immediate else Tensor for spec in passed} | {"engine": engine, "name": str | None}
    return [p.replace(annotation=kinds.get(p.name, Any)) for p in made]


def is_declared(function: Any) -> bool:
    """Whether this is a function that was made from a declaration."""
    return "<" in getattr(getattr(function, "__code__", None), "co_filename", "")


def function(instr: Instruction, module: str) -> Callable[..., NkiInstruction]:
    """The function that records the instruction, as if `module` had defined it; it returns the handle."""
    signature = parameters(instr)
    known: dict[str, Any] = {"_record": ins.record, "_engine": chip_engine, "_Handle": NkiInstruction}
    given = []
    for p in signature[: -2 if len(instr.engines) > 1 else -1]:
        convert = _conversion(instr, p.name)
        known[f"_as_{p.name}"] = convert
        given.append(f"{p.name!r}: {f'_as_{p.name}({p.name})' if convert else p.name}")
    on = "_engine(engine)" if len(instr.engines) > 1 else "None"
    body = [f"_record({instr.name!r}, {on}, {{{', '.join(given)}}})", "return _Handle(name)"]
    return defined(instr, module, signature, body, known, NkiInstruction)


def defined(
    instr: Instruction,
    module: str,
    signature: list[Parameter],
    body: list[str],
    known: Mapping[str, Any],
    returns: Any,
) -> Callable[..., Any]:
    """A function with the name and the text of the instruction. known: what its lines, `body`, refer to."""
    scope = {
        "__name__": module,
        **known,
        **{f"_default_{p.name}": p.default for p in signature if p.default is not _EMPTY},
    }
    lines = [f"def {instr.name}({', '.join(_written(signature))}):", *(f"    {line}" for line in body)]
    source = "".join(f"{line}\n" for line in lines)
    file = str(Path(__file__).with_name(f"<{module}.{instr.name}>"))
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file  # for tracebacks
    exec(compile(source, file, "exec", dont_inherit=True), scope)
    made: Any = scope[instr.name]
    made.__doc__ = cleandoc(instr.__doc__ or "")
    made.__annotations__ = {p.name: p.annotation for p in signature if p.annotation is not _EMPTY}
    made.__annotations__["return"] = returns
    return made  # type: ignore[no-any-return]


def _written(signature: list[Parameter]) -> list[str]:
    """The parameters as they stand in a definition; a default is looked up under the parameter's name."""
    written, keywords = [], False
    for p in signature:
        if p.kind is Parameter.KEYWORD_ONLY and not keywords:
            written.append("*")
            keywords = True
        stars = "**" if p.kind is Parameter.VAR_KEYWORD else ""
        written.append(f"{stars}{p.name}" + ("" if p.default is _EMPTY else f"=_default_{p.name}"))
    return written


def _conversion(instr: Instruction, name: str) -> Callable[[Any], Any] | None:
    """What makes the value that the instruction takes of the one that a kernel passes; None for the value itself.

    A number in the place of one value per partition becomes a float. An attribute is what its default is: an
    operator, a function, another word, which may be passed as a member of an enumeration, or a tuple.
    """
    spec = next((s for s in instr.operands if s.name == name), None)
    if spec is not None:
        return number if spec.immediate and spec.is_scalar else None
    default = instr.attrs.get(name)
    if isinstance(default, tuple):
        return tuple
    if not isinstance(default, str):
        return None
    if default in ALU or default in ALIASES:
        return alu_name
    return function_name if default in ACTIVATIONS else _word


def _word(value: Any) -> Any:
    return getattr(value, "name", value)
