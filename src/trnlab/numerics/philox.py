# SPDX-License-Identifier: Apache-2.0
"""Philox-4x32 with 10 rounds: random bits as a function of a key of 64 bits and of a counter of 128.

Words are numbered: four to a block, blocks counted from the counter on. That is the order of XLA's RngBitGenerator,
and so of TensorFlow's stateless random numbers.

Source: J. Salmon, M. Moraes, R. Dror, D. Shaw, Parallel random numbers: as easy as 1, 2, 3, SC '11, section 4.3 and
table 2; the tests hold the known answers that its authors distribute.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
LANES = 4  # words of a block
STATE_WORDS = 6  # of a key and a counter, the low words first
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


def block(key: Array, counter: Array) -> tuple[Array, Array, Array, Array]:
    """The four words of each block; key: uint32 [..., 2], counter: uint32 [..., 4]; both low words first."""
    k0, k1 = (np.asarray(key, np.uint32)[..., i] for i in range(2))
    c0, c1, c2, c3 = (np.asarray(counter, np.uint32)[..., i] for i in range(LANES))
    for number in range(ROUNDS):
        bump0, bump1 = (np.uint32(number * step & 0xFFFFFFFF) for step in KEY_STEPS)
        low0, high0 = _product(c0, MULTIPLIERS[0])
        low1, high1 = _product(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ (k0 + bump0), low1, high0 ^ c3 ^ (k1 + bump1), low0
    return c0, c1, c2, c3


def words(state: Array, numbers: Array) -> Array:
    """Words by their numbers: uint32 like `numbers` (uint64); state: uint32 [..., 6], a key and a counter."""
    state, numbers = np.asarray(state, np.uint32), np.asarray(numbers, np.uint64)
    counter = _advanced(state[..., 2:], numbers // np.uint64(LANES))
    lane = (numbers % np.uint64(LANES)).astype(np.int64)
    return np.choose(lane, block(state[..., :2], counter))


def _advanced(counter: Array, blocks: Array) -> Array:
    """The counter some blocks on: 128 bits, which wrap."""
    low, high = (counter[..., i].astype(np.uint64) | counter[..., i + 1].astype(np.uint64) << _HALF for i in (0, 2))
    moved = low + blocks
    high = high + (moved < low)
    parts = [moved & _LOW, moved >> _HALF, high & _LOW, high >> _HALF]
    return np.stack([part.astype(np.uint32) for part in np.broadcast_arrays(*parts)], axis=-1)


def _product(x: Array, multiplier: int) -> tuple[Array, Array]:
    whole = x.astype(np.uint64) * np.uint64(multiplier)
    return (whole & _LOW).astype(np.uint32), (whole >> _HALF).astype(np.uint32)
