# SPDX-License-Identifier: Apache-2.0
"""An address past the end of SBUF."""

import numpy as np

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl

ARGUMENTS = (np.ones((128, 512), np.float32),)


@nki.jit
def kernel(x):
    tile = nl.load(x)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    spare = nl.ndarray((128, 256), x.dtype, buffer=nl.sbuf, address=(0, 256 * 1024))  # wrong
    nisa.memset(dst=spare, value=0.0)
    nl.store(out, tile)
    return out
