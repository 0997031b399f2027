# SPDX-License-Identifier: Apache-2.0
"""What is asked of a view."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trnlab.view.effects import NAMESPACES


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
