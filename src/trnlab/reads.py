# SPDX-License-Identifier: Apache-2.0
"""Which names a function reads, from its bytecode, and which code belongs to installed packages."""

from __future__ import annotations

import dis
import functools
import os
import site
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_CELL = ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF")
_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
_IGNORED = ("EXTENDED_ARG", "CACHE", "PRECALL")
OURS = str(Path(__file__).parent) + os.sep


@dataclass(frozen=True)
class Read:
    """A name that code reads, and attributes read of it. kind: "global", "cell", or "module", which is imported."""

    kind: str
    name: str
    attributes: tuple[str, ...] = ()


@functools.lru_cache(maxsize=8192)
def reads_of(code: CodeType) -> tuple[Read, ...]:
    """The names that code reads from outside, and the functions defined inside of it, each once."""
    found: dict[Read, None] = {}
    instructions = [i for i in dis.get_instructions(code) if i.opname not in _IGNORED]
    for at, instruction in enumerate(instructions):
        kind = _kind(instruction.opname)
        if kind == "module":
            found.update((read, None) for read in _imports(instructions, at))
        elif kind is not None and (kind != "cell" or instruction.argval in code.co_freevars):
            found[Read(kind, instruction.argval, tuple(_attributes(instructions, at + 1)))] = None
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner = reads_of(constant)
            found.update((read, None) for read in inner if read.kind != "cell" or read.name in code.co_freevars)
    return tuple(found)


def _kind(opname: str) -> str | None:
    if opname in _GLOBAL:
        return "global"
    if opname in _CELL:
        return "cell"
    return "module" if opname == "IMPORT_NAME" else None


def _attributes(instructions: list[dis.Instruction], at: int) -> Iterator[str]:
    while at < len(instructions) and instructions[at].opname in _ATTRIBUTE:
        yield instructions[at].argval
        at += 1


def _imports(instructions: list[dis.Instruction], at: int) -> Iterator[Read]:
    """What `import a.b` or `from a import x, y` in the body of a function reads."""
    module = instructions[at].argval
    names = []
    for following in instructions[at + 1 :]:
        if following.opname == "IMPORT_FROM":
            names.append(following.argval)
        elif not following.opname.startswith("STORE_"):
            break
    if not names:
        yield Read("module", module)
    for name in names:
        yield Read("module", module, (name,))


@functools.cache
def _installed() -> tuple[str, ...]:
    """Folders of installed packages, the innermost first."""
    paths = sysconfig.get_paths()
    folders = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [*site.getsitepackages(), site.getusersitepackages()]
    unique = {f"{Path(folder)}{os.sep}" for folder in folders} | {OURS}
    return tuple(sorted(unique, key=len, reverse=True))


@functools.lru_cache(maxsize=8192)
def package_of(file: str) -> str | None:
    """The installed package that a source file belongs to, by its folder or file; None for code of the user's own."""
    if file.startswith("<frozen"):
        return file
    for folder in _installed():
        if file.startswith(folder):
            return folder + file[len(folder) :].split(os.sep)[0] if folder != OURS else OURS
    return None


def file_of(module: Any) -> str:
    """Where a module's code is. What has no file is part of the interpreter, but for the main module."""
    named = getattr(module, "__name__", "")
    return getattr(module, "__file__", None) or ("" if named == "__main__" else "<frozen>")
