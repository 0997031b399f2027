# SPDX-License-Identifier: Apache-2.0
"""Channels before images: what convolutions make, and all that is computed from it, has its first two dimensions
exchanged.

A convolution contracts channels, and leaves channels on partitions; batch normalisation has one mean per channel. As
[C, N, H, W] each of them finds a channel's pixels of all images side by side in memory: rows are as long as can be, a
1 x 1 convolution is a matrix product of what lies there, and statistics are sums along rows. The pass starts from the
results of convolutions and carries the exchange through whatever can be computed either way, so that nothing is
transposed in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.ops import ELEMENTWISE, OPS
from trnlab.graph.passes.rewrite import splat

PER_DIMENSION = {
    "slice": ("start_indices", "limit_indices", "strides"),
    "pad": ("edge_padding_low", "edge_padding_high", "interior_padding"),
}


def channels_first(graph: Graph) -> None:
    """Exchange the first two dimensions of what follows from convolutions; same meaning."""
    if any(op.name == "convolution" for op in graph.ops):
        _Exchange(graph).run()


def _swap(items: Sequence[int]) -> tuple[int, ...]:
    return (items[1], items[0], *items[2:])


def _order(rank: int) -> tuple[int, ...]:
    return (1, 0, *range(2, rank))


def _axis(d: int) -> int:
    """Where dimension d of a value is in its twin."""
    return 1 - d if d < 2 else d


class _Exchange:
    """One walk over the ops. A value's twin is the same with its first two dimensions exchanged."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.b = graph, GraphBuilder(graph.name)
        self.twins: dict[Value, Value] = {}
        self.plain: dict[Value, Value] = {}  # what takes the place of a value, in the order of its dimensions
        self.rules: dict[str, Callable[[Op], bool]] = {
            "convolution": self._convolution,
            "transpose": self._transpose,
            "reshape": self._reshape,
            "broadcast_in_dim": self._broadcast,
            "reduce": self._reduce,
            "slice": self._shifted,
            "pad": self._shifted,
            "concatenate": self._concatenate,
            "trn.max_pool": self._windows,
            "trn.max_pool_backward": self._windows,
            "trn.avg_pool": self._windows,
            "trn.avg_pool_backward": self._windows,
        }

    def run(self) -> None:
        """Replace the ops of the graph."""
        ops, b = self.graph.ops, self.b
        for op in ops:
            b.loc, b.origin = op.loc, op.origin
            follows = op.name == "convolution" or any(v in self.twins for v in op.operands)
            rule = self._elementwise if OPS[op.name].kind == ELEMENTWISE else self.rules.get(op.name)
            if not follows or rule is None or not rule(op):
                self._keep(op)
        self.graph.outputs = [self._as_it_was(v) for v in self.graph.outputs]
        self.graph.ops = b.graph.ops

    def _keep(self, op: Op) -> None:
        op.operands = tuple(map(self._as_it_was, op.operands))
        self.b.graph.ops.append(op)

    def _as_it_was(self, value: Value) -> Value:
        if value not in self.plain:
            twin = self.twins.get(value)
            self.plain[value] = value if twin is None else self.b.transpose(twin, _order(len(value.shape)))
        return self.plain[value]

    def _twin(self, value: Value) -> Value:
        """Made where there is none: numbers and what is one per channel cost nothing."""
        if value not in self.twins:
            op, shape = value.op, _swap(value.shape)
            if splat(value) is not None:
                self.twins[value] = self.b.constant(splat(value), value.dtype, shape)
            elif op is not None and op.name == "broadcast_in_dim":
                dims = [_axis(d) for d in op.attrs["broadcast_dimensions"]]
                self.twins[value] = self.b.broadcast_in_dim(self._as_it_was(op.operands[0]), shape, dims)
            else:
                self.twins[value] = self.b.transpose(self._as_it_was(value), _order(len(shape)))
        return self.twins[value]

    def _append(self, op: Op, operands: Sequence[Value], **attrs: object) -> Value:
        made = self.b.append(op.name, operands, {**op.attrs, **attrs}).results[0]
        made.name = op.result.name
        return made

    # -- ops: each says whether it was done -----------------------------------------------------------------------
    def _convolution(self, op: Op) -> bool:
        made = self._append(op, [self._as_it_was(v) for v in op.operands])
        self.twins[op.result] = self.b.transpose(made, _order(len(made.shape)))
        return True

    def _elementwise(self, op: Op) -> bool:
        if len(op.results) != 1 or len(op.result.shape) < 2:
            return False
        operands = [self._twin(v) if v.shape == op.result.shape else self._as_it_was(v) for v in op.operands]
        self.twins[op.result] = self._append(op, operands)
        return True

    def _windows(self, op: Op) -> bool:
        if len(op.result.shape) < 4:
            return False
        self.twins[op.result] = self._append(op, [self._twin(v) for v in op.operands])
        return True

    def _transpose(self, op: Op) -> bool:
        order, twin = op.attrs["permutation"], self.twins[op.operands[0]]
        if order == _order(len(order)):
            self.plain[op.result] = twin
        elif order[:2] == (0, 1):
            self.twins[op.result] = self._append(op, [twin])
        else:
            return False
        return True

    def _reshape(self, op: Op) -> bool:
        (x,), shape = op.operands, op.result.shape
        if shape[:2] != x.shape[:2]:
            return False
        self.twins[op.result] = self.b.reshape(self.twins[x], _swap(shape))
        return True

    def _broadcast(self, op: Op) -> bool:
        dims, shape = op.attrs["broadcast_dimensions"], op.result.shape
        if dims[:2] != (0, 1):
            return False
        self.twins[op.result] = self.b.broadcast_in_dim(self.twins[op.operands[0]], _swap(shape), dims)
        return True

    def _reduce(self, op: Op) -> bool:
        dims = op.attrs["dimensions"]
        made = self._append(op, [self.twins[op.operands[0]]], dimensions=tuple(sorted(map(_axis, dims))))
        (self.plain if {0, 1} & set(dims) else self.twins)[op.result] = made
        return True

    def _shifted(self, op: Op) -> bool:
        x, *others = op.operands
        if x not in self.twins:
            return False
        attrs = {k: _swap(op.attrs[k]) for k in PER_DIMENSION[op.name]}
        self.twins[op.result] = self._append(op, [self.twins[x], *map(self._as_it_was, others)], **attrs)
        return True

    def _concatenate(self, op: Op) -> bool:
        operands = [self._twin(v) for v in op.operands]
        self.twins[op.result] = self._append(op, operands, dimension=_axis(op.attrs["dimension"]))
        return True
