# SPDX-License-Identifier: Apache-2.0
"""Matmuls write PSUM."""

import numpy as np

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl

ARGUMENTS = (np.ones((128, 512), np.float32),)


@nki.jit
def kernel(x):
    tile = nl.load(x)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    acc = nl.ndarray((128, 512), nl.float32, buffer=nl.sbuf)
    nisa.nc_matmul(dst=acc, stationary=tile[:, 0:128], moving=tile)  # wrong
    nl.store(out, tile)
    return out
