# SPDX-License-Identifier: Apache-2.0
"""What is asked of a view."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trnlab.view.effects import NAMESPACES


@dataclass(frozen=True)
class ResourceLimits:
    """What the processes of a view may use together; the first that is passed ends them all."""

    seconds: float = 120.0  # of the clock, from the start of the view
    processor_s: float = 120.0  # of one process
    memory: int = 4 << 30  # bytes in all of them; of one process also what it asks for
    processes: int = 8  # at once, threads not counted
    said: int = 256 << 20  # bytes that come back from them in one piece, and bytes of standard error that are shown


@dataclass(frozen=True)
class ViewRequest:
    """What a process in a view is asked to do."""

    work: str  # "module:function" and what it is called with
    given: tuple[Any, ...]
    allowed: frozenset[str] = frozenset()  # of `effects.ALLOWED`
    places: tuple[str, ...] = ()  # where the script is likely to write
    # folders, and how files end, that this command keeps for itself: new ones come back
    carried: tuple[tuple[str, tuple[str, ...]], ...] = ()
    ready: str = ""  # "module:function" that is called once in a process which others are copied from
    protection: str = NAMESPACES
    room: int = 0
    scratch: str = ""
    limits: ResourceLimits | None = None  # None: a script of the user's own, which may take what it needs
