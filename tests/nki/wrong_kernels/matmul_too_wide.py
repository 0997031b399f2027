# SPDX-License-Identifier: Apache-2.0
"""A matmul moves 1024 columns; one takes 512."""

import numpy as np

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl

ARGUMENTS = (np.ones((128, 512), np.float32),)


@nki.jit
def kernel(x):
    tile = nl.load(x)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    wide = nl.zeros((128, 1024), nl.float32)
    acc = nl.ndarray((128, 1024), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=acc, stationary=wide[:, 0:128], moving=wide)  # wrong
    nl.store(out, tile)
    return out
