# SPDX-License-Identifier: Apache-2.0
"""Cases by number: an operator, what it is given, and what stands before and behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from tools.hostile.operators import ALONG, ELEMENTWISE, PRODUCTS, Operator
from tools.hostile.values import SHAPES, Look, beside, filled, look

_SIZES = (1, 1, 2, 3, 8, 16)
_BEHIND = ("nothing", "nothing", "plus", "plus", "times", "negated", "greater")


@dataclass(frozen=True)
class Case:
    """What is computed of `inputs`: the operator of their views, and `behind` it with the bias, the last input."""

    label: str
    operator: Operator
    looks: tuple[Look, ...]
    along: tuple[int, ...]
    behind: str
    bias: Tensor | None

    @property
    def inputs(self) -> list[Tensor]:
        """What the program gets."""
        return [x.base for x in self.looks] + ([] if self.bias is None else [self.bias])

    def raw(self, tensors: Sequence[Tensor]) -> Tensor:
        """The operator's result."""
        found: Tensor = self.operator.run(*self.views(tensors), *self.along)
        return found

    def views(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """What the operator is given."""
        return [x.view(t) for x, t in zip(self.looks, tensors)]

    def whole(self, tensors: Sequence[Tensor]) -> Tensor:
        """With what stands behind."""
        found = self.raw(tensors)
        if self.behind == "negated":
            return -found
        if self.bias is None:
            return found
        bias = tensors[-1]
        return {"plus": lambda: found + bias, "times": lambda: found * bias, "greater": lambda: found > bias}[
            self.behind
        ]()


def case(number: int, only: Sequence[str] = ()) -> Case:
    """The case of that number; `only` of operators whose names begin so."""
    draw = Random(number)
    table = draw.choices((ELEMENTWISE, ALONG, PRODUCTS), (5, 4, 1))[0]
    if only:
        table = {k: o for k, o in {**ELEMENTWISE, **ALONG, **PRODUCTS}.items() if k.startswith(tuple(only))}
    name = draw.choice(sorted(table))
    operator = table[name]
    kind = draw.choice(operator.dtypes)
    looks = _operands(draw, name, operator, kind)
    along: tuple[int, ...] = ()
    if operator.along:
        rank = looks[0].view(looks[0].base).dim()
        along = (draw.randrange(-rank, rank) if rank else 0,)
    made = Case(f"{number} {name}", operator, looks, along, "nothing", None)
    try:
        raw = made.raw([x.base for x in looks])
    except (RuntimeError, IndexError, NotImplementedError):  # PyTorch has no such case: the next
        return case(number + 1_000_003, only)
    behind = draw.choice(_BEHIND) if raw.dtype.is_floating_point else "nothing"
    bias = None
    if behind in ("plus", "times", "greater"):
        bias = filled(draw, beside(draw, tuple(raw.shape)), raw.dtype, moderate=True)
    seen = ", ".join(f"{x.name} {list(x.view(x.base).shape)}" for x in looks)
    label = (
        f"{number} {name} {str(kind)[6:]} of {seen} along {along} {behind} {bias is not None and list(bias.shape)}"
    )
    return Case(label, operator, looks, along, behind, bias)


def _operands(draw: Random, name: str, operator: Operator, kind: torch.dtype) -> tuple[Look, ...]:
    if name == "matmul":
        batch = draw.choice(((), (1,), (3,), (4,), (2, 3)))
        m, k, n = (draw.choice(_SIZES) if draw.random() < 0.9 else draw.choice((0, 130)) for _ in range(3))
        left, right = (*batch, m, k), (*draw.choice((batch, ())), k, n)
        return tuple(look(draw, shape, kind, moderate=True) for shape in (left, right))
    shape = draw.choice(SHAPES)
    shapes: list[Any] = [shape]
    if operator.tensors == 2:
        shapes.append(beside(draw, shape))
    return tuple(look(draw, s, kind, operator.moderate) for s in shapes)
