# SPDX-License-Identifier: Apache-2.0
"""Which kind of node an object of Python's own gets: what can be read of it, and of which nothing can be."""

from __future__ import annotations

import datetime
import functools
import io
import itertools
import logging
import marshal
import os
import pickle
import random
import re
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar, Token
from types import GenericAlias, GetSetDescriptorType, MappingProxyType, MemberDescriptorType, MethodDescriptorType
from typing import Any

import numpy as np

from trnlab.guards.nodes import (
    ElementsNode,
    ItemsNode,
    LruCacheNode,
    MembersNode,
    ReferentNode,
    StateNode,
    SummaryNode,
    size,
)

ENVIRONMENT = (os.getenv, os.path.expandvars, os.path.expanduser, *filter(None, [getattr(os, "getenvb", None)]))
ENVIRONMENTS = (os.environ, *filter(None, [getattr(os, "environb", None)]))  # the same variables, as text and bytes
LARGEST = 10_000  # items of a container that are looked at one by one
TIMES = (datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo)
# Modules of the standard library whose classes hold users' data.
WHOLE = frozenset({"collections", "configparser", "functools", "queue", "shelve", "weakref", "_weakrefset"})
OPEN = WHOLE | {"types", "argparse", "dataclasses", "typing", "_thread", "_threading_local"}
_LOCKS = tuple(type(make()) for make in (threading.Lock, threading.RLock))
_PLACES = (GetSetDescriptorType, MemberDescriptorType, MethodDescriptorType, GenericAlias, property)
_HARMLESS = (
    *_LOCKS,
    *_PLACES,
    re.Pattern,
    re.Match,
    Token,
    logging.Logger,
    logging.Handler,
    io.IOBase,
    threading.Thread,
    BaseException,
)


def moves_on(value: Any) -> bool:
    """Whether taking from the object changes it, and nothing says how far it is: a generator, a `zip`, a file."""
    kind = type(value)
    if issubclass(kind, io.IOBase):
        return not value.closed and value.readable() and not _is_terminal(value)
    if hasattr(kind, "__next__") and kind not in weakref.ProxyTypes:
        built_in = not isinstance(vars(_home(kind, "__next__")).get("__next__"), type(moves_on))
        return built_in and kind is not itertools.count
    return False


def _home(kind: type, name: str) -> type:
    return next((k for k in kind.__mro__ if name in vars(k)), kind)


def _is_terminal(value: Any) -> bool:
    try:
        return bool(value.isatty())
    except (OSError, ValueError):
        return False


def harmless(value: Any) -> bool:
    """Whether calls of the object's methods decide no number: locks, patterns, loggers."""
    return issubclass(type(value), _HARMLESS)


def container(value: Any, label: str) -> StateNode | None:
    """A node for an object of Python's or NumPy's that holds others, or bytes."""
    if issubclass(type(value), (dict, MappingProxyType, list, tuple, deque)) and size(value) > LARGEST:
        return SummaryNode(value, label, _large)
    if issubclass(type(value), (dict, MappingProxyType)):
        return ItemsNode(value, label)
    if issubclass(type(value), (list, tuple, deque)):
        return ElementsNode(value, label)
    if issubclass(type(value), weakref.WeakMethod):  # makes a method anew each time
        return ReferentNode(value, label, lambda r: getattr(r(), "__self__", None))
    if issubclass(type(value), weakref.ReferenceType):
        return ReferentNode(value, label, lambda r: r())
    if type(value) in weakref.ProxyTypes:
        return ReferentNode(value, label, behind)
    if issubclass(type(value), ContextVar):
        return ReferentNode(value, label, lambda v: v.get(None))
    if issubclass(type(value), functools._lru_cache_wrapper):
        return LruCacheNode(value, label)
    if issubclass(type(value), (set, frozenset)):
        return MembersNode(value, label, lambda s: sorted(map(repr, s)), iter)
    if issubclass(type(value), np.ndarray) and value.dtype.hasobject:
        return MembersNode(value, label, _of_array, lambda a: a.ravel().tolist())
    summary = _summary(value)
    return None if summary is None else SummaryNode(value, label, summary)


def behind(proxy: Any) -> Any:
    """The object that a weak proxy stands for; None where it is gone."""
    try:
        return proxy.__repr__.__self__
    except ReferenceError:
        return None


def _summary(value: Any) -> Callable[[Any], Any] | None:
    if issubclass(type(value), bytearray):
        return bytes
    if issubclass(type(value), (np.ndarray, np.generic)):
        return _of_array
    if issubclass(type(value), random.Random):
        return lambda r: r.getstate()
    if issubclass(type(value), (np.random.Generator, np.random.RandomState)):
        return lambda g: pickle.dumps(g)
    if issubclass(type(value), itertools.count):
        return repr
    return content_of_buffer if is_buffer(value) else None


def _of_array(array: Any) -> Any:
    return str(array.dtype), array.shape, array.tobytes()


def is_buffer(value: Any) -> bool:
    """Whether an object shows its memory to others: `array.array`, `memoryview`, `mmap`, those of ctypes."""
    if issubclass(type(value), type):
        return False
    try:
        with memoryview(value):
            return True
    except (TypeError, ValueError, BufferError):
        return False


def content_of_buffer(value: Any) -> Any:
    """The format, shape and bytes of the memory that an object shows."""
    try:
        with memoryview(value) as seen:
            return seen.format, seen.shape, seen.tobytes()
    except ValueError:
        return "closed"


def _large(value: Any) -> Any:
    """How many, and a digest where Python can write it down."""
    try:
        return size(value), hash(marshal.dumps(value))
    except ValueError:
        return size(value)
