# SPDX-License-Identifier: Apache-2.0
"""ScalarE does not add two tiles."""

import numpy as np

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl

ARGUMENTS = (np.ones((128, 512), np.float32),)


@nki.jit
def kernel(x):
    tile = nl.load(x)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.tensor_tensor(dst=tile, data1=tile, data2=tile, op=nl.add, engine=nisa.engine.scalar)  # wrong
    nl.store(out, tile)
    return out
