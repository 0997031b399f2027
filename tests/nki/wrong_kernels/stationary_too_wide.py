# SPDX-License-Identifier: Apache-2.0
"""The stationary operand has 256 columns; the PE array has 128."""

import numpy as np

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl

ARGUMENTS = (np.ones((128, 512), np.float32),)


@nki.jit
def kernel(x):
    tile = nl.load(x)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    acc = nl.ndarray((128, 512), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=acc, stationary=tile[:, 0:256], moving=tile)  # wrong
    nl.store(out, tile)
    return out
