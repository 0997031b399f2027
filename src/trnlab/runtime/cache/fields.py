# SPDX-License-Identifier: Apache-2.0
"""Whether a value that was read is of the type that a field declares: what is read from a file may be anything."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from typing import Any

import numpy as np

Test = Callable[[Any], bool]


def tests_of(cls: type[Any], names: tuple[str, ...]) -> tuple[Test, ...]:
    """A test for each of these fields of a class, in their order."""
    hints = typing.get_type_hints(cls)
    return tuple(_test(hints[name]) for name in names)


def _test(hint: Any) -> Test:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or hint is object:
        return lambda value: True
    if origin is tuple:
        return _of_tuple(arguments)
    if origin is dict:
        key, held = map(_test, arguments)
        return lambda value: type(value) is dict and all(key(k) and held(v) for k, v in value.items())
    if origin in (types.UnionType, typing.Union):
        some = tuple(map(_test, arguments))
        return lambda value: any(test(value) for test in some)
    if origin is np.ndarray:
        return lambda value: type(value) is np.ndarray
    if hint is float:
        return lambda value: type(value) in (int, float)
    return lambda value, kind=hint: type(value) is kind  # type: ignore[misc]


def _of_tuple(arguments: tuple[Any, ...]) -> Test:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        each = _test(arguments[0])
        if arguments[0] is int:  # the most frequent ones
            return lambda value: type(value) is tuple and {*map(type, value)} <= {int}
        return lambda value: type(value) is tuple and all(map(each, value))
    some = tuple(map(_test, arguments))
    return lambda value: (
        type(value) is tuple and len(value) == len(some) and all(test(v) for test, v in zip(some, value))
    )
