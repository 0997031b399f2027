# SPDX-License-Identifier: Apache-2.0
"""JAX on the simulated chip.

    import trnlab.frontends.jax as neuron

    @neuron.jit(donate_argnums=(0, 1))          # where jax.jit stood
    def train_step(params, opt_state, x, y): ...

What is traced, when it is traced again, what is static and what is donated is as `jax.jit` has it; what it compiles
runs on the chip of the session. Outside of such functions JAX computes on the host, as ever.
"""

from __future__ import annotations

import trnlab.frontends.jax.grouped  # noqa: F401  JAX asks it from now on
from trnlab.frontends.common.engine import DeviceEngine, InterpreterEngine, report_step, use
from trnlab.frontends.jax.attention import dot_product_attention
from trnlab.frontends.jax.compiled import Compiled, jit

__all__ = [
    "Compiled",
    "DeviceEngine",
    "InterpreterEngine",
    "dot_product_attention",
    "jit",
    "report_step",
    "use",
]
