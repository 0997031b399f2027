# SPDX-License-Identifier: Apache-2.0
"""Engines compute on SBUF and PSUM; HBM is reached by DMA only."""

import numpy as np

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl

ARGUMENTS = (np.ones((128, 512), np.float32),)


@nki.jit
def kernel(x):
    tile = nl.load(x)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.activation(dst=tile, data=x, op=nl.exp)  # wrong
    nl.store(out, tile)
    return out
