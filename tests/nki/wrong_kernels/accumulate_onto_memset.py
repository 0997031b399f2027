# SPDX-License-Identifier: Apache-2.0
"""PSUM is filled by memset, and a matmul told to accumulate onto that."""

import numpy as np

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl

ARGUMENTS = (np.ones((128, 512), np.float32), np.ones((128, 128), np.float32))


@nki.jit
def kernel(x, w):
    moving = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    stationary = nl.ndarray(w.shape, w.dtype, buffer=nl.sbuf)
    acc = nl.ndarray((128, 512), nl.float32, buffer=nl.psum, name="acc")
    tile = nl.ndarray((128, 512), nl.float32, buffer=nl.sbuf)
    out = nl.ndarray((128, 512), nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=moving, src=x)
    nisa.dma_copy(dst=stationary, src=w)
    nisa.memset(dst=acc, value=1.0)
    nisa.nc_matmul(dst=acc, stationary=stationary, moving=moving, accumulate=True)  # wrong
    nisa.tensor_copy(dst=tile, src=acc)
    nisa.dma_copy(dst=out, src=tile)
    return out
