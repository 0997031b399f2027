# SPDX-License-Identifier: Apache-2.0
"""A tile needs more bytes in a partition than SBUF has."""

import numpy as np

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl

ARGUMENTS = (np.ones((128, 512), np.float32),)


@nki.jit
def kernel(x):
    tile = nl.load(x)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    big = nl.ndarray((128, 65536), x.dtype, buffer=nl.sbuf, name="big")  # wrong
    nisa.memset(dst=big[:, 0:8192], value=0.0)
    nl.store(out, tile)
    return out
