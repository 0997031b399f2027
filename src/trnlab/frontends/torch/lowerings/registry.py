# SPDX-License-Identifier: Apache-2.0
"""The table of lowerings: for each operator of PyTorch a function that appends graph ops.

    @lowers("silu_backward.default")
    def silu_backward(site, grad, x):
        return site.b.multiply(grad, site.b.silu_dx(x))

A lowering takes the `LoweringSite` and the operator's own arguments, tensors as graph values, and returns one value
per result. What it cannot express it refuses by raising `UnsupportedOperatorForm(reason, do)`: why, and what to write
instead.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from math import prod
from typing import Any

import torch
from torch import fx

from trnlab.frontends.torch.device.dispatch import operator
from trnlab.frontends.torch.device.types import format_of
from trnlab.frontends.torch.draws import draw_of
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import TensorType, Value
from trnlab.graph.overflow import OverflowFlags
from trnlab.numerics.dtypes import DType, float32, int32

Lowering = Callable[..., Any]
LOWERINGS: dict[Any, Lowering] = {}
LATE: dict[str, Lowering] = {}  # of operators that PyTorch defines when it first needs them, by name


class UnsupportedOperatorForm(Exception):  # noqa: N818
    """This form of the operator has no lowering: the reason, and what to do instead."""

    def __init__(self, reason: str, do: str = "") -> None:
        super().__init__(f"{reason}; {do}" if do else reason)
        self.reason, self.do = reason, do


def lowers(*names: str) -> Callable[[Lowering], Lowering]:
    """Register a lowering for operators named as "add.Tensor" (namespace aten) or "trnlab::attention.default"."""

    def register(function: Lowering) -> Lowering:
        for name in names:
            LOWERINGS[operator(name)] = function
        return function

    return register


def lowering_of(op: Any) -> Lowering | None:
    """The function that appends an operator's graph ops; None for an operator without one."""
    return LOWERINGS.get(op) or LATE.get(str(op))


class Randomness:
    """Where a graph's random numbers come from: a seed, an input made on first use, and numbers of its sequence.

    Each operator gets a range of numbers of its own, as long as its result. Operators of one `draw` (an operator that
    checkpointing runs a second time, see `draws`) get the same numbers. Shards of a tensor draw from a seed of their
    own, one for each layout, so that ranks have one program. places: which shard is here, by the name of such an
    input.
    """

    def __init__(self, b: GraphBuilder) -> None:
        self._b = b
        self._next = 0
        self._known: dict[Hashable, Value] = {}
        self._seeds: dict[str, Value] = {}  # by layout, "" of whole tensors
        self.places: dict[str, int] = {}

    def uniform(
        self, shape: tuple[int, ...], draw: tuple[Hashable, int] | None = None, shard: tuple[int, str] | None = None
    ) -> Value:
        """fp32 numbers in [0, 1), independent of every other call's.

        `draw`: what the operator drew from and how many tensors of numbers it has drawn already; the same, the same
        numbers. shard: which one of a tensor this is, and its layout, see `draws`.
        """
        key = None if draw is None else (*draw, shape, shard)
        if key is not None and key in self._known:
            return self._known[key]
        first, self._next = self._next, self._next + prod(shape)
        drawn = self._b.rng_uniform(shape, self._seed(shard), first)
        if key is not None:
            self._known[key] = drawn
        return drawn

    def _seed(self, shard: tuple[int, str] | None) -> Value:
        place, layout = shard if shard is not None else (0, "")
        if layout not in self._seeds:
            name = f"seed_of_shards{len(self.places)}" if layout else "seed"
            self._seeds[layout] = self._b.input(name, (2,), int32)
            if layout:
                self.places[name] = place
        return self._seeds[layout]


class LoweringSite:
    """One node being imported: the graph under construction and what PyTorch says the node's results are."""

    def __init__(
        self, b: GraphBuilder, node: fx.Node, types: list[TensorType | None], random: Randomness, watch: OverflowFlags
    ) -> None:
        self.b, self.node, self.types, self.random, self.watch = b, node, types, random, watch
        self._drawn = 0

    @property
    def draw(self) -> tuple[Hashable, int] | None:
        """Which random numbers the operator asks for next; None for ones that nobody else has."""
        state = draw_of(self.node)
        self._drawn += 1
        return None if state is None else (state, self._drawn)

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

    def wide_values(self, *operands: Any) -> list[Value]:
        """Operands in fp32, numbers as values."""
        return [self.wide(v) if isinstance(v, Value) else self.b.constant(float(v)) for v in operands]

    def working(self, x: Any) -> Any:
        """x in the format to compute in: of floats fp32, to be rounded once; of integers the result's own."""
        return self.wide(x) if self.dtype.is_float else self.cast(x)

    def common(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Both operands in the format that PyTorch promotes them to."""
        fakes = [a.meta["val"] if isinstance(a, fx.Node) else a for a in self.node.args[:2]]
        target = format_of(torch.result_type(*fakes))
        return tuple(self.b.convert(v, target) if isinstance(v, Value) else v for v in (x, y))  # type: ignore[return-value]

    def shaped(self, x: Value) -> Value:
        """x with the result's shape (same elements, row-major)."""
        return self.b.reshape(x, self.shape)


def dim_of(dim: int, rank: int) -> int:
    """A dimension as PyTorch gives it (negative from the end); a tensor without dimensions has one, of size one."""
    return dim % max(rank, 1)


def dims_of(dim: Any, rank: int) -> tuple[int, ...]:
    """Dimensions as PyTorch gives them (None, a number, a list; negative from the end), sorted; none means all."""
    if dim is None or dim == []:
        return tuple(range(rank))
    return tuple(sorted({d % max(rank, 1) for d in ([dim] if isinstance(dim, int) else dim)})) if rank else ()
