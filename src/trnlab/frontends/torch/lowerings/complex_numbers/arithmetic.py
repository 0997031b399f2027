# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of complex numbers in real and imaginary parts.

The product is (ac - bd) + (ad + bc) i, as PyTorch's on the CPU. Real numbers scale both parts: PyTorch first makes
them complex, so that with an infinite part the other one becomes NaN there and stays a number here.
"""

from __future__ import annotations

from typing import Any

from trnlab.errors import UnsupportedOpError
from trnlab.frontends.torch.lowerings.complex_numbers.values import (
    ComplexValue,
    as_complex,
    beside_pairs,
    constant,
    joined,
    lowers_complex,
)
from trnlab.frontends.torch.lowerings.registry import LOWERINGS, LoweringSite, lowers
from trnlab.graph import formulas
from trnlab.graph.ir import Value
from trnlab.numerics.dtypes import DType

# -- parts ----------------------------------------------------------------------------------------------------------


@lowers("complex.default")
@lowers_complex("complex.default")
def complex_(site, real, imag):
    return joined(site.b, site.cast(real), site.cast(imag)).pairs


@lowers("polar.default")
@lowers_complex("polar.default")
def polar(site, size, angle):
    b = site.b
    size, angle = site.wide_values(size, angle)
    return _rounded(site, joined(b, b.multiply(size, b.cosine(angle)), b.multiply(size, b.sine(angle)))).pairs


@lowers_complex("real.default")
def real(site, x):
    return x.parts(site.b)[0]


@lowers_complex("imag.default")
def imag(site, x):
    return x.parts(site.b)[1]


@lowers("_conj.default", "_conj_physical.default")
@lowers_complex("_conj.default", "_conj_physical.default")
def conj(site, x):
    """The conjugate as a value; a real one is its own."""
    if isinstance(x, complex):
        return constant(site.b, x.conjugate())
    if not isinstance(x, ComplexValue):
        return x
    along, up = x.parts(site.b)
    return joined(site.b, along, site.b.negate(up))


@lowers("_neg_view.default")
def neg_view(site, x):
    """What PyTorch says of a part of a conjugate."""
    return site.b.negate(x)


@lowers_complex("neg.default", "_neg_view.default")
def neg(site, x):
    return ComplexValue(site.b.negate(x.pairs))


# -- sums and products ----------------------------------------------------------------------------------------------


def _wide_parts(site: LoweringSite, x: ComplexValue) -> tuple[Value, Value]:
    along, up = x.parts(site.b)
    return site.wide(along), site.wide(up)


def _rounded(site: LoweringSite, x: ComplexValue) -> ComplexValue:
    """In the result's format, which is not float32 where all is narrowed."""
    return ComplexValue(site.cast(x.pairs))


def _scaled(site: LoweringSite, x: ComplexValue, name: str, factor: Any) -> ComplexValue:
    """Both parts with a real number."""
    by = beside_pairs(site, site.wide(factor)) if isinstance(factor, Value) else factor
    return _rounded(site, ComplexValue(site.b.binary(name, site.wide(x.pairs), by)))


def _is_real(x: Any) -> bool:
    return not isinstance(x, (ComplexValue, complex))


def product(site: LoweringSite, x: ComplexValue, y: ComplexValue) -> ComplexValue:
    """(ac - bd) + (ad + bc) i."""
    b, (x_real, x_imag), (y_real, y_imag) = site.b, _wide_parts(site, x), _wide_parts(site, y)
    along = b.subtract(b.multiply(x_real, y_real), b.multiply(x_imag, y_imag))
    return _rounded(site, joined(b, along, b.add(b.multiply(x_real, y_imag), b.multiply(x_imag, y_real))))


@lowers_complex("mul.Tensor", "mul.Scalar")
def mul(site, x, y):
    if _is_real(y):
        return _scaled(site, as_complex(site, x), "multiply", y)
    if _is_real(x):
        return _scaled(site, as_complex(site, y), "multiply", x)
    return product(site, as_complex(site, x), as_complex(site, y))


@lowers_complex("square.default")
def square(site, x):
    return product(site, x, x)


