# SPDX-License-Identifier: Apache-2.0
"""What is asked of a view."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trnlab.view.effects import NAMESPACES


@dataclass(frozen=True)
class ViewRequest:
    """work: "module:function" and what it is called with. allowed: of `effects.ALLOWED`. places: where the script is
    likely to write. carried: folders, and how files end, that this command keeps for itself: new ones come back.
    ready: "module:function" that is called once in a process which others are copied from."""

    work: str
    given: tuple[Any, ...]
    allowed: frozenset[str] = frozenset()
    places: tuple[str, ...] = ()
    carried: tuple[tuple[str, tuple[str, ...]], ...] = ()
    ready: str = ""
    protection: str = NAMESPACES
    room: int = 0
    scratch: str = ""
