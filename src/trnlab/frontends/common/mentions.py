# SPDX-License-Identifier: Apache-2.0
"""Which names a piece of Python code mentions: what it could read of globals, closures, modules and attributes."""

from __future__ import annotations

import dis
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType

_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"})
_ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR", "IMPORT_FROM", "LOAD_SUPER_ATTR"})
_BY_STRING = frozenset(
    {"getattr", "hasattr", "setattr", "delattr", "attrgetter", "methodcaller", "get", "__getattr__"}
)
_ANYTHING = frozenset({"vars", "__dict__", "eval", "exec", "dir", "asdict", "replace", "deepcopy"})


@dataclass(frozen=True)
class Mentions:
    """Names in one code object, nested functions included.

    anything: it looks names up in a way that does not show them, such as `vars(x)` or `getattr(x, name)`.
    """

    globals: frozenset[str]
    attributes: frozenset[str]
    modules: frozenset[str]
    anything: bool


@lru_cache(maxsize=8192)
def mentions(code: CodeType) -> Mentions:
    """What `code` mentions."""
    found: dict[str, set[str]] = {"globals": set(), "attributes": set(), "modules": set()}
    for instruction in dis.get_instructions(code):
        if instruction.opname in _GLOBAL:
            found["globals"].add(instruction.argval)
        elif instruction.opname in _ATTRIBUTE:
            found["attributes"].add(instruction.argval)
        elif instruction.opname == "IMPORT_NAME":
            found["modules"].add(instruction.argval)
    named = found["globals"] | found["attributes"]
    strings = {part for c in code.co_consts if isinstance(c, str) for part in c.split(".") if part.isidentifier()}
    if named & _BY_STRING:
        found["attributes"] |= strings
    anything = bool(named & _ANYTHING) or bool(named & (_BY_STRING - {"get"}) and not strings)
    inner = [mentions(c) for c in code.co_consts if isinstance(c, CodeType)]
    return Mentions(
        frozenset(found["globals"]).union(*(m.globals for m in inner)),
        frozenset(found["attributes"]).union(*(m.attributes for m in inner)),
        frozenset(found["modules"]).union(*(m.modules for m in inner)),
        anything or any(m.anything for m in inner),
    )
