# SPDX-License-Identifier: Apache-2.0
"""Every other column is written, all are read."""

import numpy as np

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl

ARGUMENTS = (np.ones((128, 512), np.float32),)


@nki.jit
def kernel(x):
    wide = nl.ndarray((128, 1024), x.dtype, buffer=nl.sbuf, name="wide")
    out = nl.ndarray((128, 1024), x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=wide[:, ::2], src=x)
    nisa.dma_copy(dst=out, src=wide)  # wrong
    return out
