# SPDX-License-Identifier: Apache-2.0
"""Tiles are written by dst=."""

import trnlab.nki as nki
import trnlab.nki.language as nl

LINT = True


@nki.jit
def kernel(x):
    tile = nl.ndarray(x.shape, x.dtype)
    tile[...] = nl.load(x)  # wrong
    return tile
