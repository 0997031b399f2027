# SPDX-License-Identifier: Apache-2.0
"""The kernels that were measured, each as a function `(chip, **sizes) -> Routine`.

They record the instructions that the hardware's compiler made of the published sources: its choice of engines, its
merging of loads, copies and reductions, and its order within an engine, as far as the profiles show them.
"""

from __future__ import annotations

from collections.abc import Callable

from trnlab.program import Routine
from trnlab.validation.kernels import attention, mamba, matmul, micro

KERNELS: dict[str, Callable[..., Routine]] = {
    "load_exp_store": micro.load_exp_store,
    "activate_chain": micro.activate_chain,
    "tensor_tensor": micro.tensor_tensor,
    "matmuls": micro.matmuls,
    "matmul_load_per_tile": matmul.load_per_tile,
    "matmul_hoisted": matmul.hoisted,
    "matmul_blocked_free": matmul.blocked_free,
    "matmul_blocked": matmul.blocked,
    "mamba": mamba.mamba,
    "attention_unfused": attention.unfused,
    "attention_fused": attention.fused,
}
