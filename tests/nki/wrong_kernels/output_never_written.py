# SPDX-License-Identifier: Apache-2.0
"""The loop runs zero times: 100 // 128 is 0."""

import numpy as np

import trnlab.nki as nki
import trnlab.nki.language as nl

ARGUMENTS = (np.ones((100, 64), np.float32),)
UNPLACED = True  # the message names no line


@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="out")
    for i in range(x.shape[0] // 128):
        tile = nl.load(x[i * 128 : (i + 1) * 128])
        nl.store(out[i * 128 : (i + 1) * 128], tile)
    return out
