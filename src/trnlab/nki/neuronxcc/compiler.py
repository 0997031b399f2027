# SPDX-License-Identifier: Apache-2.0
"""neuronxcc.nki.compiler: allocators and switches of the vendor's compiler.

An allocator only says which memory: tiles are placed by their lifetimes, wherever the kernel asked for them.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from trnlab.lang.tensor import Region
from trnlab.nki.language import no_reorder

__all__ = ["no_reorder"]


@dataclass(frozen=True)
class Allocation:
    """What `buffer=` takes in the place of a region."""

    region: Region


class _Allocator:
    def __init__(self, region: Region) -> None:
        self.region = region

    def alloc(self, function: Any = None, **_: Any) -> Allocation:
        """By a function of the tile's index."""
        return Allocation(self.region)

    def mod_alloc(self, **_: Any) -> Allocation:
        """By a base address, tiles taking turns."""
        return Allocation(self.region)

    def auto_alloc(self, **_: Any) -> Allocation:
        """Wherever there is room."""
        return Allocation(self.region)


sbuf, psum = _Allocator(Region.sbuf), _Allocator(Region.psum)


def _switch(function: Any = None, **_: Any) -> Any:
    """A decorator that changes nothing here."""
    return function if callable(function) else _switch


skip_middle_end_transformations = enable_stack_allocator = force_auto_alloc = multi_buffer = _switch


@contextmanager
def scope(*_: Any, **__: Any) -> Any:
    """A region of the kernel; nothing changes."""
    yield
