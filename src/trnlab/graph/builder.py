# SPDX-License-Identifier: Apache-2.0
"""The one way to make a graph: importers, passes, composites and the text parser all call this builder.

    b = GraphBuilder("scale_and_shift")
    x, w = b.input("x", (8, 128), float32), b.input("w", (128,), float32)
    b.output(b.add(b.multiply(x, 2.0), w), "y")
    graph = b.build()

Two-operand elementwise methods broadcast as NumPy does and take Python numbers; what they insert is an explicit
broadcast_in_dim or constant. `op` is the strict way in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import prod
from typing import Any

import numpy as np

from trnlab.collectives import Groups
from trnlab.errors import GraphError, Location
from trnlab.graph import verify
from trnlab.graph.infer import infer
from trnlab.graph.ir import Callee, Graph, Op, TensorType, Value
from trnlab.graph.loops import Body
from trnlab.graph.ops import OPS, REQUIRED
from trnlab.numerics.dtypes import DType, bool_, dtype, float32, from_numpy, int32

Number = bool | int | float
Array = np.ndarray[Any, Any]


class _Unary:
    """A builder method `b.<op>(x)`."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name.rstrip("_")

    def __get__(self, builder: GraphBuilder, owner: type) -> Callable[[Value], Value]:
        return partial(builder.op, self.name)


class _Binary(_Unary):
    """A builder method `b.<op>(x, y)` that broadcasts; either operand may be a number."""

    def __get__(  # type: ignore[override]
        self, builder: GraphBuilder, owner: type
    ) -> Callable[[Value | Number, Value | Number], Value]:
        return partial(builder.binary, self.name)


