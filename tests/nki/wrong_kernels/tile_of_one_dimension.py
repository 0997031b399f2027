# SPDX-License-Identifier: Apache-2.0
"""A tile has a partition and a free dimension."""

import numpy as np

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl

ARGUMENTS = (np.ones((128, 512), np.float32),)


@nki.jit
def kernel(x):
    tile = nl.load(x)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    row = nl.ndarray((128,), x.dtype, buffer=nl.sbuf)  # wrong
    nisa.memset(dst=row, value=0.0)
    nl.store(out, tile)
    return out
