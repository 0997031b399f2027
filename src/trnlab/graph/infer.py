# SPDX-License-Identifier: Apache-2.0
"""Result types of ops from operand types and attributes; raises GraphError where an op's typing rules are broken.

    TRN301 unknown op or wrong number of operands    TRN303 wrong dtype
    TRN302 wrong shape                               TRN304 wrong attribute

Nothing here broadcasts: ops other than broadcast_in_dim need operands of equal shape, as in StableHLO.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from trnlab.errors import GraphError
from trnlab.graph import infer_collectives as collectives
from trnlab.graph import infer_composites as composites
from trnlab.graph.ir import Callee, TensorType
from trnlab.graph.loops import Body
from trnlab.graph.needs import axes as _axes
from trnlab.graph.needs import fail as _fail
from trnlab.graph.needs import need as _need
from trnlab.graph.needs import same_dtype as _same_dtype
from trnlab.graph.needs import same_shape as _same_shape
from trnlab.graph.ops import BINARY, OPS, UNARY, OpDef
from trnlab.numerics.dtypes import DType, bool_, float32, int32, uint32

Types = Sequence[TensorType]
Attrs = Mapping[str, Any]
Rule = Callable[[Types, Attrs], "TensorType | tuple[TensorType, ...]"]


def infer(name: str, operands: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    """Types of the results. Raises GraphError (without a location; the caller knows it)."""
    definition = OPS.get(name)
    if definition is None:
        _fail("TRN301", f"unknown op {name!r}", remedy="the table is trnlab.graph.ops.OPS")
    low, high = definition.arity
    if not low <= len(operands) <= high:
        _fail("TRN301", f"{name}: wrong number of operands", limit=", ".join(definition.operands), got=len(operands))
    _check_attrs(definition, attrs)
    _check_dtypes(definition, operands)
    try:
        types = _RULES[name](operands, attrs)
    except GraphError as error:
        error.what = f"{name}: {error.what}"
        error.got = f"{error.got} for operands ({', '.join(map(str, operands))})"
        raise
    return types if isinstance(types, tuple) else (types,)


# -- attributes and dtypes, for all ops ---------------------------------------------------------------------------

_ATTR_TYPES: dict[str, Callable[[Any], bool]] = {
    "int": lambda v: type(v) is int,
    "ints": lambda v: type(v) is tuple and all(type(i) is int for i in v),
    "float": lambda v: type(v) is float,
    "bool": lambda v: type(v) is bool,
    "str": lambda v: type(v) is str,
    "dtype": lambda v: isinstance(v, DType),
    "value": lambda v: isinstance(v, (bool, int, float, np.ndarray)),
    "callee": lambda v: hasattr(v, "digest"),
}


def _check_attrs(definition: OpDef, attrs: Attrs) -> None:
    for key, spec in definition.attrs.items():
        if key not in attrs:
            _fail("TRN304", f"{definition.name}: attribute {key!r} is missing", limit=spec.kind)
        value = attrs[key]
        if not _ATTR_TYPES[spec.kind](value):
            _fail(
                "TRN304", f"{definition.name}: attribute {key!r} has the wrong type", limit=spec.kind, got=repr(value)
            )
        if spec.choices and value not in spec.choices:
            allowed = ", ".join(spec.choices)
            _fail("TRN304", f"{definition.name}: attribute {key!r} is not a choice", limit=allowed, got=value)
    if len(attrs) != len(definition.attrs):
        known, extra = ", ".join(definition.attrs), ", ".join(sorted(set(attrs) - set(definition.attrs)))
        _fail("TRN304", f"{definition.name}: unknown attribute", limit=known or "none", got=extra)


_DTYPE_RULES: dict[str, tuple[str, str]] = {
    "f": ("f", "a float format"),
    "i": ("iu", "an integer format"),
    "n": ("fiu", "a float or integer format"),
    "l": ("iub", "an integer format or bool"),
}


def _check_dtypes(definition: OpDef, operands: Types) -> None:
    if definition.dtypes == "a":
        return
    kinds, words = _DTYPE_RULES[definition.dtypes]
    for label, operand in zip(definition.operands, operands):
        if operand.dtype.kind not in kinds:
            _fail("TRN303", f"{definition.name}: wrong dtype of {label!r}", limit=words, got=operand.dtype.name)


def _check_shape(shape: tuple[int, ...]) -> None:
    _need(all(n >= 0 for n in shape), "negative size", "sizes >= 0", shape)


# -- elementwise --------------------------------------------------------------------------------------------------


def _unary(types: Types, attrs: Attrs) -> TensorType:
    return types[0]


def _binary(types: Types, attrs: Attrs) -> TensorType:
    _same_shape(types)
    _same_dtype(types)
    return types[0]


def _is_finite(types: Types, attrs: Attrs) -> TensorType:
    return TensorType(types[0].shape, bool_)


def _compare(types: Types, attrs: Attrs) -> TensorType:
    return TensorType(_binary(types, attrs).shape, bool_)


def _select(types: Types, attrs: Attrs) -> TensorType:
    pred, on_true, on_false = types
    _need(pred.dtype is bool_, "pred must be bool", "bool", pred.dtype.name, "TRN303")
    _binary((on_true, on_false), attrs)
    fits = pred.shape in ((), on_true.shape)
    _need(fits, "pred must be scalar or have the operands' shape", on_true.shape, pred.shape)
    return on_true


def _clamp(types: Types, attrs: Attrs) -> TensorType:
    low, operand, high = types
    _same_dtype(types)
    for bound in (low, high):
        _need(
            bound.shape in ((), operand.shape),
            "bounds must be scalar or of the operand's shape",
            operand.shape,
            bound.shape,
        )
    return operand


def _convert(types: Types, attrs: Attrs) -> TensorType:
    return TensorType(types[0].shape, attrs["dtype"])


def _bitcast_convert(types: Types, attrs: Attrs) -> TensorType:
    source, target = types[0].dtype, attrs["dtype"]
    same = source.itemsize == target.itemsize and bool_ not in (source, target)
    _need(same, "formats differ in width", f"{8 * source.itemsize} bits", target.name, "TRN303")
    return TensorType(types[0].shape, target)


# -- sources ------------------------------------------------------------------------------------------------------


def _constant(types: Types, attrs: Attrs) -> TensorType:
    value, shape, dtype = attrs["value"], attrs["shape"], attrs["dtype"]
    _check_shape(shape)
    if isinstance(value, np.ndarray):
        _need(value.shape == shape, "array and shape differ", shape, value.shape)
        _need(value.dtype == dtype.numpy, "array and dtype differ", dtype.name, value.dtype, "TRN303")
    else:
        kind = bool if dtype is bool_ else float if dtype.is_float else int
        _need(type(value) is kind, "value and dtype differ", kind.__name__, repr(value), "TRN303")
    return TensorType(shape, dtype)


def _iota(types: Types, attrs: Attrs) -> TensorType:
    _check_shape(attrs["shape"])
    _axes("iota_dimension", (attrs["iota_dimension"],), len(attrs["shape"]))
    _need(attrs["dtype"] is not bool_, "wrong dtype", "a float or integer format", "bool", "TRN303")
    return TensorType(attrs["shape"], attrs["dtype"])


def _rng_uniform(types: Types, attrs: Attrs) -> TensorType:
    _check_shape(attrs["shape"])
    _need(types[0] == TensorType((2,), int32), "a seed is two int32", "tensor<2xint32>", types[0], "TRN303")
    last = attrs["first"] + prod(attrs["shape"])
    _need(attrs["first"] >= 0 and last < 2**63, "not numbers of a random sequence", "0 to 2**63 - 1", last, "TRN304")
    return TensorType(attrs["shape"], float32)


def _rng_philox(types: Types, attrs: Attrs) -> TensorType:
    _check_shape(attrs["shape"])
    _need(types[0] == TensorType((6,), uint32), "a state is six words", "tensor<6xuint32>", types[0], "TRN303")
    return TensorType(attrs["shape"], uint32)


# -- shapes -------------------------------------------------------------------------------------------------------


def _broadcast_in_dim(types: Types, attrs: Attrs) -> TensorType:
    operand, dims, shape = types[0], attrs["broadcast_dimensions"], attrs["shape"]
    _check_shape(shape)
    _need(len(dims) == operand.rank, "one broadcast dimension per dimension", operand.rank, dims, "TRN304")
    _axes("broadcast_dimensions", dims, len(shape))
    for axis, size in zip(dims, operand.shape):
        _need(size in (1, shape[axis]), f"cannot broadcast into dimension {axis}", f"1 or {shape[axis]}", size)
    return TensorType(shape, operand.dtype)


def _reshape(types: Types, attrs: Attrs) -> TensorType:
    _check_shape(attrs["shape"])
    _need(prod(attrs["shape"]) == types[0].size, "element count changes", types[0].size, attrs["shape"])
    return TensorType(attrs["shape"], types[0].dtype)


def _transpose(types: Types, attrs: Attrs) -> TensorType:
    operand, order = types[0], attrs["permutation"]
    _need(sorted(order) == list(range(operand.rank)), "not a permutation", f"of {operand.rank} axes", order, "TRN304")
    return TensorType(tuple(operand.shape[a] for a in order), operand.dtype)


def _slice(types: Types, attrs: Attrs) -> TensorType:
    shape, rank = types[0].shape, types[0].rank
    bounds = attrs["start_indices"], attrs["limit_indices"], attrs["strides"]
    _need(all(len(b) == rank for b in bounds), "one start, limit and stride per dimension", rank, bounds, "TRN304")
    for axis, (start, limit, stride) in enumerate(zip(*bounds)):
        legal = 0 <= start <= limit <= shape[axis] and stride > 0
        _need(legal, f"bad bounds in dimension {axis}", f"0..{shape[axis]}", f"{start}:{limit}:{stride}")
    return TensorType(tuple(-(-(limit - start) // stride) for start, limit, stride in zip(*bounds)), types[0].dtype)


def _concatenate(types: Types, attrs: Attrs) -> TensorType:
    axis, first = attrs["dimension"], types[0]
    _axes("dimension", (axis,), first.rank)
    _same_dtype(types)
    for other in types[1:]:
        same = other.rank == first.rank and all(
            a == b for i, (a, b) in enumerate(zip(other.shape, first.shape)) if i != axis
        )
        _need(same, f"operands differ outside of dimension {axis}", first.shape, other.shape)
    return TensorType((*first.shape[:axis], sum(t.shape[axis] for t in types), *first.shape[axis + 1 :]), first.dtype)


def _pad(types: Types, attrs: Attrs) -> TensorType:
    operand, value = types
    sides = attrs["edge_padding_low"], attrs["edge_padding_high"], attrs["interior_padding"]
    _same_dtype(types)
    _need(value.shape == (), "the padding value must be a scalar", (), value.shape)
    _need(all(len(s) == operand.rank for s in sides), "one padding per dimension", operand.rank, sides, "TRN304")
    _need(all(n >= 0 for n in sides[2]), "interior padding must not be negative", 0, sides[2], "TRN304")
    shape = tuple(n + low + high + max(n - 1, 0) * inside for n, low, high, inside in zip(operand.shape, *sides))
    _check_shape(shape)
    return TensorType(shape, operand.dtype)


# -- reductions, products -----------------------------------------------------------------------------------------


def _reduce(types: Types, attrs: Attrs) -> TensorType:
    operand, dims = types[0], attrs["dimensions"]
    _axes("dimensions", dims, operand.rank)
    if attrs["kind"] in ("and", "or"):
        _need(operand.dtype.is_integer, "wrong dtype", "an integer format or bool", operand.dtype.name, "TRN303")
    else:
        _need(operand.dtype is not bool_, "wrong dtype", "a float or integer format", "bool", "TRN303")
    return TensorType(tuple(n for a, n in enumerate(operand.shape) if a not in dims), operand.dtype)


def _dot_general(types: Types, attrs: Attrs) -> TensorType:
    lhs, rhs = types
    pairs = [
        ("batching", attrs["lhs_batching_dimensions"], attrs["rhs_batching_dimensions"]),
        ("contracting", attrs["lhs_contracting_dimensions"], attrs["rhs_contracting_dimensions"]),
    ]
    for label, left, right in pairs:
        _need(len(left) == len(right), f"{label} dimensions differ in number", left, right, "TRN304")
        for a, b in zip(left, right):
            inside = 0 <= a < lhs.rank and 0 <= b < rhs.rank
            _need(inside, f"{label} dimensions outside of the operands", (lhs.rank, rhs.rank), (a, b), "TRN304")
            _need(lhs.shape[a] == rhs.shape[b], f"{label} dimensions differ in size", lhs.shape[a], rhs.shape[b])
    used_left, used_right = pairs[0][1] + pairs[1][1], pairs[0][2] + pairs[1][2]
    _axes("lhs dimensions", used_left, lhs.rank)
    _axes("rhs dimensions", used_right, rhs.rank)
    same_kind = lhs.dtype.is_float == rhs.dtype.is_float == attrs["dtype"].is_float
    _need(same_kind, "floats and integers mixed", (lhs.dtype, rhs.dtype), attrs["dtype"], "TRN303")
    shape = (
        *(lhs.shape[a] for a in pairs[0][1]),
        *(n for a, n in enumerate(lhs.shape) if a not in used_left),
        *(n for a, n in enumerate(rhs.shape) if a not in used_right),
    )
    return TensorType(shape, attrs["dtype"])


def _dot_sum(types: Types, attrs: Attrs) -> TensorType:
    _need(len(types) % 2 == 0, "operands come in pairs", "an even number", len(types), "TRN302")
    whole = {"lhs_batching_dimensions": (), "rhs_batching_dimensions": (), **attrs}
    found = [_dot_general(types[i : i + 2], whole) for i in range(0, len(types), 2)]
    _need(all(t == found[0] for t in found), "products of different shapes", found[0], found[-1], "TRN304")
    return found[0]


def _dot_and_sums(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    _need(all(t.rank == 2 for t in types), "operands must be matrices", 2, [t.rank for t in types], "TRN304")
    none: Attrs = {"lhs_batching_dimensions": (), "rhs_batching_dimensions": ()}
    whole = {**none, "lhs_contracting_dimensions": (0,), "rhs_contracting_dimensions": (0,), **attrs}
    summed = types[("lhs", "rhs").index(attrs["summed"])]
    return _dot_general(types, whole), TensorType(summed.shape[1:], float32)


def _convolution(types: Types, attrs: Attrs) -> TensorType:
    lhs, rhs = types
    _need(lhs.rank == rhs.rank > 2, "operands must have two dimensions and those of space", lhs.rank, rhs.rank)
    per_dimension = ("window_strides", "padding_low", "padding_high", "lhs_dilation", "rhs_dilation")
    for key in per_dimension:
        _need(
            len(attrs[key]) == lhs.rank - 2,
            f"{key}: one for each dimension of space",
            lhs.rank - 2,
            attrs[key],
            "TRN304",
        )
        _need("padding" in key or min(attrs[key]) > 0, f"{key} must be positive", 1, attrs[key], "TRN304")
    groups, batches = attrs["feature_group_count"], attrs["batch_group_count"]
    _need(min(groups, batches) == 1, "groups of features or of batches, not both", 1, (groups, batches), "TRN304")
    _need(rhs.shape[1] * groups == lhs.shape[1], "channels differ", lhs.shape[1], rhs.shape[1] * groups)
    _need(
        rhs.shape[0] % (groups * batches) == 0,
        "output channels are no multiple of the groups",
        groups * batches,
        rhs.shape[0],
    )
    _need(lhs.shape[0] % batches == 0, "images are no multiple of the groups", batches, lhs.shape[0])
    sizes = zip(lhs.shape[2:], rhs.shape[2:], *(attrs[k] for k in per_dimension))
    return TensorType((lhs.shape[0] // batches, rhs.shape[0], *(_places(*each) for each in sizes)), attrs["dtype"])


def _places(size: int, window: int, stride: int, low: int, high: int, spread: int, dilation: int) -> int:
    """In how many places along one dimension a window lies inside."""
    inside = max((size - 1) * spread + 1, 0) + low + high
    extent = max((window - 1) * dilation + 1, 0)
    return (inside - extent) // stride + 1 if inside >= extent else 0


# -- gather and scatter -------------------------------------------------------------------------------------------


def _index_batch(indices: TensorType, vector_dim: int, map_: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of the indices without their index vectors; an index_vector_dim of rank means scalars as vectors."""
    _need(indices.dtype.kind in "iu", "indices must be integers", "an integer format", indices.dtype.name, "TRN303")
    _need(0 <= vector_dim <= indices.rank, "bad index_vector_dim", f"0..{indices.rank}", vector_dim, "TRN304")
    width = indices.shape[vector_dim] if vector_dim < indices.rank else 1
    _need(width == len(map_), "index vectors and index map differ in length", len(map_), width)
    return tuple(n for a, n in enumerate(indices.shape) if a != vector_dim)


