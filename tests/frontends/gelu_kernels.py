# SPDX-License-Identifier: Apache-2.0
"""Kernels that run on one core or share their rows among several."""

from __future__ import annotations

import trnlab.nki as nki
import trnlab.nki.language as nl


def mine(x):
    """The tiles of rows that are this core's."""
    for i in range(nl.program_id(0), -(-x.shape[0] // 128), nl.num_programs()):
        yield slice(128 * i, min(128 * i + 128, x.shape[0]))


@nki.jit
def gelu_forward(x):
    """Two results: the function, and its slope for the way back."""
    out, slope = (nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm) for _ in range(2))
    for rows in mine(x):
        source = nl.load(x[rows])
        nl.store(out[rows], nl.gelu(source))
        nl.store(slope[rows], nl.gelu_dx(source))
    return out, slope


@nki.jit
def product(x, y):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for rows in mine(x):
        nl.store(out[rows], nl.multiply(nl.load(x[rows]), nl.load(y[rows])))
    return out
