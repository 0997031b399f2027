# SPDX-License-Identifier: Apache-2.0
"""Arguments of kernels: arrays inside lists, tuples, dicts and kernels' own classes, all else as a constant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from typing import Any

from trnlab.nki.objects import NKIObject
from trnlab.nki.tracing.arrays import is_array, to_host


def map_objects(function: Callable[[Any], Any], value: Any, kind: type) -> Any:
    """The same structure with `function` of each object of `kind`."""
    return map_where(function, value, lambda leaf: isinstance(leaf, kind))


def map_where(function: Callable[[Any], Any], value: Any, chosen: Callable[[Any], bool]) -> Any:
    """The same structure with `function` of each value that is chosen; what is inside of one is not looked at."""
    if chosen(value):
        return function(value)
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(map_where(function, v, chosen) for v in value)
    if isinstance(value, dict):
        return {k: map_where(function, v, chosen) for k, v in value.items()}
    if isinstance(value, NKIObject):
        return _with_fields(value, {k: map_where(function, v, chosen) for k, v in vars(value).items()})
    return value


def _with_fields(value: NKIObject, fields: dict[str, Any]) -> NKIObject:
    """The object itself where its fields stay what they are, else another one; its initializer does not run again."""
    if all(fields[name] is old for name, old in vars(value).items()):
        return value
    other = copy(value)
    for name, new in fields.items():
        object.__setattr__(other, name, new)  # of frozen data classes, too
    return other


def objects_of(value: Any, kind: type) -> list[Any]:
    """The objects of `kind` in a structure, in order."""
    found: list[Any] = []
    map_objects(found.append, value, kind)
    return found


def on_host(value: Any) -> Any:
    """The same structure with a `HostArray` for each array of a framework."""
    return map_where(to_host, value, is_array)


def iter_leaves(value: Any) -> Iterator[Any]:
    """What is inside lists, tuples, dicts and kernels' own classes."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from iter_leaves(item)
    elif isinstance(value, (dict, NKIObject)):
        for item in (value if isinstance(value, dict) else vars(value)).values():
            yield from iter_leaves(item)
    else:
        yield value
