# SPDX-License-Identifier: Apache-2.0
"""The two operators that `frontends.torch.attention` defines."""

from __future__ import annotations

from trnlab.frontends.torch.lowerings.registry import lowers

from .. import attention as _defines_the_operators  # noqa: F401


@lowers("trnlab::attention.default")
def attention(site, q, k, v, bias, causal, scale):
    return site.b.attention(q, k, v, bias, causal=causal, scale=scale)


@lowers("trnlab::attention_backward.default")
def attention_backward(site, dout, q, k, v, out, lse, bias, causal, scale):
    return site.b.attention_backward(dout, q, k, v, out, lse, bias, causal=causal, scale=scale)
