# SPDX-License-Identifier: Apache-2.0
"""Scratch memory in HBM is read before it is written."""

import numpy as np

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl

ARGUMENTS = (np.ones((128, 512), np.float32),)


@nki.jit
def kernel(x):
    scratch = nl.ndarray(x.shape, x.dtype, buffer=nl.private_hbm, name="scratch")
    tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=tile, src=scratch)  # wrong
    nisa.dma_copy(dst=scratch, src=x)
    nisa.dma_copy(dst=out, src=tile)
    return out
