# SPDX-License-Identifier: Apache-2.0
"""Fused attention: the graph's composites are library kernels."""

from __future__ import annotations

from trnlab.compiler.lowerings.context import Lowering
from trnlab.kernels.attention import attention_forward
from trnlab.kernels.attention_backward import attention_backward


def lower_attention(low: Lowering) -> None:
    """Record trn.attention or trn.attention_backward."""
    op = low.group.anchor
    kernel = attention_forward if op.name == "trn.attention" else attention_backward
    plain = 3 if op.name == "trn.attention" else 6
    operands = [low.view(v) for v in op.operands]
    results = [low.view(v) for v in op.results]
    bias = operands[plain] if len(operands) > plain else None
    kernel(low.b, *operands[:plain], *results, causal=op.attrs["causal"], scale=op.attrs["scale"], bias=bias)
