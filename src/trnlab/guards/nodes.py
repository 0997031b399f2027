# SPDX-License-Identifier: Apache-2.0
"""One Python object with parts, as it was when it was first seen: fields, items, elements, contents.

Every node knows how to read its object again, which parts are others now, and how to put a part back. A part is
compared by identity here; whether another object is as good is for the `StateSnapshot` to say.
"""

from __future__ import annotations

import gc
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from types import FunctionType, MemberDescriptorType, ModuleType
from typing import Any


class AbsentNode:
    """Stands for a part that is not there."""

    def __repr__(self) -> str:
        return "absent"


MISSING = AbsentNode()
_LOCAL = threading.local.__getattribute__
_LINK = "_lru_list_elem"  # of a cache with a limit
ORDER = object()  # the key under which a dictionary's order differs; no part, and cannot be stored
Difference = tuple[Any, Any, Any]  # key, value when first seen, value now


class MentionedNames:
    """Names that code mentions; with `anything`, every name counts."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.anything = False

    def __contains__(self, name: object) -> bool:
        return self.anything or name in self.names

    def among(self, keys: Any) -> Any:
        """Those of `keys` that are mentioned."""
        return keys if self.anything else [k for k in keys if k in self.names]


EVERY = MentionedNames()
EVERY.anything = True


class StateNode:
    """An object and its parts. `known`: the parts by key, as first seen. `fixed`: the parts can never be others."""

    fixed = False

    def __init__(self, owner: Any, label: str) -> None:
        self.owner, self.label = owner, label
        self.known: dict[Any, Any] = {}
        self.references: list[tuple[StateNode | None, Any]] = []  # parts that are this object; None: it is given

    def read(self) -> Mapping[Any, Any]:
        """The parts now."""
        raise NotImplementedError

    def bare(self) -> Any:
        """A container that is empty now; while it is, nothing has changed. None where there is no such."""
        return None

    def find(self) -> Iterator[tuple[Any, Any]]:
        """Take note of parts that were not known; yields them."""
        for key, value in self.read().items():
            if key not in self.known:
                self.known[key] = value
                yield key, value

    def also_reached(self) -> Iterable[Any]:
        """Objects that code reaches through this one and that are no parts: keys of a dictionary."""
        return ()

    def differences(self) -> Iterator[Difference]:
        """Parts that are other objects now."""
        now = self.read()
        for key, known in self.known.items():
            value = now.get(key, MISSING)
            if value is not known:
                yield key, known, value
        if len(now) != len(self.known):
            yield from ((key, MISSING, now[key]) for key in list(now) if key not in self.known)

    def store(self, key: Any, value: Any) -> None:
        """Put a part into the object, or take it out if it is MISSING."""
        raise NotImplementedError

    def at(self, key: Any) -> str:
        """How people write this part."""
        return f"{self.label}[{key!r}]"


class AttributesNode(StateNode):
    """Attributes of an object, a class or a module, as far as their names are mentioned."""

    def __init__(self, owner: Any, label: str, names: MentionedNames, skip: frozenset[str] = frozenset()) -> None:
        super().__init__(owner, label)
        self.names, self.skip = names, skip
        self._keys = frozenset(self.read())
        self._kind: Any = None if isinstance(owner, ModuleType) else type(owner)
        self.lazy = isinstance(owner, ModuleType) and "__getattr__" in vars(owner)

    def read(self) -> Mapping[Any, Any]:
        if isinstance(self.owner, (type, ModuleType)):
            return vars(self.owner)
        return own_fields(self.owner) or {}

    def find(self) -> Iterator[tuple[Any, Any]]:
        now = self.read()
        for key in self.wanted(now):
            if key not in self.known and key in self._keys and key not in self.skip:
                self.known[key] = now[key]
                yield key, now[key]

    def wanted(self, now: Mapping[Any, Any]) -> Iterable[Any]:
        """The names of attributes that code may read."""
        return self.names.among(now)  # type: ignore[no-any-return]

    def differences(self) -> Iterator[Difference]:
        now = self.read()
        for key, known in self.known.items():
            value = now.get(key, MISSING)
            if value is not known:
                yield key, known, value
        if self._kind is not None and type(self.owner) is not self._kind:
            yield "__class__", self._kind, type(self.owner)
        if now.keys() != self._keys and not self.lazy:
            new = [k for k in self.wanted(now) if k not in self._keys and k not in self.skip]
            if not new:
                self._keys = frozenset(now)
            yield from ((key, MISSING, now[key]) for key in new)

    def asked(self) -> None:
        """A module that makes its attributes when they are first asked for was asked: names that it has now are what
        that gave, and those that come later hide what it would give. Until it is asked, new names mean nothing."""
        self._keys, self.lazy = frozenset(self.read()), False

    def store(self, key: Any, value: Any) -> None:
        if key == "__class__":
            self.owner.__class__ = value
        elif isinstance(self.owner, threading.local):
            _put(_LOCAL(self.owner, "__dict__"), key, value)
        elif not isinstance(self.owner, type):
            _put(object.__getattribute__(self.owner, "__dict__"), key, value)
        elif value is MISSING:
            delattr(self.owner, key)
        else:
            setattr(self.owner, key, value)

    def at(self, key: Any) -> str:
        return f"{self.label}.{key}"


class ClassNode(AttributesNode):
    """Attributes of a class, as far as their names are mentioned, and methods that operators call."""

    def __init__(self, owner: type, label: str, names: MentionedNames) -> None:
        super().__init__(owner, label, names)
        self._bases = owner.__bases__

    def also_reached(self) -> Iterable[Any]:
        return self.owner.__members__.values() if issubclass(self.owner, Enum) else ()

    def wanted(self, now: Mapping[Any, Any]) -> Iterable[Any]:
        return [k for k, v in now.items() if k in self.names or (k[:2] == "__" and isinstance(v, FunctionType))]

    def differences(self) -> Iterator[Difference]:
        yield from super().differences()
        if self.owner.__bases__ != self._bases:
            yield "__bases__", self._bases, self.owner.__bases__


def own_fields(owner: Any) -> dict[str, Any] | None:
    """The attributes in an object itself, None where it has no place for them. Runs no code of its class."""
    try:
        if isinstance(owner, threading.local):  # those of this thread
            return dict(_LOCAL(owner, "__dict__"))
        found = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return None
    return found if isinstance(found, dict) else None


class SlotsNode(AttributesNode):
    """Attributes of an object whose class, or a base of it, has slots."""

    def read(self) -> Mapping[Any, Any]:
        return all_fields(self.owner)

    def store(self, key: Any, value: Any) -> None:
        if value is MISSING:
            object.__delattr__(self.owner, key)
        else:
            object.__setattr__(self.owner, key, value)


def all_fields(owner: Any) -> dict[str, Any]:
    """The attributes in an object itself, those in slots included. Runs no code of its class."""
    found = dict(own_fields(owner) or {})
    for kind in type(owner).__mro__:
        for name, field in vars(kind).items():
            if type(field) is MemberDescriptorType and name not in found:
                value = _slot(field, owner, kind)
                if value is not MISSING:
                    found[name] = value
    return found


def _slot(field: Any, owner: Any, kind: type) -> Any:
    try:
        return field.__get__(owner, kind)
    except AttributeError:
        return MISSING


class GlobalsNode(StateNode):
    """Names of a module that its functions read; also those that are not there and would hide a built-in one."""

    def __init__(self, owner: dict[str, Any], label: str) -> None:
        super().__init__(owner, label)
        self.wanted: set[str] = set()
        self.every = False  # the code looks names up in a way that does not show them: `globals()["SCALE"]`

    def find(self) -> Iterator[tuple[Any, Any]]:
        if self.every:
            self.wanted.update(key for key in self.owner if not key.startswith("__"))
        for key in self.wanted - self.known.keys():
            self.known[key] = self.owner.get(key, MISSING)
            yield key, self.known[key]

    def read(self) -> Mapping[Any, Any]:
        owner: Mapping[Any, Any] = self.owner
        return owner

    def differences(self) -> Iterator[Difference]:
        get = self.owner.get
        for key, known in self.known.items():
            value = get(key, MISSING)
            if value is not known:
                yield key, known, value
        if self.every:
            new = [k for k in self.owner if k not in self.known and not k.startswith("__")]
            yield from ((key, MISSING, self.owner[key]) for key in new)

    def store(self, key: Any, value: Any) -> None:
        _put(self.owner, key, value)

    def at(self, key: Any) -> str:
        return f"{key} in {self.label}"


class ItemsNode(StateNode):
    """What a dictionary holds. Of a subclass of dict that, too, and not what its own methods say of it."""

    def __init__(self, owner: Any, label: str, skip: Callable[[Any], bool] | None = None) -> None:
        super().__init__(owner, label)
        self.skip = skip

    def read(self) -> Mapping[Any, Any]:
        found: Mapping[Any, Any] = self.owner
        if isinstance(found, dict) and type(found) is not dict:
            found = dict(_plain(found).items(found))
        return found if self.skip is None else {k: v for k, v in found.items() if not self.skip(k)}

    def also_reached(self) -> Iterable[Any]:
        return [key for key in self.read() if type(key) is not str and type(key) is not int]

    def bare(self) -> Any:
        return self.owner if type(self) is ItemsNode and self.skip is None and not self.known else None

    def differences(self) -> Iterator[Difference]:
        now, known = self.read(), self.known
        same = len(now) == len(known)
        for (key, before), other in zip(known.items(), now):
            same = same and (key is other or (hash(key) == hash(other) and bool(key == other)))
            value = now.get(key, MISSING)
            if value is not before:
                yield key, before, value
        if not same:
            yield from ((key, before, MISSING) for key, before in list(known.items())[len(now) :] if key not in now)
            yield from ((key, MISSING, now[key]) for key in list(now) if key not in known)
            if now.keys() == known.keys():
                yield ORDER, DescribedNode(list(known)), DescribedNode(list(now))

    def at(self, key: Any) -> str:
        return f"the order of {self.label}" if key is ORDER else super().at(key)

    def store(self, key: Any, value: Any) -> None:
        if not isinstance(self.owner, dict):
            _put(self.owner, key, value)
        elif value is MISSING:
            _plain(self.owner).pop(self.owner, key, None)
        else:
            _plain(self.owner).__setitem__(self.owner, key, value)


class NamespaceNode(ItemsNode):
    """The attributes of an object that holds others beside them: of a class that is derived from `dict` or `list`."""

    def at(self, key: Any) -> str:
        return f"{self.label}.{key}" if key is not ORDER else super().at(key)


_KINDS: tuple[Any, ...] = (dict, list, tuple, deque, set, frozenset)


def size(value: Any) -> int:
    """How many elements a container holds, whatever a subclass of Python's kinds says of its length."""
    kind = next((kind for kind in _KINDS if isinstance(value, kind)), None)
    return len(value) if kind is None else kind.__len__(value)


