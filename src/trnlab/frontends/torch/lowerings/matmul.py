# SPDX-License-Identifier: Apache-2.0
"""Matrix products and attention. The PE array sums in fp32; the result is rounded once to its format."""

from __future__ import annotations

from typing import Any

from trnlab.frontends.torch.decompositions import composites  # noqa: F401  (defines the operators of attention)
from trnlab.frontends.torch.lowerings.registry import LoweringSite, UnsupportedOperatorForm, lowers
from trnlab.graph.ir import Value
from trnlab.numerics.dtypes import float32


@lowers("mm.default", "bmm.default")
def mm(site, x, y):
    return site.b.matmul(x, y, site.dtype)


@lowers("mm.dtype", "bmm.dtype")
def mm_dtype(site, x, y, out_dtype):
    return site.b.matmul(x, y, site.dtype)


@lowers("dot.default")
def dot(site, x, y):
    b, size = site.b, x.shape[0]
    return site.shaped(b.matmul(b.reshape(x, (1, size)), b.reshape(y, (size, 1)), site.dtype))


@lowers("mv.default")
def mv(site, x, y):
    return site.shaped(site.b.matmul(x, site.b.reshape(y, (y.shape[0], 1)), site.dtype))


def _scaled(site: LoweringSite, x: Value, factor: Any) -> Value:
    return x if factor == 1 else site.b.multiply(x, factor)


@lowers("addmm.default", "baddbmm.default")
def addmm(site, bias, x, y, beta=1, alpha=1):
    """beta * bias + alpha * (x y); the sum is made in fp32 before rounding. What is multiplied by zero is not read,
    as in BLAS: infinities and NaN in it mean nothing."""
    if alpha == 0:
        bias = site.b.broadcast_to(site.wide(bias), site.shape)
        return site.cast(site.b.constant(0.0, float32, site.shape) if beta == 0 else _scaled(site, bias, beta))
    product = _scaled(site, site.b.matmul(x, y), alpha)
    if beta == 0:
        return site.cast(product)
    return site.cast(site.b.add(product, _scaled(site, site.wide(bias), beta)))


@lowers("_scaled_mm.default")
def scaled_mm(site, x, y, scale_x, scale_y, bias=None, scale_result=None, out_dtype=None, use_fast_accum=False):
    """x y * scale_x * scale_y + bias: FP8 operands, summed in fp32 whatever `use_fast_accum` says.

    Scales are numbers, or one for each row of x and each column of y.

    Source: aten/src/ATen/native/cuda/Blas.cpp of PyTorch, _scaled_mm_out_cuda.
    """
    if scale_result is not None:
        raise UnsupportedOperatorForm(
            "it scales its result for a format of eight bits", "leave scale_result out, and cast afterwards"
        )
    product = site.b.matmul(x, y)
    for scale in (scale_x, scale_y):
        if scale.type.size not in (1, *product.shape) or len(scale.shape) not in (0, 1, 2):
            raise UnsupportedOperatorForm(
                f"its scale of shape {list(scale.shape)} is neither a number nor one for each row or column",
                "use tensor-wise or row-wise scales",
            )
        scale = site.b.reshape(scale, ()) if scale.type.size == 1 else scale
        product = site.b.multiply(product, site.b.broadcast_to(site.wide(scale), product.shape))
    return site.cast(product if bias is None else site.b.add(product, site.wide(bias)))


# -- attention, whose operators `decompositions.composites` defines -----------------------------------------------


@lowers("trnlab::attention.default")
def attention(site, q, k, v, bias, causal, scale):
    return site.b.attention(q, k, v, bias, causal=causal, scale=scale)


@lowers("trnlab::attention_backward.default")
def attention_backward(site, dout, q, k, v, out, lse, bias, causal, scale):
    return site.b.attention_backward(dout, q, k, v, out, lse, bias, causal=causal, scale=scale)


@lowers("trnlab::attention_bias_backward.default")
def attention_bias_backward(site, dout, q, k, v, out, lse, bias, causal, scale):
    return site.b.attention_bias_backward((dout, q, k, v, out, lse, bias), causal=causal, scale=scale)


# -- groups of rows, whose operators `decompositions.grouped` defines ----------------------------------------------


@lowers("trnlab::grouped_dot.default")
def grouped_dot(site, x, w, offs):
    return site.b.op("trn.grouped_dot", x, w, offs, dtype=x.dtype)


@lowers("trnlab::grouped_outer.default")
def grouped_outer(site, x, y, offs):
    return site.b.op("trn.grouped_outer", x, y, offs, dtype=x.dtype)
