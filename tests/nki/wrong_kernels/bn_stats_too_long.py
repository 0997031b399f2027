# SPDX-License-Identifier: Apache-2.0
"""bn_stats takes 512 elements."""

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
    stats = nl.ndarray((128, 6), nl.float32)
    nisa.bn_stats(dst=stats, data=wide)  # wrong
    nl.store(out, tile)
    return out
