# SPDX-License-Identifier: Apache-2.0
"""neuronxcc.nki: the old dialect, in which operations return tiles. It records through the same recorder as the new.

import neuronxcc.nki as nki           # after trnlab.nki.install_imports()
import neuronxcc.nki.language as nl
"""

from __future__ import annotations

from trnlab.nki.neuronxcc import compiler, isa, language, typing
from trnlab.nki.neuronxcc.decorators import OldKernel, baremetal, benchmark, jit, profile, simulate_kernel, trace

__all__ = [
    "OldKernel",
    "baremetal",
    "benchmark",
    "compiler",
    "isa",
    "jit",
    "language",
    "profile",
    "simulate_kernel",
    "tensor",
    "trace",
    "typing",
]

tensor = typing.tensor
