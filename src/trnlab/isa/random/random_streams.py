# SPDX-License-Identifier: Apache-2.0
"""Random bits of an instruction: from a seed, or from the state of the engine's generator.

With a seed they are a pure function of the seed and of the element's place in the tile, whatever ran before: element
(p, f) of a [P, F] tile draws number p * F + f. With a key the numbers are given, and each is drawn from Threefry;
with a key and a counter, six words, from Philox.

The hardware's generators keep a state in each lane, the operand `state`: words of 32 bits, a row per lane. GpSimd's
is XORWOW with six words; so is that of VectorE with vector_xorwow, which has four, and element f draws from generator
f % 4 (assumed). How VectorE drew before is not published: its state here is (seed, count), two words, and it draws
number `count` of the seed's stream. How a seed fills a state is ours.

Sources: nki.isa.rng, set_rng_seed, rand_set_state, rand_get_state, rand2; trainium3_arch.rst:206-208.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa.base import SBUF_ONLY, Array, Arrays, Engine, Instruction, Operand, OperandSpec
from trnlab.numerics import philox, threefry, xorwow
from trnlab.numerics.rounding import random_bits

SEED = OperandSpec(
    "seed", "src", optional=True, immediate=True, shape=("P", "1"), dtypes=frozenset({"int32", "uint32"})
)
KEY = OperandSpec("key", "src", SBUF_ONLY, optional=True, shape=("P", "K"), dtypes=frozenset({"int32", "uint32"}))
WORD = frozenset({"uint32"})
STATE = OperandSpec("state", "dst", SBUF_ONLY, optional=True, rw=True, shape=("P", "W"), dtypes=WORD, state=True)
COUNTER_WORDS, GENERATORS = 2, 4
KEY_WORDS = (2, philox.STATE_WORDS)  # of Threefry, of Philox


def state_words(engine: Engine, chip: Chip) -> int:
    """32-bit words of a lane's generator state."""
    if engine is Engine.VECTOR:
        return GENERATORS * xorwow.WORDS if chip.has("vector_xorwow") else COUNTER_WORDS
    return xorwow.WORDS


def check_state(instr: Instruction, ops: Mapping[str, Operand], name: str, engine: Engine, chip: Chip) -> None:
    """A state that is given has as many words as the engine's generator."""
    words = state_words(engine, chip)
    if name in ops and ops[name].free != words:
        instr.refuse(
            f"operand {name!r} is not a state of {engine.name.lower()}'s generator",
            limit=f"{words} words per lane",
            got=ops[name].free,
            chip=chip,
            remedy=f"use a uint32 tile [P, {words}]",
            code="TRN409",
        )


def check_key(instr: Instruction, ops: Mapping[str, Operand], chip: Chip) -> None:
    """A key is Threefry's, or a key and a counter of Philox."""
    if "key" in ops and ops["key"].free not in KEY_WORDS:
        instr.refuse(
            "operand 'key' is no key of a random sequence",
            limit="2 words per lane, or 6",
            got=ops["key"].free,
            chip=chip,
            remedy="pass a key of 64 bits (Threefry), or a key and a counter (Philox)",
            code="TRN409",
        )


def seeded(seed: int, lanes: int, words: int) -> Array:
    """uint32 [lanes, words]: the state that a seed stands for, in each lane another."""
    numbers = random_bits(np.uint64(seed), np.arange(lanes * words, dtype=np.uint64)).reshape(lanes, words)
    if words == COUNTER_WORDS:
        numbers[:, 1] = 0
    return numbers


def draw(arrays: Arrays, attrs: Mapping[str, Any]) -> tuple[Array, dict[str, Array]]:
    """uint32 [P, F] for the elements of dst, and the state after that (empty when a seed is used)."""
    if "state" not in arrays:
        return tile_bits(arrays, attrs), {}
    state, shape = arrays["state"], arrays["dst"].shape
    words = state.reshape(shape[0], -1)
    bits, after = _drawn(words, int(np.prod(shape[1:], dtype=np.int64)))
    return bits, {"state": after.reshape(state.shape)}


def _drawn(words: Array, count: int) -> tuple[Array, Array]:
    if words.shape[1] == COUNTER_WORDS:
        counters = words[:, 1:].astype(np.uint64) + np.arange(count, dtype=np.uint64)
        after = np.stack([words[:, 0], words[:, 1] + np.uint32(count & 0xFFFFFFFF)], axis=1)
        return random_bits(words[:, :1], counters), after
    generators = words.reshape(-1, xorwow.WORDS)
    each = generators.shape[0] // words.shape[0]
    numbers, after = xorwow.draw(generators, -(-count // each))
    bits = numbers.reshape(words.shape[0], each, -1).transpose(0, 2, 1).reshape(words.shape[0], -1)
    return bits[:, :count], after.reshape(words.shape)


def tile_bits(arrays: Arrays, attrs: Mapping[str, Any]) -> Array:
    """uint32 [P, F]: the seed is a number, or one number per partition read from a tile."""
    shape = arrays["dst"].shape
    counters = np.arange(np.prod(shape), dtype=np.uint64).reshape(shape[0], -1)
    seed = arrays["seed"].reshape(-1, 1).view(np.uint32) if "seed" in arrays else attrs.get("seed") or 0
    return random_bits(seed, counters)


def numbered_bits(arrays: Arrays, attrs: Mapping[str, Any]) -> Array:
    """uint32 [P, F]: element (p, f) is number first + p * step + f of the sequence of row p's key."""
    shape = arrays["dst"].shape
    rows, cols = shape[0], int(np.prod(shape[1:], dtype=np.int64))
    starts = np.uint64(attrs["first"]) + np.arange(rows, dtype=np.uint64)[:, None] * np.uint64(attrs["step"])
    key = arrays["key"].reshape(rows, 1, -1).view(np.uint32)
    numbers = starts + np.arange(cols, dtype=np.uint64)
    return threefry.block(key, numbers)[0] if key.shape[-1] == 2 else philox.words(key, numbers)
