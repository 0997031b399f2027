# SPDX-License-Identifier: Apache-2.0
"""What a piece of work depends on: the guards of every trace that it uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


class Guard(Protocol):
    """Anything that knows whether what it stands for has changed."""

    def failed(self) -> str | None:
        """What has changed, for people; None if nothing has."""


_COLLECTORS: ContextVar[tuple[list[Guard], ...]] = ContextVar("collectors", default=())


@contextmanager
def collected() -> Iterator[list[Guard]]:
    """Within the block, the guards of everything whose trace is used come into the list: a step that was captured
    while it called recorded kernels depends on what they depend on."""
    found: list[Guard] = []
    token = _COLLECTORS.set((*_COLLECTORS.get(), found))
    try:
        yield found
    finally:
        _COLLECTORS.reset(token)


def depend(guard: Guard) -> None:
    """The work at hand holds as long as this guard does."""
    for found in _COLLECTORS.get():
        if guard not in found:
            found.append(guard)
