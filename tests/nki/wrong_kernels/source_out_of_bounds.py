# SPDX-License-Identifier: Apache-2.0
"""The last block of the loop lies past the end of the tensor."""

import numpy as np

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl

ARGUMENTS = (np.ones((128, 512), np.float32),)


@nki.jit
def kernel(x):
    tile = nl.load(x)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for i in range(5):
        nisa.dma_copy(dst=tile[:, 0:128], src=x[:, i * 128 : (i + 1) * 128])  # wrong
    nl.store(out, tile)
    return out
