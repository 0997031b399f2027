# SPDX-License-Identifier: Apache-2.0
"""A tensor that is stored to once is cut as one that is stored to often, though no arrays are made for it; and an
instruction that was checked for one routine is recorded in the next as if it had been checked there."""

from __future__ import annotations

import random

import numpy as np
import pytest

from trnlab import chips
from trnlab.errors import ConstraintError
from trnlab.isa.base import Memory
from trnlab.numerics.dtypes import bfloat16, float32
from trnlab.program import Builder
from trnlab.program.access import Buffer
from trnlab.program.grids import _alone, _best
from trnlab.program.routine import COL


def drawn(rng: random.Random) -> tuple[Buffer, list[int]]:
    """A small tensor and a store to it, most of them of all that their pattern spans."""
    kind, columns = rng.choice((float32, bfloat16)), rng.randint(1, 12)
    nbytes = rng.randint(1, 6) * columns * kind.itemsize
    store = [0] * len(COL)
    store[COL["dtype"]], store[COL["partitions"]] = kind.code, rng.randint(1, 4)
    store[COL["partition_step"]] = rng.choice((0, columns * kind.itemsize, rng.randint(-8, 30)))
    spans = store[COL["partition_step"]] * (store[COL["partitions"]] - 1)
    for i in range(4):
        step, count = rng.randint(-3, 6), rng.choice((1, 1, rng.randint(1, 4)))
        store[COL[f"step{i}"]], store[COL[f"count{i}"]] = step, count
        spans += kind.itemsize * step * (count - 1)
    first = rng.randint(0, nbytes - 1)
    last = first + spans + kind.itemsize - 1
    if not (first <= last < nbytes) or rng.random() < 0.3:
        last = rng.randint(first, nbytes - 1)
    store[COL["first"]], store[COL["last"]] = first, last
    slot = rng.choice((1, columns * kind.itemsize, nbytes))
    return Buffer(0, "x", Memory.HBM, (nbytes,), kind, nbytes, slot_bytes=slot, kind="param"), store


def test_one_store_is_cut_as_many_are() -> None:
    rng, cut = random.Random(0), 0
    for _ in range(1500):
        buffer, store = drawn(rng)
        expected = _best(buffer, np.array([store], np.int64))
        assert _alone(buffer, store) == expected, (buffer, store)
        cut += expected is not None
    assert cut > 300


def scaled(name: str, by: float | int | bool) -> tuple[object, ...]:
    b = Builder("scale", chips.get(name))
    tile = b.tile((128, 64), "float32")
    b.tensor_scalar(dst=tile, data=tile, operand0=by, op0="multiply")
    routine = b.build()
    return routine.works, tuple(sorted((k, type(v), str(v)) for k, v in routine.attr_table[0]))


def test_what_one_routine_knows_of_an_instruction_is_right_in_another() -> None:
    """Numbers that are equal and not the same stay apart, whatever was recorded first; chips are asked one by one."""
    numbers = (1, 1.0, True, 0.0, -0.0)
    first = [scaled("trn1", by) for by in numbers]
    assert [scaled("trn1", by) for by in reversed(numbers)] == first[::-1]
    assert len({attrs for _, attrs in first}) == len(numbers)
    assert scaled("trn2", 1.0) == scaled("trn2", 1.0)


def test_what_is_refused_is_refused_again() -> None:
    for _ in range(2):
        b = Builder("scale", chips.get("trn1"))
        tile, other = b.tile((128, 64), "float32"), b.tile((128, 32), "float32")
        with pytest.raises(ConstraintError, match="TRN409"):
            b.tensor_scalar(dst=tile, data=other, operand0=2.0, op0="multiply")
