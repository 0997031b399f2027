# SPDX-License-Identifier: Apache-2.0
"""A PSUM tile begins in the middle of a bank."""

import numpy as np

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl

ARGUMENTS = (np.ones((128, 512), np.float32),)


@nki.jit
def kernel(x):
    tile = nl.load(x)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    acc = nl.ndarray((128, 256), nl.float32, buffer=nl.psum, address=(0, 1024))  # wrong
    nisa.memset(dst=acc, value=0.0)
    nl.store(out, tile)
    return out
