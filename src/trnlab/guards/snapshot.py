# SPDX-License-Identifier: Apache-2.0
"""Snapshots of Python values: hashable, equal exactly where nothing that a program can read has changed.

    before = snapshot(config)
    config.scale = 3.0
    snapshot(config) == before                      # False
    difference(before, snapshot(config))            # '.scale was 2.0, is 3.0'

Floats compare by their bits except that all NaN are one value: -0.0 is not 0.0. Types count: True is not 1, and 1 is
not 1.0. Containers, arrays and objects of Python classes (with `__dict__` or `__slots__`) count by contents; objects
of extension types by what they would pickle; functions, classes, modules and what cannot be read by identity, and the
snapshot keeps them alive, so that no other object can take the identity over.
"""

from __future__ import annotations

import enum
import hashlib
import sys
import weakref
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any

import numpy as np

from trnlab.guards.installed import file_of, package_of
from trnlab.guards.kinds import content_of_buffer, is_buffer
from trnlab.guards.nodes import all_fields

LIMIT = 20_000  # values in one snapshot; beyond, comparing would cost more than doing the work again
_DIGESTED = 1 << 16  # bytes of an array beyond which a digest stands for them
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_FROZEN = (tuple, frozenset, complex)
_OF_C = (BuiltinFunctionType, MethodWrapperType)
_IDENTITIES = (FunctionType, CodeType, ModuleType, type)

# Gives a value (or snapshot) that stands for one of a kind that only the caller knows, and any other value as it is.
StandIn = Callable[[Any], Any]


class IdentitySnapshot:
    """A value that counts by identity."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdentitySnapshot) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


class UnstableSnapshot:
    """A value that cannot be compared with its later self. Equals nothing but this very object. reason: why."""

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason


@dataclass(frozen=True)
class ValueSnapshot:
    """A number, string, or other immutable value. `value` tells apart what == does not: -0.0 is its text."""

    kind: type
    value: Hashable


@dataclass(frozen=True)
class TreeSnapshot:
    """A value with parts. labels: how each part is reached from it, such as '.scale', "['x']" or '[3]'."""

    kind: Hashable
    labels: tuple[Hashable, ...]
    parts: tuple[Hashable, ...]


@dataclass
class SnapshotReader:
    """Reads values into snapshots."""

    stand_in: StandIn | None = None
    identities: list[Any] = field(default_factory=list)  # what was found inside that counts by identity
    unstable: bool = False  # whether what was read can never be equal again
    mutable: bool = False  # whether it can change while it stays the same object
    count: int = 0  # values read
    _open: dict[int, int] = field(default_factory=dict)

    def read(self, value: Any) -> Hashable:
        """The snapshot of a value."""
        self.count += 1
        if self.count > LIMIT:
            return self._never(f"more than {LIMIT} values")
        kind = type(value)
        if kind in (int, bool, str, bytes, type(None), type(...)):
            return (kind, value)
        if kind is float:
            return (float, value if value == value and value != 0 else repr(value))
        return self._compound(value, kind)

    def _compound(self, value: Any, kind: type) -> Hashable:
        if kind in (ValueSnapshot, TreeSnapshot, IdentitySnapshot):
            return value  # type: ignore[no-any-return]
        if self.stand_in is not None:
            other = self.stand_in(value)
            if other is not value:
                return self.read(other)
        if isinstance(value, _IDENTITIES) or (isinstance(value, enum.Enum) and _is_installed(kind)):
            return self._is(value)
        if isinstance(value, _OF_C) and isinstance(value.__self__, type | ModuleType | None):
            return self._is(value)
        if isinstance(value, (np.generic, np.dtype)):
            return ValueSnapshot(kind, value.tobytes() if isinstance(value, np.generic) else str(value))
        if id(value) in self._open:
            return ("cycle", len(self._open) - self._open[id(value)])
        self._open[id(value)] = len(self._open)
        try:
            return self._parts(value, kind)
        finally:
            del self._open[id(value)]

    def _parts(self, value: Any, kind: type) -> Hashable:
        self.mutable = self.mutable or kind not in _FROZEN
        if isinstance(value, np.ndarray):
            return self._array(value)
        if isinstance(value, (list, tuple, dict, set, frozenset)) and len(value) > LIMIT:
            return self._never(f"more than {LIMIT} values")
        if isinstance(value, (list, tuple)):
            return self._tree(value, [f"[{i}]" for i in range(len(value))], value)
        if isinstance(value, defaultdict):  # whose factory makes what is not there
            labels = [*map(self._label, value), ".default_factory"]
            return self._tree(value, labels, [*value.values(), value.default_factory])
        if isinstance(value, (dict, MappingProxyType)):
            return self._tree(value, [self._label(k) for k in value], value.values())
        if isinstance(value, (set, frozenset)):
            return ("set", kind, frozenset(map(self.read, value)))
        if isinstance(value, complex):
            return ("complex", self.read(value.real), self.read(value.imag))
        if isinstance(value, (int, float, str, bytes)):
            return self._tree(value, [""], [_plain(value)])
        if isinstance(value, MethodType):
            return self._tree(value, [" of", ".self"], [value.__func__, value.__self__])
        if isinstance(value, _OF_C):  # `table.get`: of an object
            return TreeSnapshot(value.__qualname__, (" of",), (self.read(value.__self__),))
        if isinstance(value, weakref.ReferenceType):
            return self._tree(value, [" of"], [value()])
        if isinstance(value, ContextVar):
            return TreeSnapshot(IdentitySnapshot(value), (" here",), (self.read(value.get(None)),))
        if isinstance(value, enum.Enum):
            self.identities.append(kind)
            return TreeSnapshot(IdentitySnapshot(value), *self._fields(value))
        if isinstance(value, Iterator):
            return self._never("an iterator, which changes when it is read")
        return self._object(value, kind)

    def _label(self, key: Any) -> Hashable:
        return f"[{key!r}]" if isinstance(key, str | int) else self.read(key)

    def _tree(self, value: Any, labels: Sequence[Hashable], parts: Iterable[Any]) -> TreeSnapshot:
        kind = type(value)
        found = tuple(map(self.read, parts))
        if not kind.__flags__ & _HEAP_TYPE:
            return TreeSnapshot(IdentitySnapshot(kind), tuple(labels), found)
        names, own = self._fields(value)
        return TreeSnapshot(self._is(kind), (*labels, *names), (*found, *own))

    def _array(self, value: Any) -> Hashable:
        if isinstance(value, np.ma.MaskedArray):  # has its own tobytes, which NumPy's constant `masked` refuses
            return TreeSnapshot(
                IdentitySnapshot(type(value)), (".data", ".mask"), (self._array(value.data), self._array(value.mask))
            )
        if value.dtype.hasobject:
            return self._tree(value, [f".flat[{i}]" for i in range(value.size)], value.ravel().tolist())
        raw: bytes = value.tobytes()
        if len(raw) > _DIGESTED:
            raw = hashlib.sha256(raw).digest()
        return ("array", type(value), str(value.dtype), value.shape, raw)

    def _object(self, value: Any, kind: type) -> Hashable:
        """An object by its fields; one whose class is no Python class, or says how it is pickled, by that."""
        python = all(c.__flags__ & _HEAP_TYPE and "__module__" in vars(c) for c in kind.__mro__[:-1])
        reduces = any("__reduce__" in vars(c) or "__reduce_ex__" in vars(c) for c in kind.__mro__[:-1])
        if python and not reduces:
            names, parts = self._fields(value)
            of = self._is(kind)
            return TreeSnapshot(of, names, parts) if names else self._is(value)  # without fields: a token
        try:
            reduced = value.__reduce_ex__(4)
        except Exception:  # whatever a foreign class does where it cannot be pickled
            return (kind, content_of_buffer(value)) if is_buffer(value) else self._is(value)
        if not isinstance(reduced, tuple):
            return self._is(value)
        state = [self.read(tuple(part) if isinstance(part, Iterator) else part) for part in reduced]
        return TreeSnapshot(self._is(kind), tuple(f" (part {i})" for i in range(len(state))), tuple(state))

    def _fields(self, value: Any) -> tuple[tuple[str, ...], tuple[Hashable, ...]]:
        fields = all_fields(value)
        return tuple(f".{name}" for name in fields), tuple(map(self.read, fields.values()))

    def _is(self, value: Any) -> IdentitySnapshot:
        self.identities.append(value)
        return IdentitySnapshot(value)

    def _never(self, reason: str) -> UnstableSnapshot:
        self.unstable = True
        return UnstableSnapshot(reason)


def _is_installed(kind: type) -> bool:
    return package_of(file_of(sys.modules.get(kind.__module__))) is not None


def _plain(value: Any) -> Any:
    """A number or string of a derived class as one of the class itself."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes):
        return bytes(value)
    return int.__int__(value) if isinstance(value, int) else float.__float__(value)


