# SPDX-License-Identifier: Apache-2.0
"""Hostile values, and tensors of them that lie in memory in every way that a view can make them lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, nan
from random import Random

import torch
from torch import Tensor

# Everything at which a formula may leave its path; MODERATE are those whose sums and products stay in the format.
FLOATS = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    inf,
    -inf,
    nan,
    1e-45,
    -1e-40,
    1.2e-38,
    3e38,
    -3e38,
    1e25,
    -1e25,
    1e-25,
    0.5,
    -0.5,
    1.5,
    2.5,
    -2.5,
    0.1,
    0.7,
    3.0,
    7.0,
    -7.0,
    1e8,
    16777216.0,
    2147483648.0,
    87.0,
    -104.0,
)
MODERATE = (0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 0.1, 1e-3, 1e3, -7.0, 1e10, -1e10)
RARE = (inf, -inf, nan)  # now and then among the moderate

SHAPES = (
    (),
    (1,),
    (0,),
    (5,),
    (1, 1),
    (3, 1),
    (1, 4),
    (4, 3),
    (2, 0),
    (0, 3),
    (2, 3, 1),
    (2, 1, 5),
    (1, 3, 4),
    (3, 8, 2),
    (2, 2, 1, 3),
    (130,),
    (2, 130),
    (129, 3),
)


@dataclass(frozen=True)
class Look:
    """A tensor in memory and the view of it that the operator gets."""

    name: str
    base: Tensor
    view: Callable[[Tensor], Tensor]


def filled(draw: Random, shape: tuple[int, ...], dtype: torch.dtype, moderate: bool = False) -> Tensor:
    """A tensor of hostile values; integers at the edges of their format and near zero."""
    count = 1
    for n in shape:
        count *= n
    if dtype is torch.bool:
        numbers: list[float] = [draw.random() < 0.5 for _ in range(count)]
    elif not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        edges = [limits.min, limits.min + 1, -1, 0, 1, 2, 3, 7, limits.max - 1, limits.max]
        numbers = [draw.choice([n for n in edges if n >= limits.min]) for _ in range(count)]
    elif moderate:
        rare = RARE if draw.random() < 0.2 else ()
        numbers = [draw.choice(rare) if rare and draw.random() < 0.1 else _moderate(draw) for _ in range(count)]
    else:
        numbers = [draw.choice(FLOATS) if draw.random() < 0.7 else draw.gauss(0, 3) for _ in range(count)]
    return (
        torch.tensor(numbers, dtype=torch.float64 if dtype.is_floating_point else torch.int64)
        .to(dtype)
        .reshape(shape)
    )


def _moderate(draw: Random) -> float:
    return draw.choice(MODERATE) if draw.random() < 0.3 else draw.gauss(0, 3)


def look(draw: Random, shape: tuple[int, ...], dtype: torch.dtype, moderate: bool = False) -> Look:
    """A view of that shape: plain, transposed, every second element, cut off, or one element seen many times."""

    def made(*base: int) -> Tensor:
        return filled(draw, base, dtype, moderate)

    name = (
        draw.choice(("plain", "plain", "transposed", "stepped", "cut", "expanded", "empty ends"))
        if shape
        else "plain"
    )
    if name == "transposed":
        order = list(range(len(shape)))[::-1]
        return Look(name, made(*shape[::-1]), lambda x: x.permute(order))
    if name == "stepped":
        return Look(name, made(*shape[:-1], 2 * shape[-1]), lambda x: x[..., ::2])
    if name == "cut":
        return Look(name, made(shape[0] + 2, *shape[1:]), lambda x: x[1:-1])
    if name == "expanded":
        at = draw.randrange(len(shape))
        return Look(name, made(*shape[:at], 1, *shape[at + 1 :]), lambda x: x.expand(shape))
    if name == "empty ends":
        return Look(name, made(*shape), lambda x: torch.cat([x[..., :0], x, x[..., :0]], -1))
    return Look("plain", made(*shape), lambda x: x)


def beside(draw: Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts to `shape`: all of it, none, a row, a column, or any dimensions as one."""
    kind = draw.choice(("whole", "number", "last", "column", "any", "any"))
    if kind == "whole" or not shape:
        return shape
    if kind == "number":
        return draw.choice(((), (1,)))
    if kind == "last":
        return shape[-1:]
    if kind == "column":
        return (*shape[:-1], 1)
    return tuple(n if draw.random() < 0.5 else 1 for n in shape)
