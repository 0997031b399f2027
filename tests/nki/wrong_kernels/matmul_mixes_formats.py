# SPDX-License-Identifier: Apache-2.0
"""float32 and bfloat16 do not multiply."""

import numpy as np

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl

ARGUMENTS = (np.ones((128, 512), np.float32),)


@nki.jit
def kernel(x):
    tile = nl.load(x)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    half = nl.zeros((128, 128), nl.bfloat16)
    acc = nl.ndarray((128, 512), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=acc, stationary=half, moving=tile)  # wrong
    nl.store(out, tile)
    return out
