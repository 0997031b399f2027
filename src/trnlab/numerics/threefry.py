# SPDX-License-Identifier: Apache-2.0
"""Threefry-2x32 with 20 rounds: random bits as a function of a key and of a counter, both of 64 bits.

For each key it is a bijection of the counters, so numbers with different counters come from different blocks, and
no two keys give the same sequence shifted, as generators that step a state can.

Source: J. Salmon, M. Moraes, R. Dror, D. Shaw, Parallel random numbers: as easy as 1, 2, 3, SC '11, section 4.2 and
table 2; the tests hold the known answers that its authors distribute.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

PARITY = 0x1BD11BDA
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))  # of the rounds between two additions of the key, in turn
INJECTIONS = 5  # the key is added after every fourth of the 20 rounds
WORD = 0xFFFFFFFF


def block(key: Array, counter: Array) -> tuple[Array, Array]:
    """The two words of each block; key: uint32 [..., 2], counter: uint64, its low half is the first word."""
    key, counter = np.asarray(key, np.uint32), np.asarray(counter, np.uint64)
    words = [key[..., 0], key[..., 1], np.uint32(PARITY) ^ key[..., 0] ^ key[..., 1]]
    low = (counter & np.uint64(WORD)).astype(np.uint32) + words[0]
    high = (counter >> np.uint64(32)).astype(np.uint32) + words[1]
    for turn in range(INJECTIONS):
        for distance in ROTATIONS[turn % 2]:
            low = low + high
            high = _rotated(high, distance) ^ low
        low = low + words[(turn + 1) % 3]
        high = high + words[(turn + 2) % 3] + np.uint32(turn + 1)
    return low, high


def _rotated(x: Array, distance: int) -> Array:
    rotated: Array = (x << np.uint32(distance)) | (x >> np.uint32(32 - distance))
    return rotated
