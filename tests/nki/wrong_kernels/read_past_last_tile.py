# SPDX-License-Identifier: Apache-2.0
"""The last tile holds fewer rows, and a matmul adds up all 128."""

import numpy as np

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl

ARGUMENTS = (np.ones((200, 64), np.float32),)


@nki.jit
def kernel(x):
    rows, columns = x.shape
    ones = nl.ones((128, 1), x.dtype)
    total = nl.ndarray((1, columns), nl.float32, buffer=nl.psum, name="total")
    out = nl.ndarray((1, columns), x.dtype, buffer=nl.shared_hbm)
    for start in range(0, rows, 128):
        here = min(128, rows - start)
        tile = nl.ndarray((128, columns), x.dtype, buffer=nl.sbuf, name="tile")
        nisa.dma_copy(dst=tile[0:here], src=x[start : start + here])
        nisa.nc_matmul(dst=total, stationary=ones, moving=tile, accumulate=start > 0)  # wrong
    nl.store(out, nl.copy(total))
    return out
