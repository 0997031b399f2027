# SPDX-License-Identifier: Apache-2.0
"""mask= went away."""

import trnlab.nki as nki
import trnlab.nki.language as nl

LINT = True


@nki.jit
def kernel(x):
    tile = nl.load(x, mask=x.shape[0] < 100)  # wrong
    return tile
