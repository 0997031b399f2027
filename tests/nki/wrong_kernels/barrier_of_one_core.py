# SPDX-License-Identifier: Apache-2.0
"""Only one of two cores comes to a barrier."""

import numpy as np

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl

ARGUMENTS = (np.ones((128, 512), np.float32),)
LAUNCH = 2


@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    if nl.program_id(0) == 0:
        nisa.core_barrier(data=out, cores=(0, 1))  # wrong
    nisa.dma_copy(dst=out, src=x)
    return out
