# SPDX-License-Identifier: Apache-2.0
"""The verifier accepts what the builder makes, and refuses each rule's violation under its own code."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from program_samples import CHIP, chain, everything, scale

from trnlab.errors import ConstraintError, Location
from trnlab.numerics import dtypes
from trnlab.program import Builder, Call
from trnlab.program.routine import COL
from trnlab.program.verify import verify_program, verify_routine


def code_of(action, *args) -> str:
    with pytest.raises(ConstraintError) as caught:
        action(*args)
    return caught.value.code


def test_what_the_builder_makes_passes():
    usage = verify_routine(scale(), CHIP)
    assert (usage.needs, usage.writes) == ({0}, {1})
    assert verify_routine(everything(), CHIP).writes == {1}
    verify_program(chain(), CHIP)


def with_operand(column: str, value: int, row: int = 2):
    routine = scale()
    routine.operands[row, COL[column]] = value
    return routine


@pytest.mark.parametrize(
    ("routine", "code"),
    [
        (lambda: replace(scale(), engine=scale().engine[:-1]), "TRN421"),
        (lambda: replace(scale(), attr=scale().attr + 100), "TRN421"),
        (lambda: replace(scale(), opcode=scale().opcode + 500), "TRN421"),
        (lambda: replace(scale(), first_operand=scale().first_operand[::-1].copy()), "TRN421"),
        (lambda: replace(scale(), params=(0,)), "TRN421"),
        (lambda: with_operand("buffer", 9), "TRN421"),
        (lambda: with_operand("role", 9), "TRN421"),
        (lambda: with_operand("offset", 4), "TRN422"),
        (lambda: with_operand("start_partition", 64), "TRN422"),
        (lambda: replace(scale(), sbuf_bytes=256), "TRN422"),
        (lambda: with_operand("last", 3), "TRN423"),
        (lambda: replace(scale(), hbm_slot=(0, 0, -1, -1)), "TRN423"),
        (lambda: replace(scale(), engine=np.zeros_like(scale().engine)), "TRN401"),
    ],
)
def test_broken_columns(routine, code):
    assert code_of(verify_routine, routine(), CHIP) == code


def test_a_tile_read_before_it_is_written():
    b = Builder("early", CHIP)
    t, u = b.tile((128, 8), "float32", name="t"), b.tile((128, 8), "float32", name="u")
    b.memset(dst=t)
    b.location = Location("k.py", 5)
    b.tensor_tensor(dst=u, data1=t, data2=u, op="add")
    with pytest.raises(ConstraintError) as caught:
        verify_routine(b.build(), CHIP)
    assert caught.value.code == "TRN424"
    assert "'u'" in str(caught.value)
    assert caught.value.where.line == 5


def test_accumulating_into_nothing():
    b = Builder("early", CHIP)
    t, acc = b.tile((128, 8), "float32"), b.psum((8, 8))
    b.memset(dst=t)
    b.nc_matmul(dst=acc, stationary=t, moving=t, accumulate=True)
    assert code_of(verify_routine, b.build(), CHIP) == "TRN424"


def tensors_with(index: int, **changes):
    tensors = list(chain().tensors)
    tensors[index] = replace(tensors[index], **changes)
    return tuple(tensors)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"calls": (Call(0, (1, 2)),)}, "TRN424"),
        ({"calls": (Call(0, (0,)),)}, "TRN425"),
        ({"calls": (Call(0, (0, 7)),)}, "TRN425"),
        ({"calls": (Call(0, (0, 1)), Call(0, (1, 2), sbuf_base=1 << 20))}, "TRN422"),
        ({"tensors": tensors_with(1, nbytes=4)}, "TRN425"),
        ({"tensors": tensors_with(1, dtype=dtypes.int32)}, "TRN425"),
        ({"calls": (Call(0, (0, 1)),)}, "TRN427"),
        ({"constants": {2: np.zeros(4)}}, "TRN427"),
        ({"hbm_bytes": 10}, "TRN422"),
        ({"tensors": tensors_with(2, address=64), "hbm_bytes": 17 << 12}, "TRN428"),
    ],
)
def test_broken_programs(changes, code):
    assert code_of(verify_program, chain(**changes), CHIP) == code


def test_one_tensor_behind_two_parameters():
    """Reading the old value of what is updated in place is legal; writing it twice is not."""
    b = Builder("split", CHIP)
    x, low, high = (b.param(name, (128, 8), "float32") for name in ("x", "low", "high"))
    t = b.tile((128, 8), "float32")
    b.dma_copy(dst=t, src=x)
    b.dma_copy(dst=low[0:64], src=t[0:64])
    b.dma_copy(dst=high[64:128], src=t[64:128])
    tensors = tuple(replace(t, shape=(128, 8), nbytes=4096, address=-1) for t in chain().tensors)
    parts = {"routines": (b.build(),), "tensors": tensors, "outputs": (2,), "constants": {}, "hbm_bytes": 0}
    verify_program(chain(**parts, calls=(Call(0, (0, 0, 2)),)), CHIP)
    assert code_of(verify_program, chain(**parts, calls=(Call(0, (0, 2, 2)),)), CHIP) == "TRN426"


def test_temporaries_may_follow_each_other_in_one_place():
    tensors = (*chain().tensors[:3], replace(chain().tensors[1], id=3, name="later"))
    calls = (Call(0, (0, 1)), Call(0, (1, 2)), Call(0, (2, 3)))
    verify_program(chain(tensors=tensors, calls=calls, constants={}), CHIP)


def test_both_zeros_are_attributes_of_their_own():
    b = Builder("zeros", CHIP)
    tile = b.tile((128, 8), "float32")
    for value in (0.0, -0.0):
        b.memset(dst=tile, value=value)
    routine = b.build()
    assert [str(dict(routine.attr_table[a])["value"]) for a in routine.attr] == ["0.0", "-0.0"]
