# SPDX-License-Identifier: Apache-2.0
"""The two operators that `frontends.torch.composites` defines."""

from __future__ import annotations

from trnlab.frontends.torch.decompositions import composites  # noqa: F401  (defines the operators)
from trnlab.frontends.torch.lowerings.registry import lowers


@lowers("trnlab::attention.default")
def attention(site, q, k, v, bias, causal, scale):
    return site.b.attention(q, k, v, bias, causal=causal, scale=scale)


@lowers("trnlab::attention_backward.default")
def attention_backward(site, dout, q, k, v, out, lse, bias, causal, scale):
    return site.b.attention_backward(dout, q, k, v, out, lse, bias, causal=causal, scale=scale)


@lowers("trnlab::attention_bias_backward.default")
def attention_bias_backward(site, dout, q, k, v, out, lse, bias, causal, scale):
    return site.b.attention_bias_backward((dout, q, k, v, out, lse, bias), causal=causal, scale=scale)
