# SPDX-License-Identifier: Apache-2.0
"""A predicate is an unsigned integer."""

import numpy as np

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl

ARGUMENTS = (np.ones((128, 512), np.float32),)


@nki.jit
def kernel(x):
    tile = nl.load(x)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    mask = nl.ones((128, 512), nl.float32)
    nisa.tensor_copy_predicated(dst=tile, src=tile, predicate=mask)  # wrong
    nl.store(out, tile)
    return out
