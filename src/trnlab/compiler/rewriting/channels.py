# SPDX-License-Identifier: Apache-2.0
"""Channels before images: what convolutions make, and all that is computed from it, has its first two dimensions
exchanged.

A convolution contracts channels, and leaves channels on partitions; batch normalisation has one mean per channel. As
[C, N, H, W] each of them finds a channel's pixels of all images side by side in memory: rows are as long as can be, a
1 x 1 convolution is a matrix product of what lies there, and statistics are sums along rows. The pass starts from the
results of convolutions and carries the exchange through whatever can be computed either way, so that nothing is
transposed in between.

JAX and TensorFlow have channels last, [N, H, W, C]. They are brought before the pixels first, the same way.

Losses of pixels are the exception. A softmax over channels asks for the largest one of each pixel, which lie on as
many partitions: they are turned for it, so that a pixel is a row, and where there are many, all that follows element
by element is computed in rows as well, up to where it goes back into convolutions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.ops import ELEMENTWISE, OPS, WINDOW
from trnlab.graph.passes.dead import remove_dead_ops
from trnlab.graph.passes.rewrite import made_by, rewrite, splat

FEW_CLASSES = 32  # up to so many are few rows of many pixels, of which several fill a tile
WINDOWS = tuple(op.name for op in OPS.values() if op.kind == WINDOW)
PER_DIMENSION = {
    "slice": ("start_indices", "limit_indices", "strides"),
    "pad": ("edge_padding_low", "edge_padding_high", "interior_padding"),
}


def channels_first(graph: Graph) -> None:
    """Compute what follows from convolutions as [C, N, H, W], and from windows of pixels as [N, C, H, W]; same
    meaning."""
    names = {op.name for op in graph.ops}
    if not names.isdisjoint(("convolution", *WINDOWS)):
        if rewrite(graph, {"transpose": _once}):
            remove_dead_ops(graph)
        _PixelsLast(graph).run()
    if "convolution" in names:
        _ChannelsFirst(graph).run()
        ClassesLast(graph).run()


def _once(op: Op, b: GraphBuilder) -> Value | None:
    """A transpose of a transpose as one, or none: memory formats of PyTorch turn images there and back."""
    before = made_by(op.operands[0], "transpose")
    if before is None:
        return None
    order = tuple(before.attrs["permutation"][d] for d in op.attrs["permutation"])
    return before.operands[0] if order == tuple(range(len(order))) else b.transpose(before.operands[0], order)


class Relayout:
    """One walk over the ops. A value's twin is the same with its dimensions in another order."""

    least = 2  # dimensions of what has a twin

    def __init__(self, graph: Graph) -> None:
        self.graph, self.b = graph, GraphBuilder(graph.name)
        self.twins: dict[Value, Value] = {}
        self.plain: dict[Value, Value] = {}  # what takes the place of a value, in the order of its dimensions
        self.repeated: dict[Value, bool] = {}
        self.rules: dict[str, Callable[[Op], bool]] = {
            "convolution": self._convolution,
            "transpose": self._transpose,
            "reshape": self._reshape,
            "broadcast_in_dim": self._broadcast,
            "reduce": self._reduce,
            "slice": self._shifted,
            "pad": self._shifted,
            "concatenate": self._concatenate,
            **dict.fromkeys(WINDOWS, self._windows),
        }

    @staticmethod
    def order(rank: int) -> tuple[int, ...]:
        """Which dimension of a value each one of its twin is."""
        raise NotImplementedError

    def run(self) -> None:
        """Replace the ops of the graph."""
        ops, b = self.graph.ops, self.b
        for op in ops:
            b.loc, b.origin = op.loc, op.origin
            rule = self._elementwise if OPS[op.name].kind == ELEMENTWISE else self.rules.get(op.name)
            if not self._follows(op) or rule is None or not rule(op):
                self._keep(op)
        self.graph.outputs = [self._as_it_was(v) for v in self.graph.outputs]
        self.graph.ops = b.graph.ops

    def _follows(self, op: Op) -> bool:
        return any(v in self.twins for v in op.operands)

    def _keep(self, op: Op) -> None:
        op.operands = tuple(map(self._as_it_was, op.operands))
        self.b.graph.ops.append(op)

    def _as_it_was(self, value: Value) -> Value:
        if value not in self.plain:
            twin = self.twins.get(value)
            self.plain[value] = value if twin is None else self.b.transpose(twin, self._places(len(value.shape)))
        return self.plain[value]

    def _places(self, rank: int) -> tuple[int, ...]:
        """Where each dimension of a value is in its twin."""
        order = self.order(rank)
        return tuple(order.index(d) for d in range(rank))

    def _ordered(self, items: Sequence[int]) -> tuple[int, ...]:
        """What each dimension of a value has, in the order of its twin."""
        return tuple(items[d] for d in self.order(len(items)))

    def _twin(self, value: Value) -> Value:
        """Made where there is none: numbers, what is one per channel, and what is computed of such cost nothing."""
        if value not in self.twins:
            op, shape = value.op, self._ordered(value.shape)
            if splat(value) is not None:
                self.twins[value] = self.b.constant(splat(value), value.dtype, shape)
            elif op is not None and op.name == "broadcast_in_dim":
                places = self._places(len(shape))
                dims = [places[d] for d in op.attrs["broadcast_dimensions"]]
                self.twins[value] = self.b.broadcast_in_dim(self._as_it_was(op.operands[0]), shape, dims)
            elif op is not None and op.name == "iota":
                dim = self._places(len(shape))[op.attrs["iota_dimension"]]
                self.twins[value] = self.b.iota(shape, value.dtype, dim)
            elif op is not None and self._is_repeated(value):
                self._elementwise(op)
            else:
                self.twins[value] = self.b.transpose(self._as_it_was(value), self.order(len(shape)))
        return self.twins[value]

    def _is_repeated(self, value: Value) -> bool:
        """Whether a value is computed, element by element, of what is repeated alone."""
        if value not in self.repeated:
            op = value.op
            self.repeated[value] = splat(value) is not None or (
                op is not None
                and (
                    op.name in ("broadcast_in_dim", "iota")
                    or (self._has_twins(op) and all(map(self._is_repeated, op.operands)))
                )
            )
        return self.repeated[value]

    def _has_twins(self, op: Op) -> bool:
        """Whether the results of an op can be computed in the order of their twins, element by element."""
        elementwise = OPS[op.name].kind == ELEMENTWISE and len(op.results) == 1
        return elementwise and len(op.result.shape) >= self.least

    def _append(self, op: Op, operands: Sequence[Value], **attrs: object) -> Value:
        made = self.b.append(op.name, operands, {**op.attrs, **attrs}).results[0]
        made.name = op.result.name
        return made

    # -- ops: each says whether it was done -----------------------------------------------------------------------
    def _convolution(self, op: Op) -> bool:
        return False

    def _windows(self, op: Op) -> bool:
        return False

    def _transpose(self, op: Op) -> bool:
        return False

    def _reshape(self, op: Op) -> bool:
        return False

    def _broadcast(self, op: Op) -> bool:
        return False

    def _elementwise(self, op: Op) -> bool:
        if not self._has_twins(op):
            return False
        operands = [self._twin(v) if v.shape == op.result.shape else self._as_it_was(v) for v in op.operands]
        self.twins[op.result] = self._append(op, operands)
        return True

    def _reduce(self, op: Op) -> bool:
        (x,), dims = op.operands, op.attrs["dimensions"]
        places = self._places(len(x.shape))
        made = self._append(op, [self.twins[x]], dimensions=tuple(sorted(places[d] for d in dims)))
        kept = [d for d in range(len(x.shape)) if d not in dims]
        found = sorted(kept, key=places.__getitem__)
        if found != kept and tuple(map(kept.index, found)) == self.order(len(kept)):
            self.twins[op.result] = made
        else:
            self.plain[op.result] = made if found == kept else self.b.transpose(made, tuple(map(found.index, kept)))
        return True

    def _shifted(self, op: Op) -> bool:
        x, *others = op.operands
        if x not in self.twins:
            return False
        attrs = {k: self._ordered(op.attrs[k]) for k in PER_DIMENSION[op.name]}
        self.twins[op.result] = self._append(op, [self.twins[x], *map(self._as_it_was, others)], **attrs)
        return True

    def _concatenate(self, op: Op) -> bool:
        operands, rank = [self._twin(v) for v in op.operands], len(op.result.shape)
        dimension = self._places(rank)[op.attrs["dimension"]]
        self.twins[op.result] = self._append(op, operands, dimension=dimension)
        return True


