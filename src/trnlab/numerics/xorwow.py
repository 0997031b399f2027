# SPDX-License-Identifier: Apache-2.0
"""The XORWOW generator of GpSimd (NeuronCore-v3 on) and VectorE (v4): five xorshift words and a Weyl counter.

G. Marsaglia, Xorshift RNGs, Journal of Statistical Software 8 (2003), section 3.1. The hardware's states are
published as six 32-bit words (nki.isa.rand_set_state); that they are x, y, z, w, v and the counter, in this order, is
assumed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

WORDS = 6
_WEYL = np.uint32(362437)


def draw(states: Array, count: int) -> tuple[Array, Array]:
    """`count` numbers (uint32 [L, count]) from generators with states uint32 [L, 6], and the states after that."""
    x, y, z, w, v, d = (states[:, i].copy() for i in range(WORDS))
    numbers = np.empty((len(states), count), np.uint32)
    for i in range(count):
        t = x ^ (x >> np.uint32(2))
        x, y, z, w = y, z, w, v
        v = (v ^ (v << np.uint32(4))) ^ (t ^ (t << np.uint32(1)))
        d = d + _WEYL
        numbers[:, i] = d + v
    return numbers, np.stack([x, y, z, w, v, d], axis=1)
