# SPDX-License-Identifier: Apache-2.0
"""A program of a grid reads what another one wrote."""

import numpy as np

from trnlab.nki import neuronxcc as nki
from trnlab.nki.neuronxcc import language as nl

ARGUMENTS = (np.ones((128, 512), np.float32),)
LAUNCH = 2


@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    mine = nl.program_id(0) * 256
    if nl.program_id(0) == 0:
        nl.store(out[0:128, 0:512], value=nl.load(x))
    tile = nl.load(out[0:128, mine : mine + 256])  # wrong
    nl.store(out[0:128, mine : mine + 256], value=nl.exp(tile))
    return out
