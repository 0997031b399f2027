# SPDX-License-Identifier: Apache-2.0
"""Rows divided by the root of their mean square, with parameters: rows at a time, columns of a tile."""

import neuronxcc.nki as nki
import neuronxcc.nki.language as nl

TUNE = {"columns": [128, 512, 2048, 4096], "rows": [32, 64, 128, 256], "halves": [1, 2]}
halves = 1


@nki.jit
def rmsnorm(x, rows=32, columns=128):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    width = x.shape[1] // halves if columns > x.shape[1] else columns
    for r in nl.affine_range(x.shape[0] // rows):
        here = nl.ndarray((nl.par_dim(rows), x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
        total = nl.zeros((nl.par_dim(rows), 1), dtype=nl.float32, buffer=nl.sbuf)
        for c in nl.sequential_range(x.shape[1] // width):
            here[:, nl.ds(c * width, width)] = nl.load(x[nl.ds(r * rows, rows), nl.ds(c * width, width)])
            square = nl.square(here[:, nl.ds(c * width, width)])
            total[...] = nl.add(total, nl.sum(square, axis=1, keepdims=True))
        scale = nl.rsqrt(nl.add(nl.multiply(total, 1.0 / x.shape[1]), 1e-6))
        for c in nl.affine_range(x.shape[1] // width):
            scaled = nl.multiply(here[:, nl.ds(c * width, width)], scale)
            nl.store(out[nl.ds(r * rows, rows), nl.ds(c * width, width)], scaled)
    return out