def _gather(types: Types, attrs: Attrs) -> TensorType:
    operand, indices = types
    sizes, offset = attrs["slice_sizes"], attrs["offset_dims"]
    dropped = attrs["collapsed_slice_dims"] + attrs["operand_batching_dims"]
    _axes("start_index_map", attrs["start_index_map"], operand.rank)
    _axes("collapsed and batching dimensions", dropped, operand.rank)
    _need(len(sizes) == operand.rank, "one slice size per dimension", operand.rank, sizes, "TRN304")
    for axis, (size, limit) in enumerate(zip(sizes, operand.shape)):
        _need(0 <= size <= limit, f"slice larger than dimension {axis}", limit, size)
        _need(axis not in dropped or size <= 1, f"collapsed dimension {axis} must have slice size 1", 1, size)
    batch = _index_batch(indices, attrs["index_vector_dim"], attrs["start_index_map"])
    window = tuple(n for a, n in enumerate(sizes) if a not in dropped)
    _need(len(offset) == len(window), "one offset dimension per kept slice dimension", len(window), offset, "TRN304")
    return TensorType(_interleave(batch, window, offset), operand.dtype)


def _interleave(batch: tuple[int, ...], window: tuple[int, ...], places: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that has `window` at `places` and `batch` in the other places, both in order."""
    rank = len(batch) + len(window)
    _axes("window dimensions", places, rank)
    _need(list(places) == sorted(places), "window dimensions must ascend", sorted(places), places, "TRN304")
    inside, outside = iter(window), iter(batch)
    return tuple(next(inside) if axis in places else next(outside) for axis in range(rank))


def _scatter(types: Types, attrs: Attrs) -> TensorType:
    operand, indices, update = types
    _same_dtype((operand, update))
    dropped = attrs["inserted_window_dims"] + attrs["input_batching_dims"]
    _axes("scatter_dims_to_operand_dims", attrs["scatter_dims_to_operand_dims"], operand.rank)
    _axes("inserted and batching dimensions", dropped, operand.rank)
    batch = _index_batch(indices, attrs["index_vector_dim"], attrs["scatter_dims_to_operand_dims"])
    places = attrs["update_window_dims"]
    _axes("update_window_dims", places, update.rank)
    kept = [n for a, n in enumerate(operand.shape) if a not in dropped]
    window = tuple(update.shape[a] for a in places)
    fits = len(window) == len(kept) and all(w <= n for w, n in zip(window, kept))
    _need(fits, "update windows do not fit the input", tuple(kept), window)
    wanted = _interleave(batch, window, places) if len(batch) + len(window) == update.rank else None
    _need(update.shape == wanted, "updates and indices differ in shape", (*batch, *window), update.shape)
    return operand


# -- attention ----------------------------------------------------------------------------------------------------


def _two_of_rows(types: Types, attrs: Attrs) -> TensorType:
    kept = _reduce(types, {**attrs, "kind": "add"})
    return TensorType((2, *kept.shape), float32)


def _one_of_rows(types: Types, attrs: Attrs) -> TensorType:
    return TensorType(_reduce(types, {**attrs, "kind": "add"}).shape, float32)


def _custom_call(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    callee: Callee = attrs["callee"]
    limit = ", ".join(map(str, callee.operands))
    _need(tuple(types) == callee.operands, f"other operands than {callee.name!r} was recorded for", limit, "these")
    return callee.results


def _loop(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    body: Body = attrs["body"]
    faults = body.faults(types)
    _need(not faults, faults or "a loop", "what its rounds read and write", "these operands")
    return body.results(types)


_RULES: dict[str, Rule] = {
    "custom_call": _custom_call,
    **collectives.RULES,
    "loop": _loop,
    **dict.fromkeys(UNARY, _unary),
    **dict.fromkeys(BINARY, _binary),
    "is_finite": _is_finite,
    "compare": _compare,
    "select": _select,
    "clamp": _clamp,
    "convert": _convert,
    "bitcast_convert": _bitcast_convert,
    "constant": _constant,
    "iota": _iota,
    "broadcast_in_dim": _broadcast_in_dim,
    "reshape": _reshape,
    "transpose": _transpose,
    "optimization_barrier": _unary,
    "slice": _slice,
    "concatenate": _concatenate,
    "pad": _pad,
    "reduce": _reduce,
    "dot_general": _dot_general,
    "convolution": _convolution,
    "gather": _gather,
    "scatter": _scatter,
    "trn.rng_uniform": _rng_uniform,
    "trn.rng_philox": _rng_philox,
    "trn.gelu": _unary,
    "trn.rotate_half": composites.rotate_half,
    "trn.gelu_dx": _unary,
    "trn.moments": _two_of_rows,
    "trn.softmax_statistics": _two_of_rows,
    "trn.sum_of_squares": _one_of_rows,
    "trn.dot_sum": _dot_sum,
    "trn.dot_and_sums": _dot_and_sums,
    **composites.RULES,
}