def snapshot(value: Any, stand_in: StandIn | None = None) -> Hashable:
    """A hashable stand-in for the value as it is now, see the head of this module."""
    return SnapshotReader(stand_in).read(value)


def difference(before: Hashable, after: Hashable) -> str:
    """The first place where two snapshots differ, and both values there; empty where they are equal."""
    if before == after:
        return ""
    if isinstance(before, TreeSnapshot) and isinstance(after, TreeSnapshot) and before.kind == after.kind:
        if before.labels == after.labels:
            pairs = zip(before.labels, before.parts, after.parts)
            label, old, new = next((at, old, new) for at, old, new in pairs if old != new)
            inner = difference(old, new)
            return f"{label if isinstance(label, str) else '[...]'}{inner}"
        return _of_labels(before, after)
    reason = next((s.reason for s in (after, before) if isinstance(s, UnstableSnapshot)), None)
    return f" is {reason}" if reason else f" was {_shown(before)}, is {_shown(after)}"


def _of_labels(before: TreeSnapshot, after: TreeSnapshot) -> str:
    gone = [label for label in before.labels if label not in after.labels]
    new = [label for label in after.labels if label not in before.labels]
    if len(gone) == len(new) == 0:
        return " has another order"
    label, what = (new[0], "is new") if new else (gone[0], "is gone")
    return f"{label if isinstance(label, str) else '[...]'} {what}"


def _shown(snap: Hashable) -> str:
    """A snapshot for people, in a few words."""
    if isinstance(snap, IdentitySnapshot):
        name = getattr(snap.value, "__qualname__", None) or getattr(snap.value, "__name__", None)
        return f"{name}" if name else f"a {type(snap.value).__name__}"
    if isinstance(snap, TreeSnapshot):
        kind = snap.kind.value if isinstance(snap.kind, IdentitySnapshot) else snap.kind
        return f"a {getattr(kind, '__name__', kind)} of {len(snap.parts)}"
    if isinstance(snap, ValueSnapshot):
        return f"{snap.kind.__name__} {snap.value!r}" if isinstance(snap.value, bytes) else str(snap.value)
    if isinstance(snap, tuple) and len(snap) == 2 and isinstance(snap[0], type):
        return snap[1] if snap[0] is float and isinstance(snap[1], str) else repr(snap[1])
    if isinstance(snap, tuple) and snap[0] == "array":
        return f"an array {snap[2]}{list(snap[3])}"
    return "another value"
