# SPDX-License-Identifier: Apache-2.0
"""What the rule of an op may ask the backward pass for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from trnlab.errors import GraphError
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Op, Value
from trnlab.numerics.dtypes import DType

Gradients = Sequence[Value | None]  # one for each operand; None where there is none


class BackwardPass(Protocol):
    """The backward pass of `builder.GradientBuilder`."""

    @property
    def b(self) -> GraphBuilder:
        """Where gradients are appended."""
        ...

    def needs(self, value: Value) -> bool:
        """Whether a value's gradient is asked for."""
        ...

    def form(self, value: Value) -> DType:
        """The format of a value's gradient."""
        ...

    def saved(self, value: Value) -> Value:
        """A value of the forward pass as a derivative reads it."""
        ...

    def give_run(self, value: Value, dimension: int, start: int, limit: int, gradient: Value) -> None:
        """Add to the gradient of places [start, limit) of a dimension of a value."""
        ...


def no_derivative(op: Op, what: str) -> GraphError:
    """TRN309."""
    return GraphError(
        f"{what} has no derivative",
        code="TRN309",
        got=op.name,
        where=op.loc,
        remedy="write it in ops that have one, or give it one with GradientBuilder.with_gradient",
    )
