# SPDX-License-Identifier: Apache-2.0
"""What a drawn program works on: a pool of tensors on one device, and what it was seen to say.

Floats are whole numbers of at most `MOST`, and stay so (`kept`): sums, products and copies of them are exact in every
format and order, so that results can be compared to the bit, and nothing hangs on the last digit of what came before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from torch import Tensor

MOST = 64
FLOATS = (torch.float32, torch.float32, torch.float32, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int64, torch.int32, torch.uint8, torch.int8, torch.int16)
SHAPES = (
    (),
    (1,),
    (4,),
    (5,),
    (3, 4),
    (4, 4),
    (1, 4),
    (4, 1),
    (2, 3, 4),
    (2, 1, 4),
    (0,),
    (0, 4),
    (17,),
    (2, 2, 3, 3),
)
_POOL = 14


class NothingError(Exception):
    """The pool has nothing that a step could take."""


@dataclass
class Said:
    """Something that a program let out: by whom, and the value. exact: whether it has to be the same to the bit."""

    step: str
    value: Any
    exact: bool = True
    note: str = ""


@dataclass
class World:
    """The tensors of a program on `device`, and what it said."""

    device: str
    pool: list[Tensor] = field(default_factory=list)
    said: list[Said] = field(default_factory=list)
    step: str = ""

    def say(self, value: Any, exact: bool = True, note: str = "") -> None:
        """Let a value out, as it is now."""
        self.said.append(Said(self.step, seen(value), exact, note))

    def put(self, *tensors: Tensor) -> None:
        """Keep tensors; the oldest are let go."""
        self.pool.extend(tensors)
        del self.pool[: max(0, len(self.pool) - _POOL)]

    def new(self, draw: Random, shape: tuple[int, ...] | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """A new tensor that the host fills."""
        shape = draw.choice(SHAPES) if shape is None else shape
        return filled(draw, shape, dtype or any_dtype(draw)).to(self.device)

    def any(self, draw: Random, **wanted: Any) -> Tensor:
        """One of the pool that `fits`."""
        found = [t for t in self.pool if fits(t, **wanted)]
        if not found:
            raise NothingError
        return draw.choice(found)

    def like(self, draw: Random, x: Tensor) -> Tensor:
        """An operand for `x`: of the pool where the shapes go together, else new."""
        found = [t for t in self.pool if t.dtype is x.dtype and _broadcasts(t, x)]
        if found and draw.random() < 0.7:
            return draw.choice(found)
        shape = tuple(n if draw.random() < 0.7 else 1 for n in x.shape)
        return self.new(draw, shape, x.dtype)


def any_dtype(draw: Random) -> torch.dtype:
    """Mostly float32."""
    return draw.choice(draw.choice((FLOATS, FLOATS, INTEGERS, (torch.bool,))))


def filled(draw: Random, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor of the host with whole numbers in it."""
    count = 1
    for n in shape:
        count *= n
    low = 0 if dtype in (torch.uint8, torch.bool) else -9
    return torch.tensor([draw.randint(low, 9) for _ in range(count)]).reshape(shape).to(dtype)


def fits(
    t: Tensor, kind: str = "", dims: int = -1, least: int = 0, numel: int = 0, shape: Any = None, dtype: Any = None
) -> bool:
    """Whether a tensor is of a kind (letters: f, i, b), has so many dimensions (at least `least`), and elements."""
    letter = "f" if t.is_floating_point() else "b" if t.dtype is torch.bool else "i"
    return (
        (not kind or letter in kind)
        and dims in (-1, t.dim())
        and t.dim() >= least
        and t.numel() >= numel
        and shape in (None, tuple(t.shape))
        and dtype in (None, t.dtype)
    )


def kept(x: Tensor) -> Tensor:
    """With values that are small again."""
    return x.clamp(-MOST, MOST) if x.dtype is not torch.bool else x


def seen(value: Any) -> Any:
    """A copy on the host, of tensors with how they lie in memory."""
    if isinstance(value, Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, (list, tuple)):
        return [seen(v) for v in value]
    return value


def _broadcasts(t: Tensor, x: Tensor) -> bool:
    if t.dim() > x.dim():
        return False
    return all(n in (1, m) for n, m in zip(reversed(t.shape), reversed(x.shape)))
