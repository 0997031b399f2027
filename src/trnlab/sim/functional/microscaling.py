# SPDX-License-Identifier: Apache-2.0
"""nc_matmul_mx as its definition says, to the bit, with the operands unpacked in a compiled loop.

Words and scales are looked up in a table of all products that the definition makes of them; the sums of products in
float64 are those of the same call of the same library. Shape letters: K partitions, N columns, 4 values of a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from trnlab.isa.base import Array, Arrays, as_float
from trnlab.isa.microscaling import codes_of
from trnlab.numerics.dtypes import DType, dtype
from trnlab.numerics.mx import GROUP_PARTITIONS, LANES, dequantize
from trnlab.sim.functional.linking import entry

_CODES = 256  # of a scale


@lru_cache(maxsize=8)
def products(fmt: DType) -> Array:
    """float64 [scale code, value code]: what `dequantize` makes of them."""
    values = 1 << (8 * fmt.itemsize // LANES)
    words = np.arange(values).astype(fmt.numpy)[None].repeat(GROUP_PARTITIONS, axis=0)
    rows = [dequantize(words, np.full((1, values), code, np.uint8), fmt)[0, :, 0] for code in range(_CODES)]
    return np.stack(rows)


@entry
def unpack_rows(words: Array, codes: Array, table: Array, bits: int, out: Array) -> None:
    """out [4 K, N]: the values of words [K, N] times the scales whose codes are [K / 8, N]."""
    mask = (1 << bits) - 1
    for k in range(words.shape[0]):
        for n in range(words.shape[1]):
            word, code = np.int64(words[k, n]), codes[k // GROUP_PARTITIONS, n]
            for lane in range(LANES):
                out[LANES * k + lane, n] = table[code, word >> bits * lane & mask]


def matrix(arrays: Arrays, attrs: Mapping[str, Any], name: str) -> Array:
    """float64 [4 K, N]: an operand and its scales."""
    words, fmt = arrays[name].reshape(arrays[name].shape[0], -1), dtype(attrs[f"{name}_format"])
    codes = codes_of(arrays[f"{name}_scale"], len(words))
    out = np.empty((LANES * words.shape[0], words.shape[1]))
    unpack_rows(np.ascontiguousarray(words), codes, products(fmt), 8 * fmt.itemsize // LANES, out)
    return out


def nc_matmul_mx(arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
    """What `isa.nc_matmul_mx` means."""
    with np.errstate(all="ignore"):
        left, right = (matrix(arrays, attrs, name) for name in ("stationary", "moving"))
        product = (left.T @ right).astype(np.float32).reshape(arrays["dst"].shape)
        return {"dst": as_float(arrays["dst"]) + product if attrs["accumulate"] else product}
