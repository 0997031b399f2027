# SPDX-License-Identifier: Apache-2.0
"""Guards: what the code of a function may read besides its arguments, and whether it has changed since.

    guards = Guards({"the loss": function})     # before the function is traced
    ...
    guards.failed()                             # None, or 'SCALE of train.py was 2.0, is 3.0'

A trace (a recorded kernel, a captured training step) is what Python did once. It may be used again as long as
everything that Python read is as it was. What it reads is found from the bytecode, before it runs: globals, cells of
closures, attributes of modules and objects that these reach (`config.tile.size`), defaults, and the same for every
function, method and class that is reached so, through decorators, partial applications and containers. Properties are
not run: where a chain of attributes meets one, the object counts as a whole. The code of installed packages is taken
as fixed; data that the user's code reads from them are not.

Not seen: modules looked up by a name that is put together at run time, files, the clock.
"""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Hashable, Iterable, Mapping
from itertools import repeat
from operator import is_
from pathlib import Path
from types import CellType, FunctionType, GetSetDescriptorType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np

from trnlab.guards.bytecode import Import, NameRead, referenced_names
from trnlab.guards.installed import OURS, file_of, package_of
from trnlab.guards.kinds import ENVIRONMENT, ENVIRONMENTS
from trnlab.guards.snapshot import IdentitySnapshot, SnapshotReader, StandIn, TreeSnapshot, difference

_MISSING = object()
_EVALUATE = frozenset({"eval", "exec"})  # what these run may read any global
_SLOTS = (MemberDescriptorType, GetSetDescriptorType)
_DATA = (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, np.ndarray, np.generic)


class _Names:
    """Names of one namespace that were read, and the objects that they stood for."""

    def __init__(self, namespace: Mapping[str, Any], counted: bool) -> None:
        self.namespace, self.known = namespace, dict[str, Any]()
        self.size = len(namespace) if counted else None

    def same(self) -> bool:
        """Whether every name still stands for the very same object."""
        if self.size is not None and len(self.namespace) != self.size:
            return False
        return all(map(is_, map(self.namespace.get, self.known, repeat(_MISSING)), self.known.values()))


