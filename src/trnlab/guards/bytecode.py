# SPDX-License-Identifier: Apache-2.0
"""Which names a piece of Python code mentions, from its bytecode: globals, closures, modules, attributes.

The only place that knows opcodes. A name is mentioned where the code reads, sets or deletes it: what is set may be
read later.
"""

from __future__ import annotations

import dis
import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any

_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_SET_GLOBAL = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL"})
_CELL = frozenset({"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"})
_CHAIN = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_ATTRIBUTE = _CHAIN | {"STORE_ATTR", "DELETE_ATTR", "IMPORT_FROM", "LOAD_SUPER_ATTR"}
_IGNORED = frozenset({"EXTENDED_ARG", "CACHE"})
_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))
_CALL = "PRECALL" if "PRECALL" in dis.opmap else "CALL"  # the first to find all arguments on the stack
# Functions that are given the name of an attribute, and which argument it is; None: each.
_BY_STRING = {
    "getattr": 1,
    "hasattr": 1,
    "setattr": 1,
    "delattr": 1,
    "__getattr__": 0,
    "__getattribute__": -1,  # of a class or of an object, which have it elsewhere
    "attrgetter": None,
    "methodcaller": 0,
}
_OF_MAPPINGS = frozenset({"get"})  # `vars(x).get("scale")`
_FORMATS = frozenset({"format", "format_map"})  # `"{0.scale}".format(x)`
_ANY_ATTRIBUTE = frozenset(
    {
        "vars",
        "__dict__",
        "eval",
        "exec",
        "dir",
        "asdict",
        "astuple",
        "replace",
        "deepcopy",
        "pickle",
        "getattr_static",
        "getmembers",
        "__getstate__",
        "__reduce__",
        "__reduce_ex__",
    }
)
_ANY_GLOBAL = frozenset({"globals", "__globals__"})
_IMPORTERS = frozenset({"import_module", "__import__"})
_WORD = re.compile(r"[^\W\d]\w*")


@dataclass(frozen=True)
class NameRead:
    """A name that code reads from outside, and the attributes read of it at once. kind: "global" or "cell"."""

    kind: str
    name: str
    attributes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Import:
    """An import statement: `from ..module import names` has level 2; without `from` there are no names."""

    module: str
    level: int = 0
    names: tuple[str, ...] = ()

    def modules(self, namespace: Mapping[str, Any]) -> tuple[str, ...]:
        """The full names of the modules that code with these globals reads: of `import a.b` both."""
        if not self.level:
            parts = self.module.split(".")
            return (self.module,) if self.names else tuple(".".join(parts[: i + 1]) for i in range(len(parts)))
        package = namespace.get("__package__")
        if not isinstance(package, str):
            name = str(namespace.get("__name__", ""))
            package = name if "__path__" in namespace else name.rpartition(".")[0]
        base = package.rsplit(".", self.level - 1)[0]
        return (f"{base}.{self.module}" if self.module else base,)


@dataclass(frozen=True)
class ReferencedNames:
    """Names in one code object, those of functions that are defined inside of it included."""

    reads: tuple[NameRead, ...]  # what is read from outside
    imports: tuple[Import, ...]
    # globals, attributes: all names of these kinds that are mentioned
    globals: frozenset[str]
    attributes: frozenset[str]
    # any_attribute, any_global: it looks names up in a way that does not show them, such as `vars(x)` or
    # `getattr(x, name)`
    any_attribute: bool
    any_global: bool


