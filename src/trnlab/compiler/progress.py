# SPDX-License-Identifier: Apache-2.0
"""How far a compilation is, for whoever asked to be told; it changes nothing of what is compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
Watch = Callable[[int, int], None]  # parts that are done, and all
_WATCH: ContextVar[Watch | None] = ContextVar("watch", default=None)


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Tell `watch` of each part of what is compiled within."""
    token = _WATCH.set(watch)
    try:
        yield
    finally:
        _WATCH.reset(token)


def counted(parts: Sequence[T]) -> Iterator[T]:
    """The parts; each is told of before it is begun."""
    watch = _WATCH.get()
    for done, part in enumerate(parts):
        if watch is not None:
            watch(done, len(parts))
        yield part
