# SPDX-License-Identifier: Apache-2.0
"""Instructions as methods of the builder, and the lines that are recorded with them."""

import pytest

from trnlab import chips, isa
from trnlab.errors import Location
from trnlab.numerics.dtypes import float32
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
