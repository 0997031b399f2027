# SPDX-License-Identifier: Apache-2.0
"""The table of lowerings: for each operator of PyTorch a function that appends graph ops.

    @lowers("silu_backward.default")
    def silu_backward(site, grad, x):
        return site.b.multiply(grad, site.b.silu_dx(x))

A lowering takes the `Site` and the operator's own arguments, tensors as graph values, and returns one value per
result. What it cannot express it refuses by raising `Refused` with what to write instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from trnlab.frontends.torch.types import format_of
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import TensorType, Value
from trnlab.numerics.dtypes import DType, float32, int32

Lowering = Callable[..., Any]
LOWERINGS: dict[Any, Lowering] = {}


class Refused(Exception):  # noqa: N818
    """This form of the operator has no lowering; the message says what to write instead."""


def lowers(*names: str) -> Callable[[Lowering], Lowering]:
    """Register a lowering for operators named as "add.Tensor" (namespace aten) or "trnlab::attention.default"."""

    def register(function: Lowering) -> Lowering:
        for name in names:
            LOWERINGS[operator(name)] = function
        return function

    return register


def operator(name: str) -> Any:
    """The operator called `name`."""
    namespace, _, rest = name.rpartition("::")
    packet, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace or "aten"), packet), overload)


class Randomness:
    """Where a graph's random numbers come from: one seed, an input made on first use, and one stream per operator."""

    def __init__(self, b: GraphBuilder) -> None:
        self._b = b
        self._streams = 0
        self.seed: Value | None = None

    def uniform(self, shape: tuple[int, ...]) -> Value:
        """fp32 numbers in [0, 1), independent of every other call's."""
        if self.seed is None:
            self.seed = self._b.input("seed", (), int32)
        self._streams += 1
        return self._b.rng_uniform(shape, self.seed, self._streams - 1)


class Site:
    """One node being imported: the graph under construction and what PyTorch says the node's results are."""

    def __init__(self, b: GraphBuilder, node: fx.Node, types: list[TensorType | None], random: Randomness) -> None:
        self.b, self.node, self.types, self.random = b, node, types, random

    @property
    def type(self) -> TensorType:
        """Type of the first result."""
        assert self.types[0] is not None
        return self.types[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the first result."""
        return self.type.shape

    @property
    def dtype(self) -> DType:
        """Format of the first result."""
        return self.type.dtype

    def cast(self, x: Any) -> Any:
        """x in the result's format; numbers stay numbers."""
        return self.b.convert(x, self.dtype) if isinstance(x, Value) else x

    def wide(self, x: Any) -> Any:
        """x in fp32, in which the chip's engines compute; numbers stay numbers."""
        return self.b.convert(x, float32) if isinstance(x, Value) and x.dtype is not float32 else x

    def common(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Both operands in the format that PyTorch promotes them to."""
        fakes = [a.meta["val"] if isinstance(a, fx.Node) else a for a in self.node.args[:2]]
        target = format_of(torch.result_type(*fakes))
        return tuple(self.b.convert(v, target) if isinstance(v, Value) else v for v in (x, y))  # type: ignore[return-value]

    def shaped(self, x: Value) -> Value:
        """x with the result's shape (same elements, row-major)."""
        return self.b.reshape(x, self.shape)


def dims_of(dim: Any, rank: int) -> tuple[int, ...]:
    """Dimensions as PyTorch gives them (None, a number, a list; negative from the end), sorted; none means all."""
    if dim is None or dim == []:
        return tuple(range(rank))
    return tuple(sorted({d % max(rank, 1) for d in ([dim] if isinstance(dim, int) else dim)})) if rank else ()
