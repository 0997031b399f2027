# SPDX-License-Identifier: Apache-2.0
"""Says more than anybody wants to hear, and writes to files that are not its own."""

import contextlib
import os
import sys

import neuronxcc.nki as nki
import neuronxcc.nki.language as nl

sys.stderr.write("x" * (1 << 24))
for handle in range(3, 2000):
    with contextlib.suppress(OSError):
        os.write(handle, b"\xff" * 4096)


@nki.jit
def softmax(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for r in nl.affine_range(x.shape[0] // 128):
        nl.store(out[r * 128 : (r + 1) * 128, :], nl.load(x[r * 128 : (r + 1) * 128, :]))
    return out
