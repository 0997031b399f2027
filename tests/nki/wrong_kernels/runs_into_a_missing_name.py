# SPDX-License-Identifier: Apache-2.0
"""A name that went away, as it runs."""

import numpy as np

import trnlab.nki as nki
import trnlab.nki.language as nl

ARGUMENTS = (np.ones((128, 512), np.float32),)


@nki.jit
def kernel(x):
    rows = nl.arange(128)[:, None]  # wrong
    tile = nl.load(x[rows, 0])
    return tile
