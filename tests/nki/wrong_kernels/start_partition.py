# SPDX-License-Identifier: Apache-2.0
"""A tile of 64 rows begins at partition 16."""

import numpy as np

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl

ARGUMENTS = (np.ones((128, 512), np.float32),)


@nki.jit
def kernel(x):
    tile = nl.load(x)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.memset(dst=tile[16:80], value=0.0)  # wrong
    nl.store(out, tile)
    return out