class ElementsNode(StateNode):
    """What a list or a tuple holds. Of a subclass that, too, and not what its own methods say of it."""

    def __init__(self, owner: Any, label: str) -> None:
        super().__init__(owner, label)
        self.fixed = isinstance(owner, tuple)

    def read(self) -> Mapping[Any, Any]:
        return dict(enumerate(next(kind for kind in _KINDS if isinstance(self.owner, kind)).__iter__(self.owner)))

    def store(self, key: Any, value: Any) -> None:
        if value is MISSING:
            for _ in range(key, len(self.owner)):
                self.owner.pop()
        elif key < len(self.owner):
            self.owner[key] = value
        else:
            self.owner.append(value)


class BuiltinNode(StateNode):
    """Attributes of one of Python's own objects: a function, a bound method, the cell of a closure."""

    def __init__(self, owner: Any, label: str, parts: Mapping[str, str]) -> None:
        super().__init__(owner, label)
        self.parts = parts

    def read(self) -> Mapping[Any, Any]:
        return {name: _attribute(self.owner, name) for name in self.parts}

    def store(self, key: Any, value: Any) -> None:
        if value is MISSING:
            delattr(self.owner, key)
        else:
            setattr(self.owner, key, value)

    def at(self, key: Any) -> str:
        return f"{self.label}{self.parts[key]}"