def _is_moved_input(value: Value) -> bool:
    """Whether a value is an input of the graph, or one number, in whatever order, or a part of it, or with an edge:
    nothing that is computed before it would have to be brought into another order."""
    while value.op is not None and value.op.name in ("transpose", *PER_DIMENSION):
        value = value.op.operands[0]
    return value.op is None or splat(value) is not None


class _ChannelsFirst(Relayout):
    """[N, C, H, W] as [C, N, H, W], from the results of convolutions on."""

    @staticmethod
    def order(rank: int) -> tuple[int, ...]:
        """The first two exchanged."""
        return (1, 0, *range(2, rank))

    def _follows(self, op: Op) -> bool:
        return op.name == "convolution" or super()._follows(op)

    def _convolution(self, op: Op) -> bool:
        made = self._append(op, [self._as_it_was(v) for v in op.operands])
        self.twins[op.result] = self.b.transpose(made, self.order(len(made.shape)))
        return True

    def _windows(self, op: Op) -> bool:
        if len(op.result.shape) < 4:
            return False
        self.twins[op.result] = self._append(op, [self._twin(v) for v in op.operands])
        return True

    def _transpose(self, op: Op) -> bool:
        order, twin = op.attrs["permutation"], self.twins[op.operands[0]]
        if order == self.order(len(order)):
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
        self.twins[op.result] = self.b.reshape(self.twins[x], self._ordered(shape))
        return True

    def _broadcast(self, op: Op) -> bool:
        dims, shape = op.attrs["broadcast_dimensions"], op.result.shape
        if dims[:2] != (0, 1):
            return False
        self.twins[op.result] = self.b.broadcast_in_dim(self.twins[op.operands[0]], self._ordered(shape), dims)
        return True


