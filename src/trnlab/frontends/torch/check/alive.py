# SPDX-License-Identifier: Apache-2.0
"""Objects of a process by their classes."""

from __future__ import annotations

import gc
from typing import Any


def alive(*classes: type) -> list[Any]:
    """All objects of the classes, or of classes that derive from them, that Python's collector knows.

    Of a process with PyTorch these are one in many thousands of a million objects, so that each class is looked at
    once, and objects only for their class; an object may pretend to be of another (`__class__`), and is not asked.
    """
    objects = gc.get_objects()
    wanted = {kind for kind in set(map(type, objects)) if issubclass(kind, classes)}
    return [x for x in objects if type(x) in wanted]