def _attribute(owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name)
    except (AttributeError, ValueError):  # ValueError: a cell that is empty
        return MISSING


class SummaryNode(StateNode):
    """An object that counts as a whole, by what a function says of it: a set, an array, a generator of numbers."""

    def __init__(self, owner: Any, label: str, summary: Callable[[Any], Any]) -> None:
        super().__init__(owner, label)
        self.summary = summary

    def read(self) -> Mapping[Any, Any]:
        return {"": self.summary(self.owner)}

    def differences(self) -> Iterator[Difference]:
        now = self.summary(self.owner)
        if self.known and not _equal(self.known[""], now):
            yield "", DescribedNode(self.known[""]), DescribedNode(now)

    def at(self, key: Any) -> str:
        return self.label


class MembersNode(SummaryNode):
    """An object that counts as a whole, by a summary, and whose members count by themselves: a set."""

    def __init__(
        self, owner: Any, label: str, summary: Callable[[Any], Any], members: Callable[[Any], Iterable[Any]]
    ) -> None:
        super().__init__(owner, label, summary)
        self.members = members

    def also_reached(self) -> Iterable[Any]:
        return self.members(self.owner)


class TensorAttributesNode(AttributesNode):
    """What Python code has hung on a tensor, which a tensor of another class may take the place of."""

    def __init__(self, owner: Any, label: str, names: MentionedNames) -> None:
        super().__init__(owner, label, names)
        self._kind = None

    def bare(self) -> Any:
        return self.read() if not self.known and not self._keys else None


