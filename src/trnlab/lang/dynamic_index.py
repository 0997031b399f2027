# SPDX-License-Identifier: Apache-2.0
"""What of a view's address is chosen when the kernel runs: its rows, its start, or its columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")  # what tensors are: views have these parts, so this module lies below theirs
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, eq=False)
class Indirect(Generic[T]):
    """Rows chosen at run time: result row p is row index[p] of a table of `rows` rows, `step` elements apart."""

    index: T
    rows: int
    step: int


class Register(Protocol[T_co]):
    """A register of a sequencer, see `lang.registers`."""

    @property
    def operand(self) -> T_co:
        """What instructions on registers read."""
        ...

    def __index__(self) -> int: ...


@dataclass(frozen=True, eq=False)
class Dynamic(Generic[T]):
    """A start chosen at run time: `index` times `step` elements further on.

    count: how many values the index may have, where the tensor's shape says that.
    """

    index: T | Register[T]
    step: int
    count: int | None = None


@dataclass(frozen=True, eq=False)
class Lookup(Generic[T]):
    """Columns chosen at run time by an index on chip, of `reach` elements per partition."""

    index: T
    reach: int
