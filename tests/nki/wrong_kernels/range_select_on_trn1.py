# SPDX-License-Identifier: Apache-2.0
"""trn1 has no range_select."""

import numpy as np

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl

ARGUMENTS = (np.ones((128, 512), np.float32),)
CHIP = "trn1"


@nki.jit
def kernel(x):
    tile = nl.load(x)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    lo = nl.zeros((128, 1), nl.float32)
    hi = nl.ones((128, 1), nl.float32)
    ops = {"comp_op0": nl.greater_equal, "comp_op1": nl.less}
    nisa.range_select(dst=tile, on_true_tile=tile, bound0=lo, bound1=hi, **ops)  # wrong
    nl.store(out, tile)
    return out
