# SPDX-License-Identifier: Apache-2.0
"""The PE array transposes 128 by 128."""

import numpy as np

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl

ARGUMENTS = (np.ones((128, 512), np.float32),)


@nki.jit
def kernel(x):
    tile = nl.load(x)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    turned = (
        nl.ndarray((512, 128), nl.float32, buffer=nl.psum)
        if False
        else nl.ndarray((128, 128), nl.float32, buffer=nl.psum)
    )
    nisa.nc_transpose(dst=turned, data=tile)  # wrong
    nl.store(out, tile)
    return out