_MOST_POWERS = 4


@lowers_complex("pow.Tensor_Scalar")
def power(site, x, exponent):
    """Small whole powers, as products."""
    if isinstance(exponent, complex) or exponent != int(exponent) or not 1 <= exponent <= _MOST_POWERS:
        raise UnsupportedOpError(
            "complex numbers have whole powers from one to four on the chip",
            code="TRN203",
            got=str(exponent),
            remedy="write it as products, or with abs and angle",
        )
    found = x
    for _ in range(int(exponent) - 1):
        found = product(site, found, x)
    return found


def quotient(site: LoweringSite, x: ComplexValue, y: ComplexValue) -> ComplexValue:
    """x / y, where both are divided by the larger part of y first, as PyTorch does: no square leaves the format."""
    b, (y_real, y_imag) = site.b, _wide_parts(site, y)
    scale = b.divide(1.0, b.maximum(b.abs(y_real), b.abs(y_imag)))
    x_real, x_imag = (b.multiply(v, scale) for v in _wide_parts(site, x))
    y_real, y_imag = b.multiply(y_real, scale), b.multiply(y_imag, scale)
    size = b.add(b.multiply(y_real, y_real), b.multiply(y_imag, y_imag))
    along = b.add(b.multiply(x_real, y_real), b.multiply(x_imag, y_imag))
    up = b.subtract(b.multiply(x_imag, y_real), b.multiply(x_real, y_imag))
    return _rounded(site, joined(b, b.divide(along, size), b.divide(up, size)))


@lowers_complex("div.Tensor", "div.Scalar")
def div(site, x, y):
    if _is_real(y):
        return _scaled(site, as_complex(site, x), "divide", y)
    return quotient(site, as_complex(site, x), as_complex(site, y))


@lowers_complex("reciprocal.default")
def reciprocal(site, x):
    return quotient(site, constant(site.b, 1), x)


def _sum(site: LoweringSite, name: str, x: Any, y: Any, alpha: Any) -> ComplexValue:
    """x + alpha y, or x - alpha y."""
    if alpha != 1:
        y = mul(site, y, alpha) if isinstance(y, ComplexValue) else mul(site, as_complex(site, y), alpha)
    operands = (site.wide(as_complex(site, v).pairs) for v in (x, y))
    return _rounded(site, ComplexValue(site.b.binary(name, *operands)))


@lowers_complex("add.Tensor", "add.Scalar")
def add(site, x, y, alpha=1):
    return _sum(site, "add", x, y, alpha)


@lowers_complex("sub.Tensor", "sub.Scalar")
def sub(site, x, y, alpha=1):
    return _sum(site, "subtract", x, y, alpha)


@lowers_complex("rsub.Tensor", "rsub.Scalar")
def rsub(site, x, y, alpha=1):
    return _sum(site, "subtract", y, x, alpha)


@lowers_complex("addcmul.default")
def addcmul(site, x, y, z, value=1):
    return add(site, x, mul(site, y, z), value)


@lowers_complex("addcdiv.default")
def addcdiv(site, x, y, z, value=1):
    return add(site, x, div(site, y, z), value)


# -- functions ------------------------------------------------------------------------------------------------------


@lowers_complex("abs.default")
def abs_(site, x):
    return site.cast(formulas.hypot(site.b, *_wide_parts(site, x)))


@lowers_complex("angle.default")
def angle(site, x):
    along, up = _wide_parts(site, x)
    return site.cast(formulas.atan2(site.b, up, along))


@lowers_complex("exp.default")
def exp(site, x):
    b, (along, up) = site.b, _wide_parts(site, x)
    size = b.exponential(along)
    return _rounded(site, joined(b, b.multiply(size, b.cosine(up)), b.multiply(size, b.sine(up))))


@lowers_complex("linalg_vector_norm.default")
def vector_norm(site, x, order=2, dim=None, keepdim=False, dtype=None):
    """That of the magnitudes."""
    if not isinstance(x, ComplexValue) or (dtype is not None and dtype.is_complex):
        raise UnsupportedOpError("a norm is a real number", code="TRN203", remedy="leave its dtype out")
    size = formulas.hypot(site.b, *_wide_parts(site, x))
    return LOWERINGS[site.node.target](site, size, order, dim, keepdim)


