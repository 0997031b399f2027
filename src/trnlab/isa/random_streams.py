# SPDX-License-Identifier: Apache-2.0
"""Random bits of an instruction: a pure function of the seed and of the element's place in the tile.

The generators of the hardware keep state in each lane, and their exact streams are not published; here the same seed
always gives the same bits, whatever ran before. Element (p, f) of a [P, F] tile draws number p * F + f.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trnlab.isa.base import Array, Arrays, OperandSpec
from trnlab.numerics.rounding import random_bits

SEED = OperandSpec(
    "seed", "src", optional=True, immediate=True, shape=("P", "1"), dtypes=frozenset({"int32", "uint32"})
)


def tile_bits(arrays: Arrays, attrs: Mapping[str, Any]) -> Array:
    """uint32 [P, F]: the seed is a number, or one number per partition read from a tile."""
    shape = arrays["dst"].shape
    counters = np.arange(np.prod(shape), dtype=np.uint64).reshape(shape[0], -1)
    seed = arrays["seed"].reshape(-1, 1).view(np.uint32) if "seed" in arrays else attrs.get("seed") or 0
    return random_bits(seed, counters)