@functools.lru_cache(maxsize=8192)
def referenced_names(code: CodeType) -> ReferencedNames:
    """What `code` mentions."""
    instructions = [i for i in dis.get_instructions(code) if i.opname not in _IGNORED]
    reads: dict[NameRead, None] = {}
    imports: dict[Import, None] = {}
    globals_, attributes, hidden = set[str](), set[str](), False
    for at, instruction in enumerate(instructions):
        name, opname = instruction.argval, instruction.opname
        if opname in _GLOBAL:
            reads[NameRead("global", name, tuple(_chain(instructions, at + 1)))] = None
        elif opname in _CELL and name in code.co_freevars:
            reads[NameRead("cell", name, tuple(_chain(instructions, at + 1)))] = None
        elif opname in _SET_GLOBAL:
            globals_.add(name)
        elif opname == "IMPORT_NAME":
            names, level = instructions[at - 1].argval or (), instructions[at - 2].argval
            imports[Import(name, level, tuple(names))] = None
        elif opname == "MATCH_CLASS":  # the names of attributes are a constant; by position, the class has them
            attributes.update(instructions[at - 1].argval)
            hidden |= name > 0
        if opname in _ATTRIBUTE:
            attributes.add(name)
        if name.__class__ is str and name in _BY_STRING and opname in _GLOBAL | _CHAIN:
            hidden |= not _says_the_name(instructions, at + 1, _BY_STRING[name])
    globals_ |= {read.name for read in reads if read.kind == "global"}
    own = ReferencedNames(tuple(reads), tuple(imports), frozenset(globals_), frozenset(attributes), hidden, False)
    inner = [referenced_names(c) for c in code.co_consts if isinstance(c, CodeType)]
    return _with_inner(_with_strings(own, code), inner, code.co_freevars)


def _chain(instructions: list[dis.Instruction], at: int) -> Iterator[str]:
    while at < len(instructions) and instructions[at].opname in _CHAIN:
        yield instructions[at].argval
        at += 1


def _says_the_name(instructions: list[dis.Instruction], at: int, position: int | None) -> bool:
    """Whether a function that was loaded just before is called, and the argument at the position is a constant.

    The depth of the stack tells its arguments from those of calls inside of them.
    """
    depth, constant = 0, dict[int, bool]()
    for instruction in instructions[at:]:
        count = instruction.arg or 0
        if instruction.opname == _CALL and depth == count:
            return all(constant.values()) if position is None else constant.get(position, False)
        if instruction.opcode in _JUMPS or instruction.opname == "RETURN_VALUE":
            return False
        before, depth = depth, depth + dis.stack_effect(instruction.opcode, instruction.arg, jump=False)
        if depth < 0:
            return False
        constant[depth - 1] = instruction.opname == "LOAD_CONST" and depth == before + 1
    return False


def _with_strings(own: ReferencedNames, code: CodeType) -> ReferencedNames:
    """What code may read by strings in it, and by other ways that do not show the name."""
    named = own.globals | own.attributes
    strings = [c for c in code.co_consts if isinstance(c, str)]
    attributes = set(own.attributes)
    if named & (_BY_STRING.keys() | _OF_MAPPINGS):
        attributes.update(part for c in strings for part in c.split(".") if part.isidentifier())
    if named & _FORMATS:
        attributes.update(word for c in strings if "{" in c for word in _WORD.findall(c))
    by_name = any(read.name == "sys" and read.attributes[:1] == ("modules",) for read in own.reads)
    imports = own.imports
    if by_name or named & _IMPORTERS:
        imports += tuple(Import(c) for c in strings if all(part.isidentifier() for part in c.split(".")))
    any_attribute = own.any_attribute or bool(named & _ANY_ATTRIBUTE)
    any_global = (by_name and "__name__" in own.globals) or bool(named & _ANY_GLOBAL)
    return ReferencedNames(own.reads, imports, own.globals, frozenset(attributes), any_attribute, any_global)


def _with_inner(own: ReferencedNames, inner: list[ReferencedNames], free: tuple[str, ...]) -> ReferencedNames:
    reads = (r for m in inner for r in m.reads if r.kind != "cell" or r.name in free)
    return ReferencedNames(
        tuple(dict.fromkeys((*own.reads, *reads))),
        tuple(dict.fromkeys((*own.imports, *(i for m in inner for i in m.imports)))),
        own.globals.union(*(m.globals for m in inner)),
        own.attributes.union(*(m.attributes for m in inner)),
        own.any_attribute or any(m.any_attribute for m in inner),
        own.any_global or any(m.any_global for m in inner),
    )
