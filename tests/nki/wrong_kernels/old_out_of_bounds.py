# SPDX-License-Identifier: Apache-2.0
"""A block past the end of the tensor, and no mask."""

import numpy as np

from trnlab.nki import neuronxcc as nki
from trnlab.nki.neuronxcc import language as nl

ARGUMENTS = (np.ones((128, 512), np.float32),)


@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    rows, columns = nl.mgrid[0:128, 0:512]
    for i in nl.affine_range(2):
        tile = nl.load(x[rows, i * 400 + columns])  # wrong
        nl.store(out[rows, i * 400 + columns], value=tile)
    return out
