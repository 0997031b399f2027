# SPDX-License-Identifier: Apache-2.0
"""nl.exp of a tensor that was not loaded."""

import numpy as np

from trnlab.nki import neuronxcc as nki
from trnlab.nki.neuronxcc import language as nl

ARGUMENTS = (np.ones((128, 512), np.float32),)


@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, value=nl.exp(x))  # wrong
    return out
