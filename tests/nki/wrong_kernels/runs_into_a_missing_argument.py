# SPDX-License-Identifier: Apache-2.0
"""An old call without dst, as it runs: Python's complaint becomes the finding."""

import numpy as np

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl

ARGUMENTS = (np.ones((128, 512), np.float32),)


@nki.jit
def kernel(x):
    tile = nl.load(x)
    doubled = nisa.tensor_scalar(tile, op0=nl.multiply, operand0=2.0)  # wrong
    return doubled
