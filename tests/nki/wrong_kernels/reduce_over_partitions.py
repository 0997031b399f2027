# SPDX-License-Identifier: Apache-2.0
"""Reductions run along the free dimensions."""

import numpy as np

import trnlab.nki as nki
import trnlab.nki.language as nl

ARGUMENTS = (np.ones((128, 512), np.float32),)


@nki.jit
def kernel(x):
    tile = nl.load(x)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    total = nl.sum(tile, axis=0)  # wrong
    nl.store(out[0:1], total)
    nl.store(out, tile)
    return out
