# SPDX-License-Identifier: Apache-2.0
"""How complex64 lies in a graph, and the table of its lowerings.

The chip has no complex format. A complex64 tensor of shape [..., n] is float32 of shape [..., n, 2], the real part of
each number before its imaginary one: so it lies in PyTorch's memory too, and inputs and outputs are the same bytes.

    @lowers_complex("neg.default")
    def neg(site, x):
        return ComplexValue(site.b.negate(x.pairs))

A lowering takes complex operands as `ComplexValue`, and gives one for a complex result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import fx

from trnlab.errors import UnsupportedOpError
from trnlab.frontends.torch.device.dispatch import operator
from trnlab.frontends.torch.lowerings.registry import Lowering, LoweringSite
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Value

COMPLEX: dict[Any, Lowering] = {}
_WAY_OUT = "keep real and imaginary parts apart (torch.view_as_real), or compute it before the step"


@dataclass(frozen=True, eq=False)
class ComplexValue:
    """A complex64 value; pairs: its parts, [..., 2]."""

    pairs: Value

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that PyTorch gives it."""
        return self.pairs.shape[:-1]

    def parts(self, b: GraphBuilder) -> tuple[Value, Value]:
        """Real and imaginary part, each in its shape."""
        made = self.pairs.op
        last = len(self.pairs.shape) - 1
        halves = (*self.shape, 1)
        if made is not None and made.name == "concatenate" and made.attrs["dimension"] == last:
            operands = made.operands
            if [v.shape for v in operands] == [halves, halves]:
                return b.reshape(operands[0], self.shape), b.reshape(operands[1], self.shape)
        real, imaginary = (b.reshape(b.slice_dim(self.pairs, last, i, i + 1), self.shape) for i in (0, 1))
        return real, imaginary


def joined(b: GraphBuilder, real: Value, imaginary: Value) -> ComplexValue:
    """The complex value of two parts, which broadcast."""
    shape = np.broadcast_shapes(real.shape, imaginary.shape)
    halves = [b.reshape(b.broadcast_to(v, shape), (*shape, 1)) for v in (real, imaginary)]
    return ComplexValue(b.concatenate(halves, len(shape)))


def constant(b: GraphBuilder, number: complex) -> ComplexValue:
    """A number as a value without dimensions."""
    return ComplexValue(b.constant(np.asarray([complex(number).real, complex(number).imag], np.float32)))


def as_complex(site: LoweringSite, x: Any) -> ComplexValue:
    """A complex value, a real one or a number as a complex value."""
    if isinstance(x, ComplexValue):
        return x
    if not isinstance(x, Value):
        return constant(site.b, x)
    real = site.wide(x)
    return joined(site.b, real, site.b.constant(0.0, real.dtype, real.shape))


def beside_pairs(site: LoweringSite, x: Value) -> Value:
    """A value of one element for each number as one that broadcasts over its parts."""
    return site.b.reshape(x, (*x.shape, 1))


# -- the table ------------------------------------------------------------------------------------------------------


def lowers_complex(*names: str) -> Callable[[Lowering], Lowering]:
    """Register a lowering for operators, named as for `lowers`, where an operand or a result is complex."""

    def register(function: Lowering) -> Lowering:
        for name in names:
            COMPLEX[operator(name)] = function
        return function

    return register


def meets_complex(node: fx.Node) -> bool:
    """Whether an operand or a result of an operator is complex."""
    return any(_has_complex(n.meta.get("val")) for n in (node, *node.all_input_nodes))


def _has_complex(held: Any) -> bool:
    if isinstance(held, (tuple, list)):
        return any(map(_has_complex, held))
    return isinstance(held, torch.Tensor) and held.dtype.is_complex


def lowering_of(node: fx.Node) -> Lowering:
    """The function that appends the graph ops of such an operator.

    Raises UnsupportedOpError (TRN203) for one that has no form of real and imaginary parts.
    """
    lowering = COMPLEX.get(node.target)
    if lowering is None:
        raise UnsupportedOpError(
            "the chip has no format for complex64, and this operator no form in its real and imaginary parts",
            code="TRN203",
            remedy=_WAY_OUT,
        )

    def lowered(site: LoweringSite, *args: Any, **kwargs: Any) -> Any:
        given = [_met(of, value) for of, value in zip(node.args, args)]
        named = {name: _met(node.kwargs.get(name), value) for name, value in kwargs.items()}
        return _plain(lowering(site, *given, **named))

    return lowered


def _met(of: Any, value: Any) -> Any:
    if isinstance(value, list) and isinstance(of, (list, tuple)):
        return [_met(o, v) for o, v in zip(of, value)]
    is_complex = isinstance(value, Value) and isinstance(of, fx.Node) and of.meta["val"].dtype.is_complex
    return ComplexValue(value) if is_complex else value


def _plain(made: Any) -> Any:
    if isinstance(made, (tuple, list)):
        return tuple(map(_plain, made))
    return made.pairs if isinstance(made, ComplexValue) else made
