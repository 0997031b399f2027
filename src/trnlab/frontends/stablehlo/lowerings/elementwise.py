# SPDX-License-Identifier: Apache-2.0
"""Elementwise ops: most are ops of the graph; the rest are formulas."""

from __future__ import annotations

from trnlab.frontends.stablehlo import mlir, wide
from trnlab.frontends.stablehlo.entries import TracedValue
from trnlab.frontends.stablehlo.mlir import INT64, UINT64
from trnlab.frontends.stablehlo.registry import OpSite, UnsupportedForm, lowers
from trnlab.graph import formulas
from trnlab.graph.ir import Value
from trnlab.numerics.dtypes import bfloat16, bool_, float16, float32, int32, uint32

_SAME = (
    "abs",
    "ceil",
    "cosine",
    "divide",
    "exponential",
    "exponential_minus_one",
    "floor",
    "is_finite",
    "log",
    "log_plus_one",
    "logistic",
    "negate",
    "not",
    "or",
    "and",
    "xor",
    "power",
    "remainder",
    "round_nearest_even",
    "rsqrt",
    "shift_left",
    "shift_right_arithmetic",
    "shift_right_logical",
    "sine",
    "sqrt",
    "subtract",
    "tanh",
    "clamp",
)
_OF_BOOLS = {"add": "or", "multiply": "and", "maximum": "or", "minimum": "and"}
_ALSO = {"chlo.erf": "erf", "mhlo.erf": "erf"}  # the latter of XLA's own modules, as TensorFlow gives them


@lowers(*(f"stablehlo.{name}" for name in (*_SAME, *_OF_BOOLS)), *_ALSO)
def same(site: OpSite) -> TracedValue:
    """An op of the graph; of truth values, sums are "or" and products "and"."""
    name = _ALSO.get(site.raw.operation.name, site.raw.operation.name.removeprefix("stablehlo."))
    if site.operands[0].type.dtype is bool_:
        name = _OF_BOOLS.get(name, name)
    return site.op(name, *site.operands)


@lowers("stablehlo.select")
def select(site: OpSite) -> TracedValue:
    """One or the other. x + y where that is chosen, else x, becomes x + (y or 0): a sum that nobody chose may leave
    the 32 bits that a 64-bit integer has, and a remainder that counts from below zero is written so."""
    chosen, yes, no = site.operands
    if yes.type.dtype is INT64 and chosen.known is None:
        for total, x, when in ((yes, no, True), (no, yes, False)):
            y = _addend(site, total, x)
            if y is not None:
                zero = site.t.number(0, INT64, y.shape)
                return site.op("add", x, site.op("select", chosen, *((y, zero) if when else (zero, y))))
    return site.op("select", *site.operands)


def _addend(site: OpSite, total: TracedValue, x: TracedValue) -> TracedValue | None:
    """What is added to x in `total`, if that is such a sum in the graph that is being written."""
    op = total.value.op if total.value is not None and total.segment is site.t.segment else None
    if op is None or op.name != "add" or x.value is None or x.value not in op.operands:
        return None
    other = op.operands[1] if op.operands[0] is x.value else op.operands[0]
    return site.t.entry(other, total.type)


@lowers("stablehlo.convert")
def convert(site: OpSite) -> TracedValue:
    """To the result's format."""
    target = site.type.dtype
    (x,) = site.operands
    return x if x.type.dtype is target else site.op("convert", x, dtype=target)


@lowers("stablehlo.sign")
def sign(site: OpSite) -> TracedValue:
    """-1, 0 or 1; a zero keeps its sign, and NaN is NaN."""
    (x,) = site.operands
    if not x.type.dtype.is_float:
        return site.op("sign", x)
    zero = site.op("compare", x, site.t.number(0, x.type.dtype, x.shape), comparison_direction="EQ")
    return site.op("select", zero, x, site.op("sign", x))


@lowers("stablehlo.bitcast_convert")
def bitcast_convert(site: OpSite) -> TracedValue:
    """The same bits in a format of the same width."""
    (x,), target = site.operands, site.type.dtype
    if x.known is None and {x.type.dtype, target} == {UINT64, uint32}:
        return wide.split(site.t, x) if target is uint32 else wide.joined(site.t, x)
    if x.known is None and {x.type.dtype, target} == {UINT64, INT64}:
        return site.op("convert", x, dtype=target)
    if x.type.dtype.itemsize != target.itemsize:
        raise UnsupportedForm("it changes how many elements there are", "convert by shifting and masking")
    return x if x.type.dtype is target else site.op("bitcast_convert", x, dtype=target)


@lowers("stablehlo.compare")
def compare(site: OpSite) -> TracedValue:
    """In total order, NaN is larger than all, and -0 less than 0."""
    x, y = site.operands
    direction = mlir.word(site.raw, "comparison_direction")
    if mlir.word(site.raw, "compare_type") != "TOTALORDER":
        return site.op("compare", x, y, comparison_direction=direction)
    if direction in ("EQ", "NE"):
        keys = [_key(site, site.op("bitcast_convert", _wide(site, e), dtype=int32)) for e in (x, y)]
        return site.op("compare", *keys, comparison_direction=direction)
    less = total_less(site, y, x) if direction in ("GT", "LE") else total_less(site, x, y)
    return less if direction in ("GT", "LT") else _not(site, less)


def _not(site: OpSite, x: TracedValue) -> TracedValue:
    return site.op("not", x)


