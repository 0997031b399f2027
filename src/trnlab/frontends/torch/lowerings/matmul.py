# SPDX-License-Identifier: Apache-2.0
"""Matrix products. The PE array sums in fp32; the result is rounded once to its format."""

from __future__ import annotations

from typing import Any

from trnlab.frontends.torch.lowerings.registry import Site, lowers
from trnlab.graph.ir import Value


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


def _scaled(site: Site, x: Value, factor: Any) -> Value:
    return x if factor == 1 else site.b.multiply(x, factor)


@lowers("addmm.default", "baddbmm.default")
def addmm(site, bias, x, y, beta=1, alpha=1):
    """beta * bias + alpha * (x y); the sum is made in fp32 before rounding."""
    product = _scaled(site, site.b.matmul(x, y), alpha)
    if beta == 0:
        return site.cast(product)
    return site.cast(site.b.add(product, _scaled(site, site.wide(bias), beta)))
