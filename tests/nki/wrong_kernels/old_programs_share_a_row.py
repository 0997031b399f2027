# SPDX-License-Identifier: Apache-2.0
"""All programs of a grid write the same rows."""

import numpy as np

from trnlab.nki import neuronxcc as nki
from trnlab.nki.neuronxcc import language as nl

ARGUMENTS = (np.ones((128, 512), np.float32),)
LAUNCH = 2


@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    half = nl.program_id(0) * 256
    tile = nl.load(x[0:128, half : half + 256])
    nl.store(out[0:128, 0:256], value=tile)  # wrong
    return out
