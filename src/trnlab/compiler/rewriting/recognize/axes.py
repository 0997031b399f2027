# SPDX-License-Identifier: Apache-2.0
"""What the dimensions of a value stand for: names of axes that survive reshapes and transposes.

An axis has a size. A dimension is a sequence of axes, the slowest first; one of size 1 has none. A reshape may split
an axis in two, for every value that has it. Axes whose name is not known yet are free: the first axis that an op puts
beside one is what it stands for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Op, Value


@dataclass(eq=False, slots=True)
class Axis:
    """An axis of attention, as its sizes tell it from others."""

    size: int
    free: bool = False  # its name is not known yet
    parts: tuple[Axis, ...] = ()  # what it was split into, or the axis that it stands for


Dim = tuple[Axis, ...]
Dims = tuple[Dim, ...]


def fresh(size: int, *, free: bool = False) -> Dim:
    """A dimension of a new axis."""
    return (Axis(size, free),) if size > 1 else ()


def flat(axes: Iterable[Axis]) -> Dim:
    """The axes as they are split now."""
    found: list[Axis] = []
    for axis in axes:
        found.extend(flat(axis.parts) if axis.parts else (axis,))
    return tuple(found)


def resolved(dims: Dims) -> Dims:
    """Each dimension as its axes are split now."""
    return tuple(flat(dim) for dim in dims)


def size_of(axes: Iterable[Axis]) -> int:
    """Elements along some axes."""
    return prod(axis.size for axis in axes)


def _split(axis: Axis, first: int) -> None:
    axis.parts = (Axis(first, axis.free), Axis(axis.size // first, axis.free))


def regroup(dims: Dims, shape: Sequence[int]) -> Dims | None:
    """The dimensions after a reshape to `shape`, or None where it cuts an axis so that no sizes can say it."""
    left, found = list(flat(axis for dim in dims for axis in dim)), []
    for size in shape:
        dim: list[Axis] = []
        while size_of(dim) < size:
            if not left:
                return None
            missing = size // size_of(dim)
            if size_of(dim) * missing != size:
                return None
            if left[0].size > missing:
                if left[0].size % missing:
                    return None
                _split(left[0], missing)
                left[:1] = flat(left[:1])
            elif missing % left[0].size:
                return None
            dim.append(left.pop(0))
        found.append(tuple(dim))
    return None if left else tuple(found)


def unify(one: Dims, other: Dims) -> bool:
    """Make two lists of dimensions name the same axes, giving free ones their names; whether that is possible."""
    return len(one) == len(other) and all(_unify(a, b) for a, b in zip(one, other))


def _unify(one: Dim, other: Dim) -> bool:
    a, b = list(flat(one)), list(flat(other))
    while a and b:
        if a[0] is b[0]:
            del a[0], b[0]
        elif a[0].size != b[0].size:
            large, small = (a, b) if a[0].size > b[0].size else (b, a)
            if large[0].size % small[0].size:
                return False
            _split(large[0], small[0].size)
            large[:1] = flat(large[:1])
        elif a[0].free:
            a[0].parts = (b[0],)
            del a[0], b[0]
        elif b[0].free:
            b[0].parts = (a[0],)
            del a[0], b[0]
        else:
            return False
    return not a and not b


# -- through ops that move elements ---------------------------------------------------------------------------------


def moved(op: Op, dims: Dims) -> Dims | None:
    """Dimensions of the result of a reshape or transpose, given the operand's."""
    if op.name == "reshape":
        return regroup(dims, op.result.shape)
    return tuple(dims[a] for a in op.attrs["permutation"])


def moved_back(op: Op, dims: Dims) -> Dims | None:
    """Dimensions of the operand of a reshape, transpose or broadcast, given the result's."""
    if op.name == "reshape":
        return regroup(dims, op.operands[0].shape)
    if op.name == "broadcast_in_dim":
        sources = zip(op.operands[0].shape, op.attrs["broadcast_dimensions"])
        return tuple(dims[d] if n > 1 else () for n, d in sources)
    order = op.attrs["permutation"]
    return tuple(dims[order.index(a)] for a in range(len(order)))


def arrange(b: GraphBuilder, value: Value, dims: Dims, groups: Sequence[Dim]) -> Value:
    """`value` with one dimension for each group of axes; axes that it does not have are of size 1 there, unless
    others of the group are there: then it is repeated along them."""
    have = flat(axis for dim in dims for axis in dim)
    wanted = [flat(group) for group in groups]
    present = [axis for group in wanted for axis in group if axis in have]
    value = b.reshape(value, [axis.size for axis in have])
    value = b.transpose(value, [have.index(axis) for axis in present])
    whole = [[axis for axis in group if axis in have or any(a in have for a in group)] for group in wanted]
    axes = [axis for group in whole for axis in group]
    if len(axes) > len(present):
        value = b.broadcast_in_dim(value, [a.size for a in axes], [axes.index(a) for a in present])
    return b.reshape(value, [size_of(group) for group in whole])


def restore(b: GraphBuilder, value: Value, groups: Sequence[Dim], dims: Dims) -> Value:
    """The way back from `arrange`, for a value that has all axes of all groups."""
    axes = [axis for group in groups for axis in flat(group)]
    order = [axis for dim in resolved(dims) for axis in dim]
    value = b.transpose(b.reshape(value, [a.size for a in axes]), [axes.index(a) for a in order])
    return b.reshape(value, [size_of(dim) for dim in dims])


def narrow(value: Value, dims: Dims) -> tuple[Value, Dims, bool]:
    """What `value` repeats, moves or negates: (source, its dimensions, whether truth values are the other way
    round)."""
    negated = False
    while value.op is not None and value.op.name in ("broadcast_in_dim", "reshape", "transpose", "not"):
        found = dims if value.op.name == "not" else moved_back(value.op, dims) if _is_named(value.op, dims) else None
        if found is None:
            break
        negated ^= value.op.name == "not"
        value, dims = value.op.operands[0], found
    return value, resolved(dims), negated


def _is_named(op: Op, dims: Dims) -> bool:
    """Whether a reshape has a name for each element: size-one dimensions that something is repeated along have one
    too."""
    return op.name != "reshape" or all(size_of(dim) == n for dim, n in zip(dims, op.result.shape))
