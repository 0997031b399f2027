# SPDX-License-Identifier: Apache-2.0
"""nki.dtype: the number formats, as libraries of kernels import them; the same objects as in nki.language."""

from __future__ import annotations

from typing import Any

from trnlab.lang.formats import NAMES, Format
from trnlab.nki import language

DType = Format
_FORMATS = tuple("bool_" if name == "bool" else name for name in NAMES)
__all__ = ["DType", *_FORMATS]


def __getattr__(name: str) -> Any:
    if name not in _FORMATS:
        raise AttributeError(f"nki.dtype has no {name!r}; it has {', '.join(_FORMATS)}")
    return getattr(language, name)
