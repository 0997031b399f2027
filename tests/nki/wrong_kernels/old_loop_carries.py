# SPDX-License-Identifier: Apache-2.0
"""An iteration of affine_range uses what the one before left."""

import numpy as np

from trnlab.nki import neuronxcc as nki
from trnlab.nki.neuronxcc import language as nl

ARGUMENTS = (np.ones((128, 512), np.float32),)


@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    total = nl.zeros((128, 128), dtype=nl.float32, buffer=nl.sbuf)
    for i in nl.affine_range(4):
        tile = nl.load(x[0:128, i * 128 : (i + 1) * 128])
        total[...] = nl.subtract(tile, total)  # wrong
        nl.store(out[0:128, i * 128 : (i + 1) * 128], value=total)
    return out