class ReferentNode(StateNode):
    """An object that another one leads to: behind a weak reference, in a context variable."""

    def __init__(self, owner: Any, label: str, inside: Callable[[Any], Any]) -> None:
        super().__init__(owner, label)
        self.inside = inside

    def read(self) -> Mapping[Any, Any]:
        return {"": self.inside(self.owner)}

    def at(self, key: Any) -> str:
        return self.label


class LruCacheNode(StateNode):
    """What `functools.lru_cache` has kept, as Python's garbage collector sees it, and the function behind it."""

    def read(self) -> Mapping[Any, Any]:
        found: dict[Any, Any] = {"": self.owner.__wrapped__}
        parts = gc.get_referents(self.owner)
        for i, part in enumerate(parts):
            if type(part) is dict and part is not self.owner.__dict__:
                kept = part.items()
                found |= {("result", k): v for k, v in kept if type(v).__name__ != _LINK}
            elif isinstance(part, type) and part.__name__ == _LINK and i > 1:  # with a limit: key, result, this
                found["result", parts[i - 2]] = parts[i - 1]
        return found

    def store(self, key: Any, value: Any) -> None:
        self.owner.cache_clear()  # one result cannot be taken out; all can be made again

    def at(self, key: Any) -> str:
        return self.label if key == "" else f"a result that {self.label} keeps"


class DescribedNode:
    """A summary, for people."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        text = repr(self.value)
        return text if len(text) <= 60 else "other contents" if isinstance(self.value, bytes) else text[:57] + "..."


def _equal(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b)


def _plain(mapping: dict[Any, Any]) -> Any:
    """Python's own class that a dictionary is, behind what a subclass may have changed."""
    return OrderedDict if isinstance(mapping, OrderedDict) else dict


def _put(mapping: dict[Any, Any], key: Any, value: Any) -> None:
    if value is MISSING:
        mapping.pop(key, None)
    else:
        mapping[key] = value
