# SPDX-License-Identifier: Apache-2.0
"""The ops of the graph, as one table: name, operands, attributes, class.

Names, operands and attributes are StableHLO's (https://openxla.org/stablehlo/spec), with four differences, each for
the reader's sake: attributes that StableHLO nests (dimension numbers) are flat here; the body of `reduce` and
`scatter` is an attribute `kind`, the code of `custom_call` one called `callee`; a result type that does not follow
from the operands is given by attributes `shape` and `dtype`; and `erf` and `atan` are CHLO's. Names that start with
"trn." are composites: wholes that the chip has hardware or a kernel for, each defined in terms of the other ops in
`composites`.

Shape letters: B batch, H heads, T query length, S key length, D head size, V rows of a table, C columns; of
convolutions N images, C channels, O output channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ELEMENTWISE = "elementwise"  # one result element from the elements at the same place
SOURCE = "source"  # no data in: constants, iota, random numbers
SHAPE = "shape"  # moves elements, computes nothing
REDUCE = "reduce"
DOT = "dot"
CONVOLUTION = "convolution"
WINDOW = "window"  # one result element from a window of elements
INDEX = "index"  # where elements come from or go depends on data
ATTENTION = "attention"
CALL = "call"  # code that the graph does not look into

COMPARISONS = ("EQ", "NE", "LT", "LE", "GT", "GE")
REDUCTIONS = ("add", "maximum", "minimum", "multiply", "and", "or")
# As StableHLO's precision_config, one for both operands: a session's precision narrows only what says DEFAULT. With
# BFLOAT16 what the PE array reads is narrowed whatever the session says.
PRECISIONS = ("DEFAULT", "BFLOAT16", "HIGHEST")
# Blocks of 32 along the contraction with a scale each, see `numerics.mx`; operands are bfloat16.
MICROSCALED = ("", "float8_e4m3fn", "float8_e5m2")
REQUIRED = object()


@dataclass(frozen=True, slots=True)
class Attr:
    """One attribute. kind: "int", "ints", "float", "bool", "str", "dtype", "callee" or "value" (any array)."""

    kind: str
    default: Any = REQUIRED
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OpDef:
    """What there is to know about an op besides its shapes (`infer`) and its meaning (`interpret`).

    operands: names in order; the last `optional` of them may be missing; one that ends in "*" stands for one or more.
    dtypes: what the data operands may be: "f" float, "i" integer, "n" float or integer, "l" integer or bool, "a"
    anything.
    """

    name: str
    kind: str
    operands: tuple[str, ...]
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
    "precision": Attr("str", "DEFAULT", PRECISIONS),
}
_WINDOW_ATTRS = {"window": _INTS, "window_strides": _INTS, "padding_low": _INTS, "places": _INTS}
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
    OpDef("slice", SHAPE, ("operand",), attrs={"start_indices": _INTS, "limit_indices": _INTS, "strides": _INTS}),
    OpDef("concatenate", SHAPE, ("inputs*",), attrs={"dimension": Attr("int")}),
    OpDef(
        "pad",
        SHAPE,
        ("operand", "padding_value"),
        attrs={"edge_padding_low": _INTS, "edge_padding_high": _INTS, "interior_padding": _INTS},
    ),
    OpDef("reduce", REDUCE, ("operand",), attrs={"dimensions": _INTS, "kind": Attr("str", choices=REDUCTIONS)}),
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
            "lhs_mx": Attr("str", "", MICROSCALED),
            "rhs_mx": Attr("str", "", MICROSCALED),
        },
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
    # larger than all.
    OpDef("trn.max_pool", WINDOW, ("operand",), "f", _WINDOW_ATTRS),
    OpDef("trn.max_pool_backward", WINDOW, ("dout", "operand"), "f", _WINDOW_ATTRS),
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
    # As many results as the callee has; it has no effects but these.
    OpDef("custom_call", CALL, ("inputs*",), attrs={"callee": Attr("callee")}, results=("results*",), optional=1),
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
    # q [B,H,T,D], k and v [B,Hkv,S,D], bias [B or 1, H or 1, T or 1, S] added to scale * q k^T, lse [B,H,T] float32.
    # causal: query t sees keys 0..t. hides: the bias is known to hold nothing but 0 and -inf. Of a query that sees no
    # key, out is zero, and lse is finite and means nothing.
    OpDef("trn.attention", ATTENTION, ("q", "k", "v", "bias"), "f", _ATTENTION_ATTRS, ("out", "lse"), 1),
    OpDef(
        "trn.attention_backward",
        ATTENTION,
        ("dout", "q", "k", "v", "out", "lse", "bias"),
        "f",
        _ATTENTION_ATTRS,
        ("dq", "dk", "dv"),
        1,
    ),
)

OPS: dict[str, OpDef] = {definition.name: definition for definition in _TABLE}
UNARY = tuple(d.name for d in _TABLE if d.kind == ELEMENTWISE and d.operands == ("operand",) and not d.attrs)
BINARY = tuple(d.name for d in _TABLE if d.kind == ELEMENTWISE and d.operands == ("lhs", "rhs") and not d.attrs)