@lowers_complex("eq.Tensor", "eq.Scalar", "ne.Tensor", "ne.Scalar")
def compare(site, x, y):
    """Whether both parts are equal, or whether one is not."""
    b, (x, y) = site.b, (as_complex(site, v) for v in (x, y))
    equal = str(site.node.target).startswith("aten.eq")
    found = (b.compare(one, "EQ" if equal else "NE", other) for one, other in zip(x.parts(b), y.parts(b)))
    return (b.and_ if equal else b.or_)(*found)


def _either(site: LoweringSite, x: Any, holds: Any) -> Any:
    """Whether something holds of either part; what is not complex as it is."""
    return site.b.or_(*map(holds, x.parts(site.b))) if isinstance(x, ComplexValue) else x


@lowers_complex("isnan.default", "isinf.default")
def odd(site, x):
    return _either(site, x, lambda part: LOWERINGS[site.node.target](site, part))


@lowers_complex(
    "logical_and.default",
    "logical_or.default",
    "logical_xor.default",
    "logical_not.default",
    "any.default",
    "any.dim",
    "any.dims",
    "all.default",
    "all.dim",
    "all.dims",
)
def logic(site, *operands, **where):
    """A complex number is true where a part is not zero."""
    given = (_either(site, x, lambda part: site.b.compare(part, "NE", 0)) for x in operands)
    return LOWERINGS[site.node.target](site, *given, **where)


@lowers_complex("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where(site, pred, x, y):
    given = (site.cast(as_complex(site, v).pairs) for v in (x, y))
    return ComplexValue(site.b.select(*_broadcast(site, beside_pairs(site, pred), *given)))


@lowers_complex("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(site, x, mask, value):
    return where(site, mask, value, x)


def _broadcast(site: LoweringSite, *operands: Value) -> list[Value]:
    return [site.b.broadcast_to(v, site.shape) for v in operands]


# -- products of matrices -------------------------------------------------------------------------------------------


def _matmul(site: LoweringSite, x: ComplexValue, y: ComplexValue, dtype: DType) -> ComplexValue:
    """Four products of parts, each summed in float32."""
    b, (x_real, x_imag), (y_real, y_imag) = site.b, x.parts(site.b), y.parts(site.b)

    def times(one: Value, other: Value) -> Value:
        return b.matmul(one, other, dtype)

    along = b.subtract(times(x_real, y_real), times(x_imag, y_imag))
    return joined(b, along, b.add(times(x_real, y_imag), times(x_imag, y_real)))


@lowers_complex("mm.default", "bmm.default")
def mm(site, x, y):
    return _matmul(site, x, y, site.dtype)


@lowers_complex("addmm.default", "baddbmm.default")
def addmm(site, bias, x, y, beta=1, alpha=1):
    """beta * bias + alpha * (x y); what is multiplied by zero is not read, as in BLAS."""
    found = None if alpha == 0 else _matmul(site, x, y, site.dtype)
    found = found if found is None or alpha == 1 else mul(site, found, alpha)
    if beta == 0:
        return found if found is not None else ComplexValue(site.b.constant(0.0, site.dtype, site.shape))
    bias = ComplexValue(site.b.broadcast_to(bias.pairs, site.shape))
    bias = bias if beta == 1 else mul(site, bias, beta)
    return bias if found is None else add(site, found, bias)


@lowers_complex("mv.default")
def mv(site, x, y):
    b = site.b
    column = ComplexValue(b.reshape(y.pairs, (*y.shape, 1, 2)))
    return ComplexValue(site.shaped(_matmul(site, x, column, site.dtype).pairs))


@lowers_complex("dot.default")
def dot(site, x, y):
    b, size = site.b, x.shape[0]
    row, column = (ComplexValue(b.reshape(v.pairs, (*at, 2))) for v, at in ((x, (1, size)), (y, (size, 1))))
    return ComplexValue(site.shaped(_matmul(site, row, column, site.dtype).pairs))
