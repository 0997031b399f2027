# SPDX-License-Identifier: Apache-2.0
"""The Python state that code could read, as it is now, and what of it is different later.

    image = Image(framework)
    image.visit(model, "model")                       # roots: what the code is given
    image.mention(code, globals)                      # before each function runs: what it could read by name
    ...
    image.failed()                                    # None, or: model.scale was 1.0, is 100.0

From the roots on, every object is followed: attributes whose names the code mentions, items, elements, closures,
defaults, classes. Numbers and strings count by value (floats by their bits, but all NaN are one), containers and
objects by what they hold, functions and all else by identity. A part is looked at before the code that mentions it
runs; so what the code itself changes is a difference, too.
"""

from __future__ import annotations

import copy
import functools
import operator
import os
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from pathlib import PurePath
from types import (
    BuiltinMethodType,
    CellType,
    CodeType,
    FunctionType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any, Protocol

from trnlab.guards.bytecode import Import, referenced_names
from trnlab.guards.changes import VALUES, AliasChange, StateChange, equal
from trnlab.guards.closures import Closures
from trnlab.guards.kinds import ENVIRONMENT, ENVIRONMENTS, OPEN, WHOLE, container, harmless, moves_on
from trnlab.guards.nodes import (
    EVERY,
    MISSING,
    AttributesNode,
    BuiltinNode,
    ClassNode,
    GlobalsNode,
    ItemsNode,
    MentionedNames,
    NamespaceNode,
    SlotsNode,
    StateNode,
    own_fields,
)

MOST = 200_000  # objects in an image
_BY_NAME = (getattr, hasattr, setattr, delattr, vars, dir)  # which code can call under another name
_OF_ENVIRONMENT = frozenset({"environ", "environb", *(function.__name__ for function in ENVIRONMENT)})
_FUNCTION = {
    "__code__": "() itself",
    "__defaults__": "()'s defaults",
    "__kwdefaults__": "()'s defaults",
    "__closure__": "()'s closure",
    "__dict__": "()",
}
_WRAPPERS: dict[type, dict[str, str]] = {
    MethodType: {"__func__": "", "__self__": "'s self"},
    staticmethod: {"__func__": ""},
    classmethod: {"__func__": ""},
    functools.partial: {"func": "", "args": "'s arguments", "keywords": "'s arguments", "__dict__": ""},
    slice: {"start": ".start", "stop": ".stop", "step": ".step"},
    CellType: {"cell_contents": ""},
}


class Framework(Protocol):
    """What an image must be told of the framework it serves."""

    def library(self, file: str) -> bool:
        """Whether the code of this file is taken as fixed."""

    def names_only(self, file: str) -> bool:
        """Whether code of this file, although fixed, reads attributes of users' objects."""

    def is_tensor(self, value: Any) -> bool:
        """Whether the value is an input of the program; the front end looks after it."""

    def is_traced(self, value: Any) -> bool:
        """Whether the tensor exists only while the framework traces."""

    def is_value(self, value: Any) -> bool:
        """Whether == says all about the value: a dtype, a device."""

    def node(self, value: Any, label: str, names: MentionedNames) -> StateNode | None:
        """A node for an object that the framework knows best."""


class StateSnapshot:
    """See the head of this module."""

    def __init__(self, framework: Framework) -> None:
        self.framework, self.names = framework, MentionedNames()
        self.nodes: dict[int, StateNode] = {}
        self._waiting: deque[StateNode] = deque()
        self._globals: dict[int, GlobalsNode] = {}
        self.unreadable: dict[str, None] = {}  # labels of what moves on without a trace: iterators, generators
        self.opaque: dict[int, tuple[Any, str]] = {}  # objects that cannot be looked into
        self._checked: list[StateNode] = []
        self._codes: dict[int, CodeType] = {}
        self._ran: dict[int, CodeType] = {}
        self.closures = Closures()
        self._comparing: set[tuple[int, int]] = set()
        self._empty: list[Any] | None = None
        self._full: list[StateNode] = []
        self._strict = False
        self._awaited: list[str] = []  # modules that the code loads
        self._adopted: dict[
            int, tuple[StateNode, Any]
        ] = {}  # nodes that are about another object now, and the one before
        self._undo: list[tuple[dict[Any, Any], Any, Any]] = []

    # -- looking ----------------------------------------------------------------------------------------------------
    def visit(self, value: Any, label: str, given: bool = False) -> None:
        """Follow `value` and all that hangs on it. given: it is handed over anew each time, and compared then."""
        self._reach(value, label, None if given else (None, label))
        self._settle()

    def mention(self, code: CodeType, namespace: dict[str, Any]) -> None:
        """Users' code is about to run: look at what it could read, unless its module is only being imported."""
        if getattr(namespace.get("__spec__"), "_initializing", False):
            return
        self._ran[id(code)] = code
        found = referenced_names(code)
        self._widen(found.attributes, found.any_attribute)
        self._names_of(namespace, found.globals, found.any_global)
        if (found.attributes | found.globals) & _OF_ENVIRONMENT:
            self._reach(os.environ, "os.environ")
        for statement in found.imports:
            self._import(statement, namespace)
        self._functions_of(code)
        self._settle()

    def _names_of(self, namespace: dict[str, Any], names: Iterable[str], every: bool = False) -> None:
        node = self._globals.get(id(namespace))
        if node is None:
            node = self._globals[id(namespace)] = GlobalsNode(namespace, _file_name(namespace))
            self._add(node)
        node.wanted.update(names)
        node.every |= every
        self._waiting.append(node)

    def _import(self, statement: Import, namespace: dict[str, Any]) -> None:
        """The modules that an import reads, and where it finds them. Those that it loads are no state of before."""
        for module in statement.modules(namespace):
            for name in (module, *(f"{module}.{name}" for name in statement.names)):
                if name in sys.modules:
                    self._reach(sys.modules[name], name)
                    self._names_of(sys.modules, (name,))
                else:
                    self._awaited.append(name)

    def mention_names(self, code: CodeType) -> None:
        """Code of the framework is about to run, which reads attributes of users' objects."""
        self._widen(referenced_names(code).attributes, False)
        self._settle()

    def _widen(self, names: frozenset[str], anything: bool) -> None:
        new = names - self.names.names
        if new or (anything and not self.names.anything):
            self.names.names |= new
            self.names.anything |= anything
            self._waiting.extend(n for n in self._checked if isinstance(n, AttributesNode))

    def _functions_of(self, code: CodeType) -> None:
        """The functions of this code, for their closures. Those made by code that has run are no state."""
        known = id(code) in self._codes
        self._codes.update((id(c), c) for c in code.co_consts if isinstance(c, CodeType))
        if code.co_freevars and not known:
            for function in self.closures.of(code):
                self._reach(function, function.__qualname__, (None, ""))

    def _settle(self) -> None:
        while self._waiting:
            node = self._waiting.popleft()
            for key, value in list(node.find()):
                self._reach(value, node.at(key), (node, key))
            for value in list(node.also_reached()):
                self._reach(value, node.label)

    def _reach(self, value: Any, label: str, held: tuple[StateNode | None, Any] | None = None) -> None:
        if value is MISSING or (issubclass(type(value), VALUES) and not self._has_fields(value)):
            return
        node = self.nodes.get(id(value))
        if node is None or node.owner is not value:
            node = self._node(value, label) if len(self.nodes) <= MOST else None
            if node is None:
                return
            self._add(node)
        if held is not None:
            node.references.append(held)

    def _add(self, node: StateNode) -> None:
        self.nodes[id(node.owner)] = node
        self._waiting.append(node)
        if not node.fixed:
            self._checked.append(node)

    def _node(self, value: Any, label: str) -> StateNode | None:
        framework = self.framework
        if framework.is_value(value) or framework.is_traced(value):
            return None
        if framework.is_tensor(value):
            return framework.node(value, label, self.names)
        special = framework.node(value, label, self.names)
        if special is not None:
            self._class_of(value)
            return special
        kind = type(value)
        if issubclass(kind, VALUES):  # with fields: a member of an enumeration, a number of a derived class
            self._class_of(value)
            return AttributesNode(
                value, f"{kind.__qualname__}.{value.name}" if isinstance(value, Enum) else label, EVERY
            )
        if isinstance(value, FunctionType):
            return self._function(value, label)
        if kind in _WRAPPERS or issubclass(kind, functools.partial):
            return BuiltinNode(value, label, _WRAPPERS.get(kind, _WRAPPERS[functools.partial]))
        if kind in (operator.attrgetter, operator.methodcaller):
            self._widen(frozenset(_named_by(value)), False)
            return None
        if kind in (BuiltinMethodType, MethodWrapperType):  # deque.popleft, random.random: of an object of C's
            of = value.__self__
            if value in _BY_NAME:
                self._widen(frozenset(), True)
            return (
                None
                if of is None or isinstance(of, type | ModuleType)
                else BuiltinNode(value, label, {"__self__": ""})
            )
        if any(value is variables for variables in ENVIRONMENTS):
            return ItemsNode(value, "os.environ")
        if isinstance(value, type | ModuleType):
            return self._code(value, label)
        if moves_on(value):
            self.unreadable[label] = None
            return None
        held = container(value, label)
        if held is None:
            return self._object(value, label)
        if self._has_fields(value):
            fields = own_fields(value)
            self._add(NamespaceNode(fields, label))
            self._class_of(value)
        return held

    def _has_fields(self, value: Any) -> bool:
        """Whether a value or container is of a class of the user's, and has attributes beside what it holds."""
        kind = type(value)
        return kind.__module__ != "builtins" and own_fields(value) is not None and self._is_users(kind)

    def _is_users(self, kind: Any) -> bool:
        module = sys.modules.get(_module_name(kind)) if isinstance(kind, type) else kind
        file = getattr(module, "__file__", None) or ("" if getattr(module, "__name__", "") == "__main__" else "<")
        return file != "<" and not self.framework.library(file)

    def _function(self, function: FunctionType, label: str) -> StateNode | None:
        """A function of the user's; the cells of its closure are called by their names."""
        code = function.__code__
        self._codes[id(code)] = code
        if function in ENVIRONMENT:
            self._reach(os.environ, "os.environ")
        if self.framework.library(code.co_filename):
            if "registry" in vars(function):  # of functools.singledispatch
                self._reach(vars(function)["registry"], f"the implementations of {label}")
            return None
        for name, cell in zip(code.co_freevars, function.__closure__ or ()):
            self._reach(cell, f"{name} in {code.co_name}")
        return BuiltinNode(function, label, _FUNCTION)

    def _code(self, value: Any, label: str) -> StateNode | None:
        """A class or module of the user's."""
        if not self._is_users(value):
            return None
        if isinstance(value, ModuleType):
            return AttributesNode(value, label, self.names)
        for base in (*value.__mro__[1:], type(value)):
            self._reach(base, base.__qualname__)
        return ClassNode(value, value.__qualname__, self.names)

    def _object(self, value: Any, label: str) -> StateNode | None:
        kind = type(value)
        module = _module_name(kind)
        home = module.partition(".")[0]
        if home == "builtins" and isinstance(value, BaseException):
            return BuiltinNode(value, label, {"args": "'s arguments"})
        if home == "builtins" or (home in sys.stdlib_module_names and home not in OPEN | {"__main__"}):
            if not harmless(value):
                self.opaque[id(value)] = value, label
            return None
        if home in WHOLE:  # methods of the standard library, which mention no names here, read all that they hold
            return AttributesNode(value, label, EVERY) if own_fields(value) is not None else None
        file = getattr(sys.modules.get(module), "__file__", None) or ""
        if home not in OPEN and file and self.framework.library(file):
            return None
        if isinstance(value, threading.Thread) and "/site-packages/" in file:
            return None  # its own business, at any time: tqdm's notes when it last looked at its bars
        self._class_of(value)
        slots = any("__slots__" in vars(k) and vars(k)["__slots__"] for k in kind.__mro__)
        if slots:
            return SlotsNode(value, label, self.names)
        return AttributesNode(value, label, self.names) if own_fields(value) is not None else None

    def _class_of(self, value: Any) -> None:
        self._reach(type(value), type(value).__qualname__)

    # -- comparing --------------------------------------------------------------------------------------------------
    def failed(self) -> StateChange | None:
        """The first difference to what was seen.

        Most containers of a model are tables of hooks and empty; that they still are is checked all at once.
        """
        if self._empty is None:
            bare = [(n, n.bare()) for n in self._checked]
            self._empty = [owner for _, owner in bare if owner is not None]
            self._full = [n for n, owner in bare if owner is None]
        found = next(self.changes(self._checked if any(self._empty) else self._full), None)
        return found if found is not None or not self._adopted else self._parted()

    def changes(self, among: Sequence[StateNode] | None = None) -> Iterator[StateChange]:
        """All differences to what was seen, where others may stand for what holds the same."""
        for node in self._checked if among is None else among:
            for key, known, now in node.differences():
                if not self.same(known, now):
                    yield StateChange(node, key, known, now)
                elif known is not now:
                    self._set(node.known, key, now)

    def done(self) -> list[StateChange]:
        """What the code that has just run did. Another tensor is a difference here, whatever it holds, and so is an
        object in the place of another one that was there before, too."""
        for name in self._awaited:
            self._reach(sys.modules.get(name), name)
        self._awaited.clear()
        self._settle()
        for node in self._checked:
            if isinstance(node, AttributesNode) and node.lazy:
                code = getattr(vars(node.owner).get("__getattr__"), "__code__", None)
                if id(code) in self._ran:
                    node.asked()
        self._strict = True
        try:
            return list(self.changes())
        finally:
            self._strict = False

    def accept(self) -> None:
        """Nothing has changed: other objects that hold the same are the known ones from here on."""
        for id_before, (node, _) in self._adopted.items():
            if self.nodes.get(id_before) is node:
                del self.nodes[id_before]
        self.nodes.update((id(node.owner), node) for node, _ in self._adopted.values())
        self._adopted.clear()
        self._undo.clear()

    def reject(self) -> None:
        """Something has changed: the state that is known stays as it was, for when it comes back."""
        for mapping, key, before in reversed(self._undo):
            mapping[key] = before
        if self._undo:
            self._empty = None
        self._adopted.clear()
        self._undo.clear()

    def _set(self, mapping: dict[Any, Any], key: Any, value: Any) -> None:
        self._undo.append((mapping, key, mapping[key]))
        mapping[key] = value

    def _parted(self) -> StateChange | None:
        """One object that is two now, or two that are one: code can tell by `is`, and by writing to one of them."""
        owners = {id(node.owner) for node, _ in self._adopted.values()}
        for node, before in self._adopted.values():
            other = self.nodes.get(id(node.owner))
            if other is not None and other is not node and other.owner is node.owner:
                return AliasChange(node, "", before, node.owner, other.label)
            for holder, key in node.references:
                now = before if holder is None else holder.read().get(key)
                if now is not node.owner:
                    return AliasChange(node, key, before, node.owner)
        if len(owners) < len(self._adopted):
            node, before = list(self._adopted.values())[-1]
            return AliasChange(node, "", before, node.owner, "another object")
        return None

    def same(self, known: Any, now: Any) -> bool:
        """Whether `now` is as good as `known` was when it was seen."""
        if known is now:
            return True
        if type(known) is not type(now):
            return self._same_tensor(known, now)
        if issubclass(type(known), VALUES) or self.framework.is_value(known):
            return equal(known, now) and (id(known) not in self.nodes or self._same_object(known, now))
        if self.framework.is_tensor(known):
            return self._same_tensor(known, now)
        return self._same_object(known, now)

    def _same_object(self, known: Any, now: Any) -> bool:
        node, pair = self.nodes.get(id(known)), (id(known), id(now))
        if node is None or isinstance(node, GlobalsNode):
            return False
        if pair in self._comparing:
            return True
        self._comparing.add(pair)
        try:
            return self._adopts(node, known, now)
        finally:
            self._comparing.discard(pair)

    def _same_tensor(self, known: Any, now: Any) -> bool:
        """Whether one tensor can stand where another did: its values are inputs, what hangs on it is state."""
        if not (self.framework.is_tensor(known) and self.framework.is_tensor(now)):
            return False
        if self.framework.is_traced(known) or self.framework.is_traced(now):
            return self.framework.is_traced(known) == self.framework.is_traced(now)
        node = self.nodes.get(id(known))
        return not self._strict and (node is None or self._adopts(node, known, now))

    def _adopts(self, node: StateNode, before: Any, now: Any) -> bool:
        """Whether another object holds the same; if so, the node is about that one from here on."""
        if id(before) in self._adopted:
            return node.owner is now
        if node.owner is not before or (self._strict and id(now) in self.nodes and self.nodes[id(now)].owner is now):
            return False
        other = copy.copy(node)
        other.owner = now
        for key, known, value in list(other.differences()):
            if known is MISSING or not self.same(known, value):
                return False
            self._set(node.known, key, value)
        fields = None if isinstance(node, AttributesNode) else own_fields(before)
        if fields is not None and id(fields) in self.nodes and not self.same(fields, own_fields(now)):
            return False
        self._set(vars(node), "owner", now)
        self._adopted[id(before)] = node, before
        self._empty = None
        return True


def _named_by(getter: Any) -> Iterator[str]:
    """The attributes that an `attrgetter` or a `methodcaller` reads."""
    made, given, *_ = getter.__reduce__()
    for name in (*getattr(made, "args", ()), *given):  # a caller with keywords is made by a partial
        yield from name.split(".") if isinstance(name, str) else ()


def _module_name(kind: type) -> str:
    """Where a class is from; of one whose instances have a slot called `__module__`, where its base is from."""
    names = (k.__module__ for k in kind.__mro__)
    return next((n for n in names if isinstance(n, str)), "builtins")


def _file_name(namespace: dict[str, Any]) -> str:
    if namespace is sys.modules:
        return "sys.modules"
    file = namespace.get("__file__")
    return PurePath(str(file)).name if file else str(namespace.get("__name__", "a module"))