class GraphBuilder:
    """Appends ops in order, infers their types, and stamps each with the current `loc` and `origin`."""

    def __init__(self, name: str) -> None:
        self.graph = Graph(name)
        self.loc: Location | None = None
        self.origin = ""
        self.unrounded: dict[Value, float] = {}  # constants, as the caller wrote what was rounded to their format

    # -- the frame ----------------------------------------------------------------------------------------------
    def input(self, name: str, shape: Sequence[int], dt: DType | str) -> Value:
        """A new input of the graph."""
        value = Value(TensorType(tuple(shape), dtype(dt)), name=name, index=len(self.graph.inputs))
        self.graph.inputs.append(value)
        return value

    def output(self, value: Value, name: str = "", alias_of: Value | None = None) -> None:
        """Make `value` the next output; with `alias_of` it overwrites that input in place."""
        index = len(self.graph.outputs)
        if alias_of is not None:
            self.graph.aliases[index] = self.graph.inputs.index(alias_of)
        self.graph.outputs.append(value)
        self.graph.output_names.append(name or f"out{index}")

    def build(self) -> Graph:
        """The graph, verified."""
        verify.verify(self.graph)
        return self.graph

    @contextmanager
    def at(self, loc: Location | None, origin: str = "") -> Iterator[None]:
        """Stamp the ops appended inside with this location and origin."""
        saved, (self.loc, self.origin) = (self.loc, self.origin), (loc, origin)
        try:
            yield
        finally:
            self.loc, self.origin = saved

    def op(self, name: str, *operands: Value, **attrs: Any) -> Value:
        """Append an op with exactly these operands; its first result. Raises GraphError with the current location."""
        return self.append(name, operands, attrs).results[0]

    def append(self, name: str, operands: Sequence[Value], attrs: dict[str, Any]) -> Op:
        """Append an op; attributes that have a default may be left out."""
        if name in OPS:
            defaults = {k: a.default for k, a in OPS[name].attrs.items() if a.default is not REQUIRED}
            attrs = {**defaults, **attrs}
        try:
            types = infer(name, [v.type for v in operands], attrs)
        except GraphError as error:
            error.where = self.loc
            raise
        op = Op(name, tuple(operands), attrs, (), self.loc, self.origin)
        op.results = tuple(Value(t, op, i) for i, t in enumerate(types))
        self.graph.ops.append(op)
        return op

    # -- elementwise --------------------------------------------------------------------------------------------
    negate, abs, sign, not_, is_finite, floor, ceil = (_Unary() for _ in range(7))
    exponential, exponential_minus_one, log, log_plus_one, sqrt, rsqrt = (_Unary() for _ in range(6))
    tanh, logistic, sine, cosine, erf, atan, round_nearest_even = (_Unary() for _ in range(7))
    add, subtract, multiply, divide, maximum, minimum = (_Binary() for _ in range(6))
    power, remainder, and_, or_, xor = (_Binary() for _ in range(5))
    shift_left, shift_right_logical, shift_right_arithmetic = (_Binary() for _ in range(3))

    def binary(self, name: str, x: Value | Number, y: Value | Number, **attrs: Any) -> Value:
        """A two-operand elementwise op with NumPy's broadcasting; a Python number takes the other's dtype."""
        return self.op(name, *self._together(x, y), **attrs)

    def compare(self, x: Value | Number, direction: str, y: Value | Number) -> Value:
        """x EQ|NE|LT|LE|GT|GE y, a bool tensor; broadcasts."""
        return self.binary("compare", x, y, comparison_direction=direction)

    def select(self, pred: Value, on_true: Value | Number, on_false: Value | Number) -> Value:
        """on_true where pred, else on_false; broadcasts."""
        on_true, on_false = self._together(on_true, on_false)
        shape = np.broadcast_shapes(pred.shape, on_true.shape)
        return self.op("select", *(self.broadcast_to(v, shape) for v in (pred, on_true, on_false)))

    def clamp(self, low: Value | Number, x: Value, high: Value | Number) -> Value:
        """min(max(x, low), high); the bounds are numbers, scalars or of x's shape."""
        bounds = (v if isinstance(v, Value) else self.constant(v, x.dtype) for v in (low, high))
        low, high = bounds
        return self.op("clamp", low, x, high)

    def convert(self, x: Value, dt: DType | str) -> Value:
        """x in another format (no op when it has it)."""
        return x if x.dtype is dtype(dt) else self.op("convert", x, dtype=dtype(dt))

    def bitcast_convert(self, x: Value, dt: DType | str) -> Value:
        """The bits of x read as another format of the same width (no op when it has it)."""
        return x if x.dtype is dtype(dt) else self.op("bitcast_convert", x, dtype=dtype(dt))

    def gelu(self, x: Value, approximate: str = "none") -> Value:
        """x * Phi(x), or its tanh approximation."""
        return self.op("trn.gelu", x, approximate=approximate)

    def gelu_dx(self, x: Value, approximate: str = "none") -> Value:
        """Derivative of gelu at x."""
        return self.op("trn.gelu_dx", x, approximate=approximate)

    def copysign(self, magnitude: Value | Number, sign: Value | Number) -> Value:
        """|magnitude| with the sign of `sign`, of zeros too; broadcasts."""
        return self.binary("trn.copysign", magnitude, sign)

    def silu(self, x: Value) -> Value:
        """x * logistic(x)."""
        return self.op("trn.silu", x)

    def silu_dx(self, x: Value) -> Value:
        """Derivative of silu at x."""
        return self.op("trn.silu_dx", x)

    # -- sources ------------------------------------------------------------------------------------------------
    def constant(self, value: Number | Array, dt: DType | str | None = None, shape: Sequence[int] = ()) -> Value:
        """A number filled into `shape`, or an array. Arrays whose elements are all equal are kept as a number."""
        given = value
        if isinstance(value, (np.ndarray, np.generic)):
            target = from_numpy(value.dtype) if dt is None else dtype(dt)
            shape = value.shape or shape
            value = _as_attr(np.asarray(value), target)
        else:
            default = bool_ if isinstance(value, bool) else int32 if isinstance(value, int) else float32
            target = default if dt is None else dtype(dt)
            number = value
            value = _as_attr(np.asarray(number), target)
            if target.kind in "iu" and value != number:
                raise GraphError(
                    "a number outside of its format", code="TRN304", limit=target, got=number, where=self.loc
                )
        made = self.op("constant", value=value, shape=tuple(shape), dtype=target)
        if isinstance(given, float):
            self.unrounded[made] = given
        return made

    def iota(self, shape: Sequence[int], dt: DType | str, dimension: int = 0) -> Value:
        """Each element's index along `dimension`."""
        return self.op("iota", shape=tuple(shape), dtype=dtype(dt), iota_dimension=dimension)

    def rng_uniform(self, shape: Sequence[int], seed: Value, first: int = 0) -> Value:
        """float32 in [0, 1): multiples of 2**-24, from a seed of two int32.

        They are numbers first, first + 1, ... of the seed's sequence. Ranges of numbers that do not overlap are
        independent.
        """
        return self.op("trn.rng_uniform", seed, shape=tuple(shape), first=first)

    def rng_philox(self, shape: Sequence[int], state: Value) -> Value:
        """uint32: words 0, 1, ... of Philox-4x32, from a state of six words (`numerics.philox`)."""
        return self.op("trn.rng_philox", state, shape=tuple(shape))

    # -- shapes -------------------------------------------------------------------------------------------------
    def broadcast_in_dim(self, x: Value, shape: Sequence[int], dims: Sequence[int]) -> Value:
        """Dimension i of x becomes dimension dims[i] of the result, stretched where its size is 1."""
        return self.op("broadcast_in_dim", x, shape=tuple(shape), broadcast_dimensions=tuple(dims))

    def broadcast_to(self, x: Value, shape: Sequence[int]) -> Value:
        """NumPy's broadcast: trailing dimensions align (no op when the shape is right)."""
        shape = tuple(shape)
        if x.shape == shape:
            return x
        return self.broadcast_in_dim(x, shape, range(len(shape) - len(x.shape), len(shape)))

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        """The same elements in row-major order; one size may be -1 (no op when the shape is right)."""
        shape = tuple(shape)
        if -1 in shape:
            rest = prod(n for n in shape if n != -1)
            shape = tuple(x.type.size // max(rest, 1) if n == -1 else n for n in shape)
        return x if x.shape == shape else self.op("reshape", x, shape=shape)

    def transpose(self, x: Value, permutation: Sequence[int]) -> Value:
        """Dimension i of the result is dimension permutation[i] of x."""
        return self.op("transpose", x, permutation=tuple(permutation))

    def slice(
        self, x: Value, start: Sequence[int], limit: Sequence[int], strides: Sequence[int] | None = None
    ) -> Value:
        """x[start:limit:strides] in every dimension."""
        strides = tuple(strides) if strides is not None else (1,) * len(x.shape)
        return self.op("slice", x, start_indices=tuple(start), limit_indices=tuple(limit), strides=strides)

    def slice_dim(self, x: Value, dimension: int, start: int, limit: int, stride: int = 1) -> Value:
        """Slice one dimension."""
        bounds = [(0, n, 1) for n in x.shape]
        bounds[dimension] = (start, limit, stride)
        return self.slice(x, *zip(*bounds))

    def concatenate(self, xs: Sequence[Value], dimension: int) -> Value:
        """Join along one dimension."""
        return self.op("concatenate", *xs, dimension=dimension % max(len(xs[0].shape), 1))

    def interleave(self, parts: Sequence[Value], spread: Sequence[int], size: Sequence[int]) -> Value:
        """[..., size]: element m of part r stands at m * spread + r in each of the last dimensions.

        Parts have equal shapes and come in row-major order of r; what lies beyond `size` is left out.
        """
        rank, first = len(spread), parts[0]
        lead, counts = first.shape[: len(first.shape) - rank], first.shape[len(first.shape) - rank :]
        if len(parts) > 1:
            stacked = self.concatenate([self.reshape(p, (*p.shape, 1)) for p in parts], len(first.shape))
            apart, m = self.reshape(stacked, (*lead, *counts, *spread)), len(lead)
            order = [*range(m), *(a for d in range(rank) for a in (m + d, m + rank + d))]
            first = self.reshape(self.transpose(apart, order), (*lead, *(n * s for n, s in zip(counts, spread))))
        return self.slice(first, [0] * len(first.shape), (*lead, *size))

    def pad(
        self,
        x: Value,
        low: Sequence[int],
        high: Sequence[int],
        interior: Sequence[int] | None = None,
        value: Value | Number = 0,
    ) -> Value:
        """Surround with `value`; negative padding crops."""
        value = value if isinstance(value, Value) else self.constant(value, x.dtype)
        inside = tuple(interior) if interior is not None else (0,) * len(x.shape)
        sides = {"edge_padding_low": tuple(low), "edge_padding_high": tuple(high), "interior_padding": inside}
        return self.op("pad", x, value, **sides)

    # -- reductions, products -----------------------------------------------------------------------------------
    def reduce(self, x: Value, dims: Sequence[int], kind: str = "add", keepdims: bool = False) -> Value:
        """Combine along `dims` (negative ones count from the end) with add, maximum, minimum, multiply, and, or."""
        axes = tuple(sorted(d % len(x.shape) for d in dims))
        result = self.op("reduce", x, dimensions=axes, kind=kind)
        if not keepdims:
            return result
        return self.reshape(result, tuple(1 if a in axes else n for a, n in enumerate(x.shape)))

    def dot_general(
        self,
        lhs: Value,
        rhs: Value,
        contract: tuple[Sequence[int], Sequence[int]],
        batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
        dt: DType | str | None = None,
        precision: str = "DEFAULT",
        asked: int = 1,
    ) -> Value:
        """Product summed over `contract` = (lhs dims, rhs dims); result [batch, lhs rest, rhs rest].

        The sum is made in float32 (int32 for integers); that is the result's format too unless `dt` names another.
        precision: "HIGHEST" for a product that no session's precision may narrow. asked: the model asks
        for one of so many of these products; 0 where something is computed that is none to it, such as running sums.
        """
        target = dtype(dt) if dt is not None else float32 if lhs.dtype.is_float else int32
        return self.op(
            "dot_general",
            lhs,
            rhs,
            lhs_batching_dimensions=tuple(batch[0]),
            rhs_batching_dimensions=tuple(batch[1]),
            lhs_contracting_dimensions=tuple(contract[0]),
            rhs_contracting_dimensions=tuple(contract[1]),
            dtype=target,
            precision=precision,
            asked=asked,
        )

    def convolution(
        self,
        x: Value,
        weight: Value,
        *,
        strides: Sequence[int] | None = None,
        padding: tuple[Sequence[int], Sequence[int]] | None = None,
        dilation: Sequence[int] | None = None,
        spread: Sequence[int] | None = None,
        reverse: bool = False,
        groups: int = 1,
        batch_groups: int = 1,
        dt: DType | str = float32,
    ) -> Value:
        """x [N, C, ...] and weight [O, C/groups, ...] -> [N, O, ...], summed in float32; see `ops` for its meaning.

        padding: zeros before and after, in each dimension of space (negative: cropped). dilation: of the window.
        spread: the distance of neighbours of x, with zeros between them.
        """
        ones, none = (1,) * (len(x.shape) - 2), (0,) * (len(x.shape) - 2)
        low, high = (none, none) if padding is None else padding
        return self.op(
            "convolution",
            x,
            weight,
            window_strides=tuple(strides or ones),
            padding_low=tuple(low),
            padding_high=tuple(high),
            lhs_dilation=tuple(spread or ones),
            rhs_dilation=tuple(dilation or ones),
            window_reversal=reverse,
            feature_group_count=groups,
            batch_group_count=batch_groups,
            dtype=dtype(dt),
        )

    def matmul(self, lhs: Value, rhs: Value, dt: DType | str | None = None) -> Value:
        """[..., M, K] times [..., K, N] with equal leading dimensions."""
        lead = tuple(range(len(lhs.shape) - 2))
        return self.dot_general(lhs, rhs, ((len(lead) + 1,), (len(lead),)), (lead, lead), dt)

    # -- gather and scatter -------------------------------------------------------------------------------------
    def take_rows(self, table: Value, ids: Value) -> Value:
        """table [V, C] at ids [...]: the rows, [..., C]."""
        rank = len(ids.shape)
        return self.op(
            "gather",
            table,
            ids,
            offset_dims=(rank,),
            collapsed_slice_dims=(0,),
            start_index_map=(0,),
            index_vector_dim=rank,
            slice_sizes=(1, table.shape[1]),
        )

    def take_along(self, x: Value, ids: Value) -> Value:
        """x [..., V] at ids [...] or [..., J]: one element of each row, or J of them, in the shape of ids."""
        assert len(x.shape) > 1, "a vector has no rows"
        lead = tuple(range(len(x.shape) - 1))
        return self.op(
            "gather",
            x,
            ids,
            offset_dims=(),
            collapsed_slice_dims=(len(lead),),
            operand_batching_dims=lead,
            start_indices_batching_dims=lead,
            start_index_map=(len(lead),),
            index_vector_dim=len(ids.shape),
            slice_sizes=(1,) * len(x.shape),
        )

    def scatter_add_rows(self, ids: Value, updates: Value, rows: int, into: Value | None = None) -> Value:
        """[rows, C]: `into` (zeros) with row ids[i] increased by updates[i], for ids [...] and updates [..., C]."""
        rank = len(ids.shape)
        into = self.constant(0, updates.dtype, (rows, updates.shape[-1])) if into is None else into
        return self.op(
            "scatter",
            into,
            ids,
            updates,
            update_window_dims=(rank,),
            inserted_window_dims=(0,),
            scatter_dims_to_operand_dims=(0,),
            index_vector_dim=rank,
            kind="add",
        )

    def sum_along(self, x: Value, ids: Value, places: int, dt: DType) -> Value:
        """[..., places] of x [..., J]: the sums, in float32, of what ids [..., J] send to each place of a row."""
        return self.op("trn.sum_along", x, ids, places=places, dtype=dt)

    def sum_rows(self, update: Value, ids: Value, rows: int) -> Value:
        """Row t of [T, C] is the sum over all rows of `update` [T, C] whose index is ids[t], in float32."""
        return self.op("trn.sum_rows", update, ids, rows=rows)

    def put_rows(self, table: Value, ids: Value, update: Value) -> Value:
        """table [V, C] with row ids[t] replaced by update[t]; equal indices have equal rows."""
        return self.op("trn.put_rows", table, ids, update)

    # -- attention ----------------------------------------------------------------------------------------------
    def attention(
        self,
        q: Value,
        k: Value,
        v: Value,
        bias: Value | None = None,
        *,
        causal: bool = False,
        scale: float | None = None,
    ) -> tuple[Value, Value]:
        """softmax(scale * q k^T + bias) v and the rows' log-sum-exp.

        q [B,H,T,D], k [B,Hkv,S,D], v [B,Hkv,S,E] -> out [B,H,T,E] in q's format, lse [B,H,T] float32. scale:
        1/sqrt(D).
        """
        attrs = {"causal": causal, "scale": float(q.shape[-1] ** -0.5 if scale is None else scale)}
        operands = (q, k, v) if bias is None else (q, k, v, bias)
        out, lse = self.append("trn.attention", operands, attrs).results
        return out, lse

    def attention_backward(
        self,
        dout: Value,
        q: Value,
        k: Value,
        v: Value,
        out: Value,
        lse: Value,
        bias: Value | None = None,
        *,
        causal: bool = False,
        scale: float | None = None,
    ) -> tuple[Value, Value, Value]:
        """Gradients of q, k and v from the gradient of `attention`'s out."""
        attrs = {"causal": causal, "scale": float(q.shape[-1] ** -0.5 if scale is None else scale)}
        operands = (dout, q, k, v, out, lse) if bias is None else (dout, q, k, v, out, lse, bias)
        dq, dk, dv = self.append("trn.attention_backward", operands, attrs).results
        return dq, dk, dv

    def attention_bias_backward(
        self, operands: Sequence[Value], *, causal: bool, scale: float
    ) -> tuple[Value, Value, Value, Value]:
        """The same, and the gradient of the bias, in its shape and format. operands: dout, q, k, v, out, lse,
        bias."""
        q, bias = operands[1], operands[6]
        summed = bias.shape[0] == 1 < q.shape[0]
        attrs = {"causal": causal, "scale": float(scale), "dbias": "sum" if summed else "each"}
        dq, dk, dv, dbias = self.append("trn.attention_backward", operands, attrs).results
        repeated = [d for d, n in enumerate(bias.shape) if n == 1 < dbias.shape[d]]
        if repeated:
            dbias = self.reduce(dbias, repeated, keepdims=True)
        return dq, dk, dv, self.convert(dbias, bias.dtype)

    def custom_call(self, callee: Callee, *operands: Value) -> tuple[Value, ...]:
        """The results of code that the graph does not look into."""
        return self.append("custom_call", operands, {"callee": callee}).results

    # -- what ranks do together -----------------------------------------------------------------------------------
    def all_reduce(self, operands: Sequence[Value], groups: Groups, kind: str = "add") -> tuple[Value, ...]:
        """What each tensor adds up to over the ranks of a group, on all of them."""
        return self.append("all_reduce", operands, {**_grouped(groups), "kind": kind}).results

    def optimization_barrier(self, x: Value) -> Value:
        """x, so that what is computed of it is not merged with what is computed of x."""
        return self.op("optimization_barrier", x)

    def all_gather(self, operands: Sequence[Value], groups: Groups, dim: int = 0) -> tuple[Value, ...]:
        """Each tensor of all ranks of a group, concatenated along `dim`."""
        return self.append("all_gather", operands, {"all_gather_dim": dim, **_grouped(groups)}).results

    def reduce_scatter(
        self, operands: Sequence[Value], groups: Groups, dim: int = 0, kind: str = "add"
    ) -> tuple[Value, ...]:
        """The part of this rank, along `dim`, of what each tensor adds up to."""
        attrs = {"scatter_dimension": dim, **_grouped(groups), "kind": kind}
        return self.append("reduce_scatter", operands, attrs).results

    def all_to_all(self, x: Value, groups: Groups, split: int = 0, concat: int = 0) -> Value:
        """Part p along `split` goes to the p-th rank of the group; what arrives is concatenated along `concat`."""
        attrs = {"split_dimension": split, "concat_dimension": concat, **_grouped(groups)}
        return self.append("all_to_all", [x], attrs).result

    def exchange(
        self, x: Value, groups: Groups, sent: Sequence[int], received: Sequence[int], position: int
    ) -> Value:
        """The same of parts that differ: rows for each position of the group, which come one behind the other. This
        rank is at `position`. Where nothing comes there is a row of zeros."""
        moved = {"sent": tuple(sent), "received": tuple(received), "position": position}
        attrs = {"split_dimension": 0, "concat_dimension": 0, **_grouped(groups), **moved}
        return self.append("all_to_all", [x], attrs).result

    def collective_permute(self, x: Value, pairs: Sequence[tuple[int, int]]) -> Value:
        """What the source of the pair sends that ends here; zeros where none does."""
        return self.append(
            "collective_permute", [x], {"source_target_pairs": tuple(r for p in pairs for r in p)}
        ).result

    def collective_broadcast(self, x: Value, groups: Groups) -> Value:
        """What the first rank of the group has."""
        return self.append("collective_broadcast", [x], _grouped(groups)).result

    def partition_id(self) -> Value:
        """The number of the rank, uint32."""
        return self.append("partition_id", [], {}).result

    def loop(self, body: Body, *operands: Value) -> tuple[Value, ...]:
        """Rounds of a graph, see `loops`: one result for each of its outputs."""
        return self.append("loop", operands, {"body": body}).results

    # -- helpers ------------------------------------------------------------------------------------------------
    def _together(self, x: Value | Number, y: Value | Number) -> tuple[Value, Value]:
        """Both operands as values of one shape; numbers become splats of the other's type."""
        if not isinstance(x, Value):
            if not isinstance(y, Value):
                raise GraphError("an op of two numbers", code="TRN301", limit="at least one tensor", where=self.loc)
            return self.constant(x, y.dtype, y.shape), y
        if not isinstance(y, Value):
            return x, self.constant(y, x.dtype, x.shape)
        if x.shape == y.shape:
            return x, y
        try:
            shape = np.broadcast_shapes(x.shape, y.shape)
        except ValueError:
            raise GraphError(
                "shapes do not broadcast", code="TRN302", limit=x.type, got=y.type, where=self.loc
            ) from None
        return self.broadcast_to(x, shape), self.broadcast_to(y, shape)


def _grouped(groups: Groups) -> dict[str, Any]:
    """The attributes of groups; their sizes are equal."""
    return {"replica_groups": tuple(int(r) for group in groups for r in group), "group_size": len(groups[0])}


def _as_attr(value: Array, dt: DType) -> Number | Array:
    """The attribute of a constant: a number where all elements are equal, else a read-only array in the format."""
    with np.errstate(over="ignore"):
        held = (value != 0 if dt is bool_ else value).astype(dt.numpy, order="C")
    bits = held.reshape(-1).view(f"u{dt.itemsize}")
    if held.size and bool((bits == bits[0]).all()):
        element = held.flat[0]
        return bool(element) if dt is bool_ else float(element) if dt.is_float else int(element)
    held.flags.writeable = False
    return held
