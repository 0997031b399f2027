# SPDX-License-Identifier: Apache-2.0
"""Instructions as methods of the builder, and the lines that are recorded with them."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from trnlab import chips, isa
from trnlab.errors import ConstraintError, Location
from trnlab.numerics.dtypes import bfloat16, float32
from trnlab.program.builder import Builder


def test_every_instruction_is_a_method() -> None:
    assert all(name in vars(Builder) for name in isa.REGISTRY)
    with pytest.raises(AttributeError, match="no_such_instruction"):
        Builder("k", chips.get("trn2")).no_such_instruction  # noqa: B018


def test_each_instruction_has_the_line_of_its_time() -> None:
    first, second = Location("a.py", 1), Location("a.py", 2)
    b = Builder("k", chips.get("trn2"))
    t = b.tile((128, 4), float32)
    for place in (None, first, first, second, Location("a.py", 1), None):
        b.location = place
        b.memset(dst=t, value=1.0)
    routine = b.build()
    assert [routine.locs[i] for i in routine.loc] == [None, first, first, second, first, None]


@pytest.mark.parametrize(("begun", "first", "final"), [(False, 0, 4), (True, 0, -1), (False, 3, 7)])
def test_products_of_a_sum_are_recorded_as_one_by_one(begun: bool, first: int, final: int) -> None:
    def recorded(together: bool) -> Any:
        b = Builder("k", chips.get("trn1"))
        x, total = b.tile((128, 700), bfloat16), b.psum((64, 512))
        weights = [x[:, 37 * k : 37 * k + 64] for k in range(5)]
        moving = [x[: 128 - 32 * (k == 4), 100:612] for k in range(5)]
        weights[4] = weights[4][:96]
        b.location = Location("a.py", 3)
        if together:
            b.products(total, weights, moving, first, begun, final)
        else:
            for k, (w, m) in enumerate(zip(weights, moving), first):
                b.nc_matmul(dst=total, stationary=w, moving=m, accumulate=begun or k > 0, stop=k == final)
        b.tensor_copy(dst=x[:64, :512], src=total)
        return b.build()

    one, other = recorded(True), recorded(False)
    for field in fields(one):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        assert np.array_equal(mine, theirs) if isinstance(mine, np.ndarray) else mine == theirs, field.name


def test_products_are_checked() -> None:
    b = Builder("k", chips.get("trn1"))
    x, total = b.tile((128, 700), bfloat16), b.psum((64, 512))
    with pytest.raises(ConstraintError):
        b.products(total, [x[:, :64]], [x[:64, 100:612]], 0, False, 0)
