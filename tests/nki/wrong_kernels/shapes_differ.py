# SPDX-License-Identifier: Apache-2.0
"""The operands have different numbers of columns."""

import numpy as np

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl

ARGUMENTS = (np.ones((128, 512), np.float32),)


@nki.jit
def kernel(x):
    tile = nl.load(x)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.tensor_tensor(dst=tile, data1=tile, data2=tile[:, 0:256], op=nl.add)  # wrong
    nl.store(out, tile)
    return out