def total_less(site: OpSite, x: TracedValue, y: TracedValue) -> TracedValue:
    """x < y where all numbers stand in one order: their bits as whole numbers, of negative ones in reverse."""
    keys = [_key(site, site.op("bitcast_convert", _wide(site, e), dtype=int32)) for e in (x, y)]
    return site.op("compare", *keys, comparison_direction="LT")


def _wide(site: OpSite, x: TracedValue) -> TracedValue:
    return x if x.type.dtype is float32 else site.op("convert", x, dtype=float32)


def _key(site: OpSite, word: TracedValue) -> TracedValue:
    """The whole number that stands in the order of whole numbers where the float stands among floats."""
    zero, lowest = site.t.number(0, int32, word.shape), site.t.number(2**31 - 1, int32, word.shape)
    negative = site.op("compare", word, zero, comparison_direction="LT")
    return site.op("select", negative, site.op("xor", word, lowest), word)


@lowers("stablehlo.reduce_precision")
def reduce_precision(site: OpSite) -> TracedValue:
    """Through the format that has these bits."""
    (x,) = site.operands
    bits = mlir.int_(site.raw, "exponent_bits"), mlir.int_(site.raw, "mantissa_bits")
    through = {(8, 7): bfloat16, (5, 10): float16, (8, 23): float32}.get(bits)
    if through is None:
        raise UnsupportedForm(
            f"rounding to {bits[0]} bits of exponent and {bits[1]} of mantissa", "round to bfloat16"
        )
    return site.op("convert", site.op("convert", x, dtype=through), dtype=x.type.dtype)


def _formula(name: str):  # type: ignore[no-untyped-def]
    function = getattr(formulas, name)

    def lowering(site: OpSite) -> TracedValue:
        def write(*operands: Value) -> Value:
            b = site.b
            return b.convert(function(b, *(b.convert(v, float32) for v in operands)), operands[0].dtype)

        found: TracedValue = site.written(write)
        return found

    return lowering


for _name, _function in {
    "stablehlo.tan": "tan",
    "chlo.tan": "tan",
    "stablehlo.atan2": "atan2",
    "chlo.erfc": "erfc",
    "chlo.sinh": "sinh",
    "chlo.cosh": "cosh",
    "chlo.asinh": "asinh",
    "chlo.acosh": "acosh",
    "chlo.atanh": "atanh",
    "chlo.asin": "asin",
    "chlo.acos": "acos",
}.items():
    lowers(_name)(_formula(_function))


@lowers("chlo.square")
def square(site: OpSite) -> TracedValue:
    """x times x."""
    (x,) = site.operands
    return site.op("multiply", x, x)


@lowers("stablehlo.cbrt")
def cbrt(site: OpSite) -> TracedValue:
    """The third root of |x| with x's sign; one step of Newton's takes the power's error away."""

    def write(x: Value) -> Value:
        b = site.b
        size = b.abs(b.convert(x, float32))
        plain = b.and_(b.is_finite(size), b.compare(size, "GT", 0.0))
        held = b.select(plain, size, 1.0)
        root = b.power(held, 1 / 3)
        better = b.subtract(root, b.multiply(b.subtract(root, b.divide(held, b.multiply(root, root))), 1 / 3))
        return b.convert(b.copysign(b.select(plain, better, size), b.convert(x, float32)), x.dtype)

    found: TracedValue = site.written(write)
    return found


@lowers("stablehlo.round_nearest_afz")
def round_nearest_afz(site: OpSite) -> TracedValue:
    """Halves go away from zero."""

    def write(x: Value) -> Value:
        b = site.b
        size = b.abs(x)
        whole = b.floor(size)
        up = b.compare(b.subtract(size, whole), "GE", 0.5)
        return b.copysign(b.select(up, b.add(whole, 1.0), whole), x)

    found: TracedValue = site.written(write)
    return found


@lowers("stablehlo.popcnt")
def popcnt(site: OpSite) -> TracedValue:
    """Bits that are set: of pairs, of four, of eight, and of all."""
    (x,) = site.operands
    return _population(site, x)


def _population(site: OpSite, x: TracedValue) -> TracedValue:
    kind, width = x.type.dtype, 8 * x.type.dtype.itemsize
    total = site.t.number(0, kind, x.shape)
    one = site.t.number(1, kind, x.shape)
    for place in range(width):
        moved = site.op("shift_right_logical", x, site.t.number(place, kind, x.shape))
        total = site.op("add", total, site.op("and", moved, one))
    return total


@lowers("stablehlo.count_leading_zeros")
def count_leading_zeros(site: OpSite) -> TracedValue:
    """The width less the bits that are set once every bit below a set one is set, too."""
    (x,) = site.operands
    kind, width = x.type.dtype, 8 * x.type.dtype.itemsize
    distance = 1
    while distance < width:
        x = site.op("or", x, site.op("shift_right_logical", x, site.t.number(distance, kind, x.shape)))
        distance *= 2
    return site.op("subtract", site.t.number(width, kind, x.shape), _population(site, x))


@lowers("stablehlo.complex", "stablehlo.real", "stablehlo.imag", "stablehlo.fft")
def of_complex(site: OpSite) -> TracedValue:
    """Refused: the chip has no complex numbers."""
    raise UnsupportedForm(
        "the chip has no complex numbers", "keep real and imaginary parts apart, or use the host", "TRN232"
    )


@lowers("chlo")
def of_chlo(site: OpSite) -> list[TracedValue]:
    """Any other op of CHLO: as jaxlib's own legalization splits it."""
    function = mlir.split_chlo(site.raw)
    if function is None:
        raise UnsupportedForm("it has no lowering to the chip", "compute it on the host, before the step")
    found: list[TracedValue] = site.t.call(function, site.operands)
    return found
