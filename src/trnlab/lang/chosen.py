# SPDX-License-Identifier: Apache-2.0
"""What of a view's address is chosen when the kernel runs: its rows, its start, or its columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from trnlab.lang.tensor import Tensor


@dataclass(frozen=True, eq=False)
class Indirect:
    """Rows chosen at run time: result row p is row index[p] of a table of `rows` rows, `step` elements apart."""

    index: Tensor
    rows: int
    step: int


class Register(Protocol):
    """A register of a sequencer, see `lang.registers`."""

    @property
    def operand(self) -> Tensor:
        """What instructions on registers read."""
        ...

    def __index__(self) -> int: ...


@dataclass(frozen=True, eq=False)
class Dynamic:
    """A start chosen at run time: `index` times `step` elements further on.

    count: how many values the index may have, where the tensor's shape says that.
    """

    index: Tensor | Register
    step: int
    count: int | None = None


@dataclass(frozen=True, eq=False)
class Lookup:
    """Columns chosen at run time by an index on chip, of `reach` elements per partition."""

    index: Tensor
    reach: int
