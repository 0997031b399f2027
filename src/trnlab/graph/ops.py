# SPDX-License-Identifier: Apache-2.0
"""The ops of the graph, as one table: name, operands, attributes, class.

Names, operands and attributes are StableHLO's (https://openxla.org/stablehlo/spec), with five differences, each for
the reader's sake: attributes that StableHLO nests (dimension numbers) are flat here; the body of `reduce` and
`scatter` is an attribute `kind`, the code of `custom_call` one called `callee`; a result type that does not follow
from the operands is given by attributes `shape` and `dtype`; a `while` of known length is a `loop` (see `loops`);
and `erf` and `atan` are CHLO's. Names that start with
"trn." are composites: wholes that the chip has hardware or a kernel for, each defined in terms of the other ops in
`composites`.

Shape letters: B batch, H heads, T query length, S key length, D head size, V rows of a table, C columns; of
convolutions N images, C channels, O output channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trnlab.collectives import PURPOSES

ELEMENTWISE = "elementwise"  # one result element from the elements at the same place
ROWWISE = "rowwise"  # one result row, along the last dimension, from the elements of the same row
SOURCE = "source"  # no data in: constants, iota, random numbers
SHAPE = "shape"  # moves elements, computes nothing
REDUCE = "reduce"
DOT = "dot"
CONVOLUTION = "convolution"
WINDOW = "window"  # one result element from a window of elements
INDEX = "index"  # where elements come from or go depends on data
ATTENTION = "attention"
CALL = "call"  # code that the graph does not look into
COLLECTIVE = "collective"  # what ranks do together

COMPARISONS = ("EQ", "NE", "LT", "LE", "GT", "GE")
REDUCTIONS = ("add", "maximum", "minimum", "multiply", "and", "or")
# As StableHLO's precision_config, one for both operands: a session's precision narrows only what says DEFAULT. With
# BFLOAT16 what the PE array reads is narrowed whatever the session says.
PRECISIONS = ("DEFAULT", "BFLOAT16", "HIGHEST")
# Blocks of 32 along the contraction with a scale each, see `numerics.mx`; operands are bfloat16.
MICROSCALED = ("", "float8_e4m3fn", "float8_e5m2")
CASTS = ("", "bfloat16")  # what an operand of a product is rounded to first
# How an element of a resized image comes about, see `windows.resizing`: it is the one below it, or is weighted by
# distance, by cubic polynomials, or by either, stretched over all elements that it stands for; or their average. With
# corners, those of both images meet.
_WEIGHTED = ("linear", "cubic", "smooth_linear", "smooth_cubic")
RESIZING = ("nearest", "nearest_middle", *_WEIGHTED, *(f"{rule}_corners" for rule in _WEIGHTED), "average")
REQUIRED = object()


@dataclass(frozen=True, slots=True)
class Attr:
    """One attribute. kind: "int", "ints", "float", "bool", "str", "dtype", "callee" or "value" (any array)."""

    kind: str
    default: Any = REQUIRED
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OpDef:
    """What there is to know about an op besides its shapes (`infer`) and its meaning (`interpret`)."""

    name: str
    kind: str
    # names in order; the last `optional` of them may be missing; one that ends in "*" stands for one or more
    operands: tuple[str, ...]
    # what the data operands may be: "f" float, "i" integer, "n" float or integer, "l" integer or bool, "a"
    # anything
    dtypes: str = "a"
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    results: tuple[str, ...] = ("result",)
    optional: int = 0
    commutative: bool = False

    @property
    def composite(self) -> bool:
        """Defined through other ops, see `composites.expand`."""
        return self.name.startswith("trn.")

    @property
    def arity(self) -> tuple[int, float]:
        """Fewest and most operands."""
        if self.operands and self.operands[-1].endswith("*"):
            return len(self.operands) - self.optional, float("inf")
        return len(self.operands) - self.optional, len(self.operands)


_INTS, _SHAPE, _DTYPE = Attr("ints"), Attr("ints"), Attr("dtype")
_NONE = Attr("ints", ())
_ATTENTION_ATTRS = {
    "causal": Attr("bool", False),
    "scale": Attr("float"),
    "hides": Attr("bool", False),
    "shifted": Attr("bool", False),
    "precision": Attr("str", "DEFAULT", PRECISIONS),
}
_DBIAS = {"dbias": Attr("str", "", ("", "each", "sum"))}
_WINDOW_ATTRS = {"window": _INTS, "window_strides": _INTS, "padding_low": _INTS, "places": _INTS}
_RESIZE_ATTRS = {
    "rule": Attr("str", choices=RESIZING),
    "places": _INTS,
    "row_scale": Attr("float", 0.0),
    "column_scale": Attr("float", 0.0),
}
_AVERAGE_ATTRS = {**_WINDOW_ATTRS, "counted": Attr("ints", (0, 0)), "divisor": Attr("float", 0.0)}
# StableHLO's rows of replica_groups one behind the other, each of `group_size` ranks; pairs are flat, too. purpose:
# one of `PURPOSES`, or "" where nobody has said it yet (`graph.purposes`).
_PURPOSE = {"purpose": Attr("str", "", ("", *PURPOSES))}
_GROUPS = {"replica_groups": _INTS, "group_size": Attr("int"), **_PURPOSE}
_SUMMED = Attr("str", "add", ("add", "maximum", "minimum", "multiply"))
_GROUPED = {"precision": Attr("str", "DEFAULT", PRECISIONS), "dtype": _DTYPE, "asked": Attr("int", 1)}
_GELU = {"approximate": Attr("str", "none", ("none", "tanh"))}


def _unary(dtypes: str, *names: str) -> list[OpDef]:
    return [OpDef(name, ELEMENTWISE, ("operand",), dtypes) for name in names]


def _binary(dtypes: str, commutative: bool, *names: str) -> list[OpDef]:
    return [OpDef(name, ELEMENTWISE, ("lhs", "rhs"), dtypes, commutative=commutative) for name in names]


_TABLE: tuple[OpDef, ...] = (
    *_unary("n", "negate", "abs", "sign"),
    *_unary("f", "exponential", "exponential_minus_one", "log", "log_plus_one", "sqrt", "rsqrt", "tanh", "logistic"),
    *_unary("f", "sine", "cosine", "erf", "atan", "floor", "ceil", "round_nearest_even", "is_finite"),
    *_unary("l", "not"),
    *_binary("n", True, "add", "multiply", "maximum", "minimum"),
    *_binary("n", False, "subtract", "divide", "power", "remainder"),
    *_binary("l", True, "and", "or", "xor"),
    *_binary("i", False, "shift_left", "shift_right_logical", "shift_right_arithmetic"),
    OpDef("compare", ELEMENTWISE, ("lhs", "rhs"), attrs={"comparison_direction": Attr("str", choices=COMPARISONS)}),
    OpDef("select", ELEMENTWISE, ("pred", "on_true", "on_false")),
    OpDef("clamp", ELEMENTWISE, ("min", "operand", "max"), "n"),
    OpDef("convert", ELEMENTWISE, ("operand",), attrs={"dtype": _DTYPE}),
    OpDef("bitcast_convert", ELEMENTWISE, ("operand",), attrs={"dtype": _DTYPE}),  # between formats of one width
    OpDef("constant", SOURCE, (), attrs={"value": Attr("value"), "shape": _SHAPE, "dtype": _DTYPE}),
    OpDef("iota", SOURCE, (), attrs={"iota_dimension": Attr("int"), "shape": _SHAPE, "dtype": _DTYPE}),
    OpDef("broadcast_in_dim", SHAPE, ("operand",), attrs={"broadcast_dimensions": _INTS, "shape": _SHAPE}),
    OpDef("reshape", SHAPE, ("operand",), attrs={"shape": _SHAPE}),
    OpDef("transpose", SHAPE, ("operand",), attrs={"permutation": _INTS}),
    OpDef(
        "optimization_barrier", SHAPE, ("operand",)
    ),  # the operand: what reads it is not merged with what reads that
    OpDef("slice", SHAPE, ("operand",), attrs={"start_indices": _INTS, "limit_indices": _INTS, "strides": _INTS}),
    OpDef("concatenate", SHAPE, ("inputs*",), attrs={"dimension": Attr("int")}),
    OpDef(
        "pad",
        SHAPE,
        ("operand", "padding_value"),
        attrs={"edge_padding_low": _INTS, "edge_padding_high": _INTS, "interior_padding": _INTS},
    ),
    OpDef("reduce", REDUCE, ("operand",), attrs={"dimensions": _INTS, "kind": Attr("str", choices=REDUCTIONS)}),
    # Mean and mean squared distance from it over some dimensions, one after the other along a new first dimension;
    # both in float32.
    OpDef("trn.moments", REDUCE, ("operand",), "f", {"dimensions": _INTS}),
    # The largest element m over some dimensions and the sum of exp(x - m), in the same way.
    OpDef("trn.softmax_statistics", REDUCE, ("operand",), "f", {"dimensions": _INTS}),
    # The sum of x * x over some dimensions, in float32.
    OpDef("trn.sum_of_squares", REDUCE, ("operand",), "f", {"dimensions": _INTS}),
    OpDef(
        "dot_general",
        DOT,
        ("lhs", "rhs"),
        "n",
        attrs={
            "lhs_batching_dimensions": _NONE,
            "rhs_batching_dimensions": _NONE,
            "lhs_contracting_dimensions": _INTS,
            "rhs_contracting_dimensions": _INTS,
            "dtype": _DTYPE,
            "precision": Attr("str", "DEFAULT", PRECISIONS),
            # The model asks for one of so many: products of groups are made of all rows. 0: for none, as something
            # that is no product to the model is computed by it.
            "asked": Attr("int", 1),
            "lhs_mx": Attr("str", "", MICROSCALED),
            "rhs_mx": Attr("str", "", MICROSCALED),
            "lhs_cast": Attr("str", "", CASTS),
            "rhs_cast": Attr("str", "", CASTS),
        },
    ),
    # lhs0, rhs0, lhs1, rhs1, ...: the sum of products of matrices. Each pair is contracted along the same dimensions,
    # and may be of a length of its own there.
    OpDef(
        "trn.dot_sum",
        DOT,
        ("lhs", "rhs", "more*"),
        "f",
        attrs={
            "lhs_contracting_dimensions": _INTS,
            "rhs_contracting_dimensions": _INTS,
            "dtype": _DTYPE,
            "lhs_cast": Attr("str", "", CASTS),
            "rhs_cast": Attr("str", "", CASTS),
        },
    ),
    # lhs [K,M], rhs [K,N]: their product over K [M,N], and the sums over K of one of them, in float32.
    OpDef(
        "trn.dot_and_sums",
        DOT,
        ("lhs", "rhs"),
        "f",
        {"dtype": _DTYPE, "summed": Attr("str", "lhs", ("lhs", "rhs"))},
        ("result", "sums"),
    ),
    # lhs [N,C,...], rhs [O,C/groups,...], result [N,O,...]: window element i of result element j meets element
    # j * window_strides + i * rhs_dilation of lhs, once that is spread by lhs_dilation and padded (cropped where
    # negative). window_reversal turns rhs round in every dimension. With feature groups, group g of O sees group g of
    # C; with batch groups, group g of N, and the result has N/groups.
    OpDef(
        "convolution",
        CONVOLUTION,
        ("lhs", "rhs"),
        "f",
        attrs={
            "window_strides": _INTS,
            "padding_low": _INTS,
            "padding_high": _INTS,
            "lhs_dilation": _INTS,
            "rhs_dilation": _INTS,
            "window_reversal": Attr("bool", False),
            "feature_group_count": Attr("int", 1),
            "batch_group_count": Attr("int", 1),
            "dtype": _DTYPE,
            "precision": Attr("str", "DEFAULT", PRECISIONS),
        },
    ),
    # Largest elements of windows over the last two dimensions, and the way back, to the first largest element of each
    # window: place i of `places` sees elements i * window_strides - padding_low on, as far as there are any. NaN is
    # larger than all. ordered: to the element that is left where each stays as long as it is at least the next one,
    # row by row, so that NaN gives way to what follows it; windows lie within the operand.
    OpDef("trn.max_pool", WINDOW, ("operand",), "f", _WINDOW_ATTRS),
    OpDef(
        "trn.max_pool_backward",
        WINDOW,
        ("dout", "operand"),
        "f",
        {**_WINDOW_ATTRS, "ordered": Attr("bool", False)},
    ),
    # Sums over such windows, divided by `divisor`; where that is 0, by how many elements of the window are no more
    # than `counted` beyond the operand. Sums are float32. The way back is to an operand of `size`.
    OpDef("trn.avg_pool", WINDOW, ("operand",), "f", _AVERAGE_ATTRS),
    OpDef("trn.avg_pool_backward", WINDOW, ("dout",), "f", {**_AVERAGE_ATTRS, "size": _INTS}),
    # The last two dimensions resized to `places`, and the way back to an operand of `size`. A scale that is not 0
    # takes the place of the quotient of both sizes where elements lie. Sums are float32.
    OpDef("trn.resize", WINDOW, ("operand",), "f", _RESIZE_ATTRS),
    OpDef("trn.resize_backward", WINDOW, ("dout",), "f", {**_RESIZE_ATTRS, "size": _INTS}),
    OpDef(
        "gather",
        INDEX,
        ("operand", "start_indices"),
        attrs={
            "offset_dims": _INTS,
            "collapsed_slice_dims": _NONE,
            "operand_batching_dims": _NONE,
            "start_indices_batching_dims": _NONE,
            "start_index_map": _INTS,
            "index_vector_dim": Attr("int"),
            "slice_sizes": _INTS,
        },
    ),
    OpDef(
        "scatter",
        INDEX,
        ("input", "scatter_indices", "update"),
        attrs={
            "update_window_dims": _INTS,
            "inserted_window_dims": _NONE,
            "input_batching_dims": _NONE,
            "scatter_indices_batching_dims": _NONE,
            "scatter_dims_to_operand_dims": _INTS,
            "index_vector_dim": Attr("int"),
            "kind": Attr("str", choices=("add", "assign")),
        },
    ),
    # x [...,V] at ids [...,J], those of each row in that row alone: [...,J]. An index out of range takes the nearest.
    OpDef("trn.take_along", INDEX, ("x", "ids")),
    # Sums by index within rows: [...,V] of x [...,J], each element added to place ids [...,J] of its row, in float32;
    # an index that is none of 0..rows - 1 adds to none.
    OpDef("trn.sum_along", INDEX, ("x", "ids"), attrs={"places": Attr("int"), "dtype": Attr("dtype")}),
    # Sums by index of as many rows as there are indices: row t is the sum of update [T,C] over all rows whose index
    # is that of row t; zero where the index (ids [T]) is none of 0..rows - 1.
    OpDef("trn.sum_rows", INDEX, ("update", "ids"), attrs={"rows": Attr("int")}),
    # table [V,C] with row ids[t] replaced by update[t]; an index beyond the table replaces nothing. Whoever makes
    # this op makes equal rows for equal indices.
    OpDef("trn.put_rows", INDEX, ("table", "ids", "update")),
    # Groups of rows, each with a matrix of its own: row m of x [M,K] times w[g], w [G,K,N], gives [M,N], where g is
    # the group that m lies in. Group g has the rows from ends[g - 1], or 0, up to ends[g] (ends [G] do not fall, and
    # are none beyond M). A row of no group is zero. tables: how a kernel goes through the groups, which changes
    # nothing of what is computed (`compiler.rewriting.grouped`).
    OpDef("trn.grouped_dot", INDEX, ("x", "w", "ends", "tables*"), attrs=_GROUPED, optional=1),
    # For each group the product of its rows of x [M,K], transposed, and of y [M,N]: [G,K,N].
    OpDef("trn.grouped_outer", INDEX, ("x", "y", "ends", "tables*"), attrs=_GROUPED, optional=1),
    # A graph that is computed several times, each time on the next runs of elements of the operands: `loops`.
    OpDef("loop", CALL, ("inputs*",), attrs={"body": Attr("callee")}, results=("results*",), optional=1),
    # As many results as the callee has; it has no effects but these.
    OpDef("custom_call", CALL, ("inputs*",), attrs={"callee": Attr("callee")}, results=("results*",), optional=1),
    # The first three take several tensors of one format at once; StableHLO's have one operand where it knows no more.
    OpDef("all_reduce", COLLECTIVE, ("operands*",), "n", {**_GROUPS, "kind": _SUMMED}, ("results*",)),
    OpDef("all_gather", COLLECTIVE, ("operands*",), "a", {"all_gather_dim": Attr("int"), **_GROUPS}, ("results*",)),
    OpDef(
        "reduce_scatter",
        COLLECTIVE,
        ("operands*",),
        "n",
        {"scatter_dimension": Attr("int"), **_GROUPS, "kind": _SUMMED},
        ("results*",),
    ),
    OpDef(
        "all_to_all",
        COLLECTIVE,
        ("operand",),
        "a",
        # sent, received: rows along dimension 0 for each position of the group, where parts differ; they are those of
        # this rank, which is at `position`. A result has a row at least.
        {
            "split_dimension": Attr("int"),
            "concat_dimension": Attr("int"),
            **_GROUPS,
            "sent": _NONE,
            "received": _NONE,
            "position": Attr("int", 0),
        },
    ),
    OpDef("collective_permute", COLLECTIVE, ("operand",), "a", {"source_target_pairs": _INTS, **_PURPOSE}),
    OpDef("collective_broadcast", COLLECTIVE, ("operand",), "a", _GROUPS),
    OpDef("partition_id", COLLECTIVE, ()),  # the number of the rank, uint32
    # Numbers first, first + 1, ... of the random numbers in [0, 1) that the seed (int32 [2]) stands for: ADR 23.
    OpDef("trn.rng_uniform", SOURCE, ("seed",), attrs={"shape": _SHAPE, "first": Attr("int", 0)}),
    # Words 0, 1, ... of Philox: state is uint32 [6], a key of two words and a counter of four, the low ones first.
    # The bits are those of StableHLO's rng_bit_generator with algorithm PHILOX.
    OpDef("trn.rng_philox", SOURCE, ("state",), attrs={"shape": _SHAPE}),
    # The derivatives *_dx are at x, without the incoming gradient, as in the chip's activation table.
    OpDef("trn.gelu", ELEMENTWISE, ("operand",), "f", _GELU),
    OpDef("trn.gelu_dx", ELEMENTWISE, ("operand",), "f", _GELU),
    *_unary("f", "trn.silu", "trn.silu_dx"),
    # The magnitude of lhs with the sign of rhs, of zeros too. (The sign of a NaN is not looked at.)
    *_binary("f", False, "trn.copysign"),
    # Rows [..., D] with their halves exchanged and one negated, as rotary positions have it: (a, b) becomes (-b, a).
    # Where width is not 0, those of the first columns; all others are zero. pairs: each two neighbours instead.
    OpDef("trn.rotate_half", ROWWISE, ("operand",), "f", {"width": Attr("int", 0), "pairs": Attr("bool", False)}),
    # q [B,H,T,D], k [B,Hkv,S,D], v [B,Hkv,S,E], bias [B or 1, H or 1, T or 1, S] added to scale * q k^T, out
    # [B,H,T,E], lse [B,H,T] float32.
    # causal: query t sees keys 0..t. hides: the bias is known to hold nothing but 0 and -inf. shifted: it is float32,
    # the largest that each query sees is zero, forward it is [B or 1, H or 1, S, T or 1], and its batch may be any
    # divisor of B, which it is repeated along. Of a query that sees no key, out is zero, and lse is finite and means
    # nothing. heard [B or 1, H or 1, T or 1, 1]: a factor of each query's scores before the bias, without a
    # derivative, which forward is in q. dbias: there is a fourth result, the gradient of the scores [B, H, T, S]
    # ("each"), or summed over the batch [1, H, T, S] ("sum"), in float32.
    OpDef("trn.attention", ATTENTION, ("q", "k", "v", "bias"), "f", _ATTENTION_ATTRS, ("out", "lse"), 1),
    OpDef(
        "trn.attention_backward",
        ATTENTION,
        ("dout", "q", "k", "v", "out", "lse", "bias", "heard"),
        "f",
        {**_ATTENTION_ATTRS, **_DBIAS},
        ("dq", "dk", "dv", "dbias"),
        2,
    ),
)

OPS: dict[str, OpDef] = {definition.name: definition for definition in _TABLE}
UNARY = tuple(d.name for d in _TABLE if d.kind == ELEMENTWISE and d.operands == ("operand",) and not d.attrs)
BINARY = tuple(d.name for d in _TABLE if d.kind == ELEMENTWISE and d.operands == ("lhs", "rhs") and not d.attrs)
