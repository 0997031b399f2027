# SPDX-License-Identifier: Apache-2.0
"""A tile is used after the loop that made it."""

from trnlab.nki import neuronxcc as nki
from trnlab.nki.neuronxcc import language as nl

LINT = True


@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(4):
        tile = nl.load(x[i])
    nl.store(out, value=tile)  # wrong
    return out
