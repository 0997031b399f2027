# SPDX-License-Identifier: Apache-2.0
"""A finished routine that is recorded again is the same routine: its instructions, places, slots and time."""

from __future__ import annotations

import numpy as np
import pytest
from random_kernels import arguments, made

from trnlab import chips
from trnlab.nki import checks, install_imports
from trnlab.program.lifting import lifted
from trnlab.program.routine import Routine
from trnlab.sim.timing import time_routine

COLUMNS = ("opcode", "engine", "queue", "first_operand", "operands", "left_open", "sbuf_cuts", "hbm_slot")


def recorded(seed: int, dialect: str, chip: str) -> Routine:
    install_imports()
    kernel = made(seed, dialect).kernel()
    kernel.chip = chips.get(chip)
    with checks(accumulation="off"):
        routine: Routine = kernel.trace(*arguments(seed)).routine
    return routine


@pytest.mark.parametrize("dialect", ["neuronxcc", "nki"])
@pytest.mark.parametrize("seed", range(3))
def test_lifting_and_building_gives_the_routine_back(seed: int, dialect: str) -> None:
    for name in ("trn1", "trn2"):
        chip, routine = chips.get(name), recorded(seed, dialect, name)
        again = lifted(routine, chip).build()
        for column in COLUMNS:
            assert np.array_equal(getattr(again, column), getattr(routine, column)), column
        works = lambda r: [r.works[w] for w in r.work.tolist()]  # noqa: E731
        attributes = lambda r: [r.attr_table[a] for a in r.attr.tolist()]  # noqa: E731
        lines = lambda r: [r.locs[n] for n in r.loc.tolist()]  # noqa: E731
        for of in (works, attributes, lines):
            assert of(again) == of(routine)
        assert (again.sbuf_bytes, again.scratch_bytes) == (routine.sbuf_bytes, routine.scratch_bytes)
        assert again.params == routine.params
        assert time_routine(again, chip).total == time_routine(routine, chip).total
