# SPDX-License-Identifier: Apache-2.0
"""Plain values, when two cannot be told apart, and differences between parts of objects as people read them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from types import CodeType
from typing import Any

import numpy as np

from trnlab.guards.kinds import TIMES
from trnlab.guards.nodes import MISSING, StateNode, size

_PLAIN = (int, float, bool, str, bytes, type(None), complex, type(...), range, CodeType)
VALUES = (*_PLAIN, Enum, PurePath, Decimal, Fraction, np.dtype, *TIMES)


@dataclass(frozen=True)
class StateChange:
    """A part of the state that is not what it was."""

    node: StateNode
    key: Any
    before: Any
    after: Any

    @property
    def label(self) -> str:
        """Where, for people."""
        return self.node.at(self.key)

    def __str__(self) -> str:
        if self.before is MISSING:
            return f"{self.label} is new: {shown(self.after)}"
        if self.after is MISSING:
            return f"{self.label} was {shown(self.before)}, is gone"
        return f"{self.label} was {shown(self.before)}, is {shown(self.after)}"


@dataclass(frozen=True)
class AliasChange(StateChange):
    """Parts that were one object and are two, or the other way round."""

    other: str = ""

    def __str__(self) -> str:
        if self.other:
            return f"{self.node.label} was an object of its own, is {self.other}"
        return f"{self.node.label} was one object in several places, is several"


def equal(a: Any, b: Any) -> bool:
    """Whether two plain values of one type cannot be told apart."""
    if isinstance(a, float):
        return (a == b and math.copysign(1, a) == math.copysign(1, b)) or (a != a and b != b)
    if isinstance(a, complex):
        return equal(a.real, b.real) and equal(a.imag, b.imag)
    return bool(a == b)


def shown(value: Any) -> str:
    """A value in a few words."""
    if issubclass(type(value), VALUES):
        text = repr(value)
    elif isinstance(value, (list, tuple, dict, set)):
        text = f"a {type(value).__name__} of {size(value)}"
    else:
        name = getattr(value, "__qualname__", None)
        text = name if isinstance(name, str) else repr(value) if isinstance(value, object) and _short(value) else ""
    return text if 0 < len(text) <= 80 else f"a {type(value).__name__}"


def _short(value: Any) -> bool:
    return type(value).__module__.startswith("trnlab.guards")
