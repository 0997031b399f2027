# SPDX-License-Identifier: Apache-2.0
"""A tile is used, but nothing was loaded into it."""

import numpy as np

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl

ARGUMENTS = (np.ones((128, 512), np.float32),)


@nki.jit
def kernel(x):
    tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf, name="tile")
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)  # wrong
    nisa.dma_copy(dst=out, src=tile)
    return out
