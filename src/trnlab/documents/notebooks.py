# SPDX-License-Identifier: Apache-2.0
"""How results show themselves in a notebook: Jupyter asks an object for its `_repr_html_`.

A class of a low layer is drawn by code of a higher one, which says so with `shows` when it is imported.
"""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Any

_RENDERERS: dict[type, Callable[[Any], str]] = {}
HIGH, LOW = 640, 320  # pixels of a page in a cell


class ShownInNotebooks:
    """What a notebook draws, once there is something that can; else it shows the usual text."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        render = _RENDERERS.get(type(self))
        return None if render is None else render(self)


def shows(kind: type, render: Callable[[Any], str]) -> None:
    """Objects of this class are drawn so: `render` makes HTML."""
    _RENDERERS[kind] = render


def framed(page: str, height: int = HIGH) -> str:
    """A whole page within a cell, whose style and scripts touch nothing else of the notebook."""
    return (
        f'<iframe srcdoc="{html.escape(page)}" sandbox="allow-scripts" loading="lazy" '
        f'style="width:100%;height:{height}px;border:0"></iframe>'
    )
