# SPDX-License-Identifier: Apache-2.0
"""A reduction reads what a mask left out of the load."""

import numpy as np

from trnlab.nki import neuronxcc as nki
from trnlab.nki.neuronxcc import language as nl

ARGUMENTS = (np.ones((128, 512), np.float32),)


@nki.jit
def kernel(x):
    out = nl.ndarray((128, 1), dtype=x.dtype, buffer=nl.shared_hbm)
    rows, columns = nl.mgrid[0:128, 0:600]
    tile = nl.load(x[rows, columns], mask=columns < 512)
    nl.store(out, value=nl.sum(tile, axis=1))  # wrong
    return out
