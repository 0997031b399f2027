# SPDX-License-Identifier: Apache-2.0
"""Kernels inside of the vendor's compiler that libraries import where they may not call them: a call is refused."""

from __future__ import annotations

from typing import Any

from trnlab.errors import UsageError


def _refused(name: str, instead: str) -> Any:
    def kernel(*args: Any, **named: Any) -> Any:
        raise UsageError(
            f"neuronxcc.nki._private_kernels: {name} is inside of the vendor's compiler, which nobody has published, "
            "and trnlab has none of its own",
            code="TRN296",
            remedy=f"nkilib.{instead} of aws-neuron/nki-library is for the same purpose",
        )

    kernel.__name__ = kernel.__qualname__ = name
    return kernel


attention_isa_kernel = _refused("attention_isa_kernel", "core.attention")
cumsum = _refused("cumsum", "core.cumsum")
matmul_o_proj = _refused("matmul_o_proj", "core.output_projection")
