# SPDX-License-Identifier: Apache-2.0
"""nl.arange went away."""

import trnlab.nki as nki
import trnlab.nki.language as nl

LINT = True


@nki.jit
def kernel(x):
    rows = nl.arange(128)[:, None]  # wrong
    tile = nl.load(x[rows, 0])
    return tile