class _PixelsLast(Relayout):
    """[N, H, W, C] as [N, C, H, W], from where the result of a convolution, or of windows, is brought into that
    order."""

    least = 3

    @staticmethod
    def order(rank: int) -> tuple[int, ...]:
        """The last behind the first."""
        return (0, rank - 1, *range(1, rank - 1))

    def _follows(self, op: Op) -> bool:
        return self._begins(op) or super()._follows(op)

    def _begins(self, op: Op) -> bool:
        if op.name != "transpose" or len(op.result.shape) < self.least:
            return False
        (x,) = op.operands
        is_last = op.attrs["permutation"] == self._places(len(x.shape))
        if x.op is None or not is_last:
            return False
        return x.op.name == "convolution" or (x.op.name in WINDOWS and all(map(_is_moved_input, x.op.operands)))

    def _transpose(self, op: Op) -> bool:
        (x,), order = op.operands, op.attrs["permutation"]
        if x not in self.twins:
            self.twins[op.result] = self._as_it_was(x)
            return True
        places = self._places(len(order))
        order = tuple(places[d] for d in order)
        twin = self.twins[x]
        self.plain[op.result] = twin if order == tuple(range(len(order))) else self.b.transpose(twin, order)
        return True


class ClassesLast(Relayout):
    """[C, N, H, W] as [N, H, W, C], from where the largest of the first dimension is taken off in a softmax on."""

    least = 3

    @staticmethod
    def order(rank: int) -> tuple[int, ...]:
        """The first behind all others."""
        return (*range(1, rank), 0)

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        found = {op: self._taken_off(op) for op in graph.ops}
        self._begin = {op for op, taken in found.items() if taken is not None and op.result.shape[0] > FEW_CLASSES}
        self._largest = {taken for taken in found.values() if taken is not None}
        self._turns: dict[Value, Value] = {}

    def _taken_off(self, op: Op) -> Op | None:
        """The reduction that finds the largest along the first dimension of what an op takes it off from."""
        if op.name != "subtract" or len(op.result.shape) < self.least:
            return None
        x, largest = op.operands
        spread = made_by(largest, "broadcast_in_dim")
        found = None if spread is None else spread.operands[0]
        while found is not None and (shaped := made_by(found, "reshape")) is not None:
            found = shaped.operands[0]
        taken = None if found is None else made_by(found, "reduce")
        if taken is None or taken.operands[0] is not x or taken.attrs["kind"] != "maximum":
            return None
        return taken if taken.attrs["dimensions"] == (0,) and x.shape[0] > 1 else None

    def _follows(self, op: Op) -> bool:
        return op in self._begin or op in self._largest or super()._follows(op)

    def _reduce(self, op: Op) -> bool:
        if op not in self._largest or op.operands[0] in self.twins:
            return super()._reduce(op)
        turned = self._turned(op.operands[0])
        self.plain[op.result] = self._append(op, [turned], dimensions=(len(turned.shape) - 1,))
        return True

    def _elementwise(self, op: Op) -> bool:
        """What reads another whole value, which lies as [C, N, H, W], is computed so."""
        if op in self._begin and op.operands[0] not in self.twins:
            x, largest = op.operands
            self.twins[op.result] = self._append(op, [self._turned(x), self._twin(largest)])
            return True
        whole = [v for v in op.operands if v.shape == op.result.shape and v not in self.twins]
        return all(map(self._is_repeated, whole)) and super()._elementwise(op)

    def _turned(self, x: Value) -> Value:
        """A value turned, in as few bytes as it is given in; itself it stays as it is for its other readers."""
        if x not in self._turns:
            widened, order = made_by(x, "convert"), self.order(len(x.shape))
            source = x if widened is None else widened.operands[0]
            narrow = source.dtype.is_float and source.dtype.itemsize < x.dtype.itemsize
            turned = self.b.transpose(source if narrow else x, order)
            self._turns[x] = self.b.convert(turned, x.dtype) if narrow else turned
        return self._turns[x]

    def _transpose(self, op: Op) -> bool:
        places = self._places(len(op.result.shape))
        order = tuple(places[d] for d in op.attrs["permutation"])
        self.plain[op.result] = self.b.transpose(self.twins[op.operands[0]], order)
        return True

    def _reshape(self, op: Op) -> bool:
        (x,), shape = op.operands, op.result.shape
        if len(shape) < self.least or shape[0] != x.shape[0]:
            return False
        self.twins[op.result] = self.b.reshape(self.twins[x], self._ordered(shape))
        return True
