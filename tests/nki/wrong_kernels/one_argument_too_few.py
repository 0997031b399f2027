# SPDX-License-Identifier: Apache-2.0
"""A kernel is called without one of its arguments."""

import numpy as np

import trnlab.nki as nki

ARGUMENTS = (np.ones((128, 512), np.float32),)
UNPLACED = True  # the message names no line


@nki.jit
def kernel(x, y):
    return x
