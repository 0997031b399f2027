# SPDX-License-Identifier: Apache-2.0
"""Nine sums of a bank each are added to in turns, in an order that is fixed; PSUM has eight banks."""

import numpy as np

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl

ARGUMENTS = (np.ones((128, 512), np.float32),)


@nki.jit
def kernel(x):
    tile = nl.load(x)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    sums = []
    for _ in range(9):
        sums.append(nl.ndarray((128, 512), nl.float32, buffer=nl.psum, name="acc"))  # wrong
    with nl.no_reorder():
        for acc in sums:
            nisa.nc_matmul(dst=acc, stationary=tile[:, 0:128], moving=tile)
        for acc in sums:
            nisa.nc_matmul(dst=acc, stationary=tile[:, 128:256], moving=tile)
        for acc in sums:
            nisa.tensor_tensor(dst=tile, data1=tile, data2=acc, op=nl.add)
    nl.store(out, tile)
    return out
