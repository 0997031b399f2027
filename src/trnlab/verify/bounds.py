# SPDX-License-Identifier: Apache-2.0
"""How far an operator's result may lie from the exact result for the operands that the chip had.

u is the unit roundoff: half the distance of two neighbours, relative. Every bound is, element by element,

    u(format of the result) * |exact|  +  c * u(float32) * scale  +  the smallest normal number

where `scale` is what the kind of the operator says, and the first term is missing in float32. Sums of n terms are
bounded by 4 sqrt(n) u times the sum of the magnitudes: rounding errors are as good as independent, and a fault has to
beat chance by four deviations (Higham and Mary, "A new approach to probabilistic rounding error analysis", 2019).
What no formula describes is measured: `scale` is then how far the exact result moves when every operand moves by u.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

DEVIATIONS = 4.0  # of a sum's rounding errors
FLOAT32 = "float32"
_FRACTION_BITS = {
    "float64": 53,
    "float32": 24,
    "float16": 11,
    "bfloat16": 8,
    "float8_e4m3": 4,
    "float8_e4m3fn": 4,
    "float8_e5m2": 3,
}
_SMALLEST = {"float16": 2.0**-25, "float8_e5m2": 2.0**-17, "float8_e4m3": 2.0**-10, "float8_e4m3fn": 2.0**-10}
_LARGEST = {
    "float16": 65504.0,
    "bfloat16": 3.3895e38,
    "float32": 3.4028235e38,
    "float8_e5m2": 57344.0,
    "float8_e4m3": 240.0,
    "float8_e4m3fn": 448.0,
}


def roundoff(format: str) -> float:
    """u of a float format: 2^-24 for float32, 2^-8 for bfloat16."""
    return 2.0 ** -_FRACTION_BITS.get(format, 24)


def smallest(format: str) -> float:
    """Below this a format keeps no relative accuracy: half its smallest number, or float32's smallest normal one."""
    return _SMALLEST.get(format, 2.0**-126)


def largest(format: str) -> float:
    """The largest finite number of a format."""
    return _LARGEST.get(format, _LARGEST[FLOAT32])


@dataclass(frozen=True)
class OperatorBound:
    """A kind of operators. `factor` is c, for n terms `factor` * sqrt(n) where `grows`. `scale` is for people."""

    name: str
    factor: float
    scale: str
    grows: bool = False

    def c(self, terms: int) -> float:
        """The factor of u(float32) for a result of that many terms."""
        return self.factor * (sqrt(max(terms, 1)) if self.grows else 1.0)


EXACT = OperatorBound("exact", 0, "nothing: moves, comparisons, integers and the larger of two give the same bits")
ROUNDED = OperatorBound("rounded", 3, "|result|")
TERMS = OperatorBound("terms", 6, "the sum of the magnitudes of the terms")
FUNCTION = OperatorBound("function", 16, "|result|, and for gelu and silu |operand|")
SUM = OperatorBound("sum", DEVIATIONS, "the sum of the magnitudes of the n terms", grows=True)
PRODUCT = OperatorBound("product", DEVIATIONS, "the sum of |a||b|; operands as the PE array reads them", grows=True)
COMPOSITE = OperatorBound(
    "composite", DEVIATIONS, "how far the result moves when operands move by u; n: the longest dimension", grows=True
)
ATTENTION = OperatorBound(
    "attention", 16, "as composite, with u(bfloat16) where the PE array reads that, and n = 1 then", grows=True
)
RANDOM = OperatorBound(
    "random", 0, "not compared: the chip's random numbers are its own, and the reference takes them over"
)

KINDS = (EXACT, ROUNDED, TERMS, FUNCTION, SUM, PRODUCT, COMPOSITE, ATTENTION, RANDOM)
_NAMES = {
    EXACT: """view _unsafe_view reshape _reshape_alias permute transpose t expand slice select split split_with_sizes
        unbind squeeze unsqueeze cat stack flip roll repeat clone detach alias copy lift_fresh lift_fresh_copy
        _to_copy constant_pad_nd index_select gather embedding index _unsafe_index where masked_fill tril triu full
        full_like new_full zeros zeros_like new_zeros ones ones_like new_ones scalar_tensor fill arange amax amin max
        min maximum minimum relu neg abs sign clamp clamp_min clamp_max threshold_backward floor ceil round eq ne lt
        le gt ge logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_xor bitwise_not all any
        argmax argmin isnan isinf slice_scatter select_scatter slice_backward select_backward scatter nki trunc
        eye complex view_as_complex view_as_real real imag _conj _conj_physical _neg_view""",
    ROUNDED: "mul div reciprocal sqrt square native_dropout native_dropout_backward",
    TERMS: "add sub rsub addcmul addcdiv lerp",
    FUNCTION: "exp expm1 log log1p log2 log10 sin cos tanh sigmoid erf rsqrt pow silu gelu exp2",
    SUM: """sum mean linalg_vector_norm norm cumsum embedding_dense_backward index_add scatter_add
        index_put _unsafe_index_put""",
    PRODUCT: "mm bmm addmm baddbmm mv dot grouped_dot grouped_outer convolution convolution_backward",
    ATTENTION: "attention attention_backward attention_bias_backward",
    RANDOM: """rand rand_like uniform bernoulli randn randn_like empty empty_like empty_permuted empty_strided
        new_empty new_empty_strided""",
}
_KIND_OF = {name: kind for kind, names in _NAMES.items() for name in names.split()}
# Of complex numbers these are made of several roundings each, which are small beside the magnitude of the result.
_OF_COMPLEX = dict.fromkeys(("abs", "angle", "polar", "div", "reciprocal"), FUNCTION)


def kind_of(operator: str, is_complex: bool = False) -> OperatorBound:
    """The kind of an operator, named as "aten.add.Tensor"; composite for what the table does not have. is_complex:
    whether operands or results are complex numbers."""
    name = operator.split(".")[1] if "." in operator else operator
    if is_complex and name in _OF_COMPLEX:
        return _OF_COMPLEX[name]
    return _KIND_OF.get(name.removeprefix("_foreach_"), COMPOSITE)


def table() -> list[tuple[str, str, str, str]]:
    """(kind, c, scale, operators) of each kind, for the documentation."""
    rows = []
    for kind in KINDS:
        c = f"{kind.factor:g}" + (" sqrt(n)" if kind.grows else "") if kind.factor else ""
        names = " ".join(_NAMES[kind].split()) if kind in _NAMES else "all others"
        rows.append((kind.name, c, kind.scale, names))
    return rows
