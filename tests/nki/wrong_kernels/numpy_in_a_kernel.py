# SPDX-License-Identifier: Apache-2.0
"""NumPy inside a kernel."""

import numpy as np

import trnlab.nki as nki

LINT = True


@nki.jit
def kernel(x):
    scale = np.sqrt(x)  # wrong
    return scale
