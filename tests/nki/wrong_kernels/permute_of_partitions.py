# SPDX-License-Identifier: Apache-2.0
"""A permutation keeps the partition first."""

import numpy as np

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl

ARGUMENTS = (np.ones((128, 512), np.float32),)


@nki.jit
def kernel(x):
    tile = nl.load(x)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    turned = tile.permute((1, 0))  # wrong
    nisa.memset(dst=turned, value=0.0)
    nl.store(out, tile)
    return out
