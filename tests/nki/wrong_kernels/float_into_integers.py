# SPDX-License-Identifier: Apache-2.0
"""memset does not convert."""

import numpy as np

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl

ARGUMENTS = (np.ones((128, 512), np.float32),)


@nki.jit
def kernel(x):
    tile = nl.load(x)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    counts = nl.ndarray((128, 8), nl.int32, buffer=nl.sbuf)
    nisa.memset(dst=counts, value=2.5)  # wrong
    nl.store(out, tile)
    return out
