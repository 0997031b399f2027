# SPDX-License-Identifier: Apache-2.0
"""max8 finds eight, and needs as many."""

import numpy as np

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl

ARGUMENTS = (np.ones((128, 512), np.float32),)


@nki.jit
def kernel(x):
    tile = nl.load(x)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    best = nl.ndarray((128, 8), nl.float32)
    nisa.max8(dst=best, src=tile[:, 0:4])  # wrong
    nl.store(out, tile)
    return out