class Guards:
    """What was read, as it is now.

    roots: functions, or objects that hold some, under names for people. reached: more functions and classes that may
    run. stand_in: see `trnlab.guards.snapshot`. `key` is a hashable form of all that was read; where `stable` is
    false it can never be equal again.
    """

    def __init__(
        self, roots: Mapping[str, Any], reached: Iterable[Any] = (), stand_in: StandIn | None = None
    ) -> None:
        self._roots, self._reached, self._stand_in = dict(roots), tuple(reached), stand_in
        self._names: dict[int, _Names] = {}
        self._functions: list[tuple[FunctionType, tuple[Any, ...]]] = []
        self._cells: list[tuple[CellType, Any]] = []
        self._bases: list[tuple[type, tuple[type, ...]]] = []
        self._mutable: list[tuple[Any, Hashable]] = []
        self._found: list[tuple[str, Hashable]] = []
        self._seen: dict[int, Any] = {}
        self._waiting: list[Any] = []
        self.stable = True
        for label, root in self._roots.items():
            self._value(label, root)
        first = [f for f in self._waiting if isinstance(f, FunctionType)]
        self._own = {package_of(f.__code__.co_filename) for f in first} - {OURS} | {None}  # whose code is followed
        self._own_code = {f.__code__ for f in first}
        self._waiting += self._reached
        while self._waiting:
            self._follow(self._waiting.pop())
        self.key: Hashable = tuple(self._found)

    def unchanged(self) -> bool:
        """Whether every name stands for the same object, and what can change is equal to what it was. Cheap."""
        return (
            self.stable
            and all(names.same() for names in self._names.values())
            and all(_content(cell) is value for cell, value in self._cells)
            and all(kind.__bases__ == bases for kind, bases in self._bases)
            and all(all(map(is_, _parts(function), parts)) for function, parts in self._functions)
            and all(SnapshotReader(self._stand_in).read(value) == known for value, known in self._mutable)
        )

    def again(self) -> Guards:
        """What would be read now."""
        return Guards(self._roots, self._reached, self._stand_in)

    def failed(self) -> str | None:
        """What has changed, for people; None if nothing has."""
        if self.unchanged():
            return None
        now = self.again()
        if now.stable and now.key == self.key:  # other objects, with equal contents
            vars(self).update(vars(now))
            return None
        return self.difference(now)

    def difference(self, later: Guards) -> str:
        """The first thing that is not in `later` what it was here."""
        for (label, known), (other, now) in zip(self._found, later._found):
            if label != other:
                return f"{other} is read now"
            if known != now:
                return f"{label}{difference(known, now)}"
        more = later._found[len(self._found) :]
        return f"{more[0][0]} is read now" if more else "less is read now"

    # -- values -----------------------------------------------------------------------------------------------------
    def _value(self, label: str, value: Any, installed: bool = False) -> None:
        """Note a value that code can read. installed: it is of an installed package, whose objects are fixed."""
        if any(value is reads for reads in (*ENVIRONMENTS, *ENVIRONMENT)):
            label, value = "the environment", os.environ
        elif value is _MISSING or (installed and not isinstance(value, _DATA)):
            self._found.append((label, IdentitySnapshot(value)))
            return
        reader = SnapshotReader(self._stand_in)
        known = reader.read(value)
        self._found.append((label, known))
        self.stable = self.stable and not reader.unstable
        if reader.mutable:
            self._mutable.append((value, known))
        self._waiting += reader.identities

    def _name(self, owner: Any, namespace: Mapping[str, Any], name: str) -> Any:
        """Read a name of an owner's namespace, and note what it stands for."""
        value = namespace.get(name, _MISSING)
        self._names_of(owner, namespace).known[name] = value
        return value

    def _names_of(self, owner: Any, namespace: Mapping[str, Any], counted: bool = False) -> _Names:
        if id(owner) not in self._names or (counted and self._names[id(owner)].size is None):
            known = self._names[id(owner)].known if id(owner) in self._names else {}
            self._names[id(owner)] = _Names(namespace, counted)
            self._names[id(owner)].known.update(known)
            self._seen.setdefault(id(namespace), (owner, namespace))  # keeps both alive
        return self._names[id(owner)]

    # -- code -------------------------------------------------------------------------------------------------------
    def _follow(self, found: Any) -> None:
        """Read what a function, or the methods of a class, may read."""
        if isinstance(found, ModuleType):
            self._module(found.__name__, found)
            return
        if not isinstance(found, (FunctionType, type)):
            found = getattr(found, "__wrapped__", None)  # functools.lru_cache and its like
        if id(found) in self._seen:
            return
        self._seen[id(found)] = found
        if isinstance(found, FunctionType):
            if found.__code__ in self._own_code or not self._is_fixed(found.__code__.co_filename):
                self._function(found)
            elif package_of(found.__code__.co_filename) != OURS:
                self._wrapper(found)
        elif isinstance(found, type) and not self._is_fixed(file_of(sys.modules.get(found.__module__))):
            self._class(found)

    def _is_fixed(self, file: str) -> bool:
        return package_of(file) not in self._own

    def _wrapper(self, function: FunctionType) -> None:
        """What an installed decorator, such as `contextlib.contextmanager`, has made: the functions that it calls."""
        contents = map(_content, function.__closure__ or ())
        for name, content in zip(function.__code__.co_freevars, contents):
            if isinstance(content, (FunctionType, MethodType, type)):
                self._value(f"{name} in {function.__qualname__}()", content)
        if "registry" in vars(function):  # of functools.singledispatch
            self._value(f"the implementations of {function.__qualname__}()", vars(function)["registry"])

    def _function(self, function: FunctionType) -> None:
        where = f"{function.__qualname__}()"
        code, defaults, keyword_defaults = _parts(function)
        self._functions.append((function, (code, defaults, keyword_defaults)))
        self._value(f"the code of {where}", code)
        self._value(f"the defaults of {where}", defaults)
        self._value(f"the keyword defaults of {where}", keyword_defaults)
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or ()))
        mentioned = referenced_names(function.__code__)
        for read in mentioned.reads:
            if read.kind == "global":
                self._global(function.__globals__, read)
            elif read.name in cells:
                self._cells.append((cells[read.name], _content(cells[read.name])))
                self._chain(f"{read.name} in {where}", _content(cells[read.name]), read.attributes)
        for statement in mentioned.imports:
            self._import(function.__globals__, statement)
        if mentioned.any_global or mentioned.globals & _EVALUATE:
            self._all_names(_file_name(function.__globals__), function.__globals__, function.__globals__)

    def _import(self, namespace: dict[str, Any], statement: Import) -> None:
        """What an import in the body of a function gives: names of a module, which may be modules, or all of it."""
        for module in statement.modules(namespace):
            found = self._name(sys.modules, sys.modules, module)
            for name in statement.names:
                self._chain(f"module {module}", found, (name,))
                if f"{module}.{name}" in sys.modules:
                    self._chain(f"module {module}.{name}", sys.modules[f"{module}.{name}"], ())
            if not statement.names:
                self._chain(f"module {module}", found, ())

    def _global(self, namespace: dict[str, Any], read: NameRead) -> None:
        if not read.name.isidentifier():
            return  # no source says it: what pytest puts into the asserts that it rewrites
        where = _file_name(namespace)
        value = self._name(namespace, namespace, read.name)
        if value is not _MISSING:
            self._chain(f"{read.name} of {where}", value, read.attributes)
        elif not hasattr(builtins, read.name):
            self._found.append((f"{read.name} of {where}", IdentitySnapshot(_MISSING)))

    def _chain(self, label: str, value: Any, attributes: Iterable[str]) -> None:
        """Go along attributes as far as they can be read without running code, and note what is there."""
        installed = False
        rest = list(attributes)
        while rest:
            namespace = _plain_fields(value, rest[0])
            if namespace is None or (self._stand_in is not None and self._stand_in(value) is not value):
                break
            if isinstance(value, ModuleType) and rest[0] not in namespace and "__getattr__" in namespace:
                self._name(value, namespace, rest[0])
                break
            if isinstance(value, ModuleType):
                installed = self._is_fixed(file_of(value))
            else:
                self._hidden_by(type(value), rest[0])
            label, value = f"{label}.{rest[0]}", self._name(value, namespace, rest.pop(0))
        if isinstance(value, ModuleType):
            self._found.append((label, IdentitySnapshot(value)))
            self._module(label, value)
        else:
            self._value(label, value, installed)

    def _hidden_by(self, kind: type, name: str) -> None:
        """A property of the user's class would be read in the place of what the object itself has."""
        for base in kind.__mro__[:-1]:
            if not self._is_fixed(file_of(sys.modules.get(base.__module__))):
                self._name(base, vars(base), name)

    def _module(self, label: str, module: ModuleType) -> None:
        if not self._is_fixed(file_of(module)) and id(module) not in self._seen:
            self._seen[id(module)] = module
            self._all_names(label, module, vars(module))

    def _all_names(self, label: str, owner: Any, namespace: Mapping[str, Any]) -> None:
        """All of a module: what is handed on as a whole may be asked for anything."""
        for name in [n for n in namespace if not n.startswith("__")]:
            value = self._name(owner, namespace, name)
            if not isinstance(value, ModuleType):
                self._value(f"{name} of {label}", value)

    def _class(self, kind: type) -> None:
        """Methods and data of a class, and of its bases."""
        self._waiting += (*kind.__bases__, type(kind))
        self._bases.append((kind, kind.__bases__))
        self._found.append(
            (
                f"the bases of {kind.__qualname__}",
                TreeSnapshot(tuple, ("",), tuple(map(IdentitySnapshot, kind.__bases__))),
            )
        )
        names = self._names_of(kind, vars(kind), counted=True)
        for name, value in list(vars(kind).items()):
            names.known[name] = value
            if isinstance(value, (staticmethod, classmethod)):
                value = value.__func__
            if isinstance(value, property):
                value = (value.fget, value.fset)
            if isinstance(value, FunctionType) or not name.startswith("__"):
                self._value(f"{kind.__qualname__}.{name}", value if type(value) not in _SLOTS else None)


def _parts(function: FunctionType) -> tuple[Any, ...]:
    """What of a function can be replaced."""
    return function.__code__, function.__defaults__, function.__kwdefaults__


def _file_name(namespace: Mapping[str, Any]) -> str:
    return Path(str(namespace.get("__file__") or namespace.get("__name__") or "")).name


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return _MISSING


def _plain_fields(value: Any, name: str) -> Mapping[str, Any] | None:
    """The namespace in which an attribute lies; None where reading it may run code, or it lies elsewhere."""
    if isinstance(value, ModuleType):
        return vars(value)
    if isinstance(value, type):
        return None
    fields = getattr(value, "__dict__", None)
    if not isinstance(fields, dict) or name not in fields:
        return None
    return None if hasattr(getattr(type(value), name, None), "__set__") else fields
