# SPDX-License-Identifier: Apache-2.0
"""VectorE reads one input from PSUM at a time."""

import numpy as np

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl

ARGUMENTS = (np.ones((128, 512), np.float32),)


@nki.jit
def kernel(x):
    tile = nl.load(x)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    a = nl.zeros((128, 512), nl.float32, buffer=nl.psum)
    b = nl.zeros((128, 512), nl.float32, buffer=nl.psum)
    nisa.tensor_tensor(dst=tile, data1=a, data2=b, op=nl.add)  # wrong
    nl.store(out, tile)
    return out
