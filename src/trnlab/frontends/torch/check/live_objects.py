# SPDX-License-Identifier: Apache-2.0
"""Objects of a process by their classes."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import compress
from typing import Any

_outermost = True


@contextmanager
def only_new_ones() -> Iterator[None]:
    """Within the block `alive` finds what was made within it, and neither it nor the collector looks at the rest: a
    script may ask after each of its backward passes, and a process with PyTorch has half a million objects before the
    script makes its first."""
    global _outermost
    if not _outermost:
        yield
        return
    _outermost = False
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        _outermost = True


def alive(*classes: type) -> list[Any]:
    """All objects of the classes, or of classes that derive from them, that Python's collector knows.

    Of a process with PyTorch these are a few among a million, so that classes are looked up first, and of each object
    nothing but its class, in loops without byte code; what an object pretends to be (`__class__`) does not count.
    """
    objects = gc.get_objects()
    wanted = {kind for each in classes for kind in _derived(each)}
    return list(compress(objects, map(wanted.__contains__, map(type, objects))))


def _derived(kind: type) -> set[type]:
    """The class, and all that derive from it."""
    children: list[type] = type.__subclasses__(kind)
    found = {kind}
    for child in children:
        found |= _derived(child)
    return found
