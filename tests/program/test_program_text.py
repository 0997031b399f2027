# SPDX-License-Identifier: Apache-2.0
"""Programs as text: a golden routine, print -> parse is the identity on every column, errors with their line."""

from __future__ import annotations

import dataclasses
import re
from contextlib import suppress

import numpy as np
import pytest
from program_samples import CHIP, chain, everything, scale

from trnlab.errors import ConstraintError, TrnlabError
from trnlab.program import Builder, Program, Routine
from trnlab.program.parse import parse_program, parse_routine
from trnlab.program.text import instruction_text, program_text, routine_text

GOLDEN = """\
routine @scale for trn2, sbuf 512, scratch 0 {
  param %x: float32[256, 64] slot 32768
  param %y: float32[256, 64] slot 32768
  sbuf %t0: float32[128, 64] at 0 slot 0
  sbuf %t1: float32[128, 64] at 256 slot 0
  sync: dma_copy dst=%t0, src=%x[rows 128 by 256, @0, 1*64] !0
  vector: tensor_scalar dst=%t0, data=%t0, operand0=2.0 !0
  sync.2: dma_copy dst=%y[rows 128 by 256, @0, 1*64], src=%t0
  sync: dma_copy dst=%t1, src=%x[rows 128 by 256, @32768, 1*64]
  vector: tensor_scalar dst=%t1, data=%t1, operand0=2.0
  sync.2: dma_copy dst=%y[rows 128 by 256, @32768, 1*64], src=%t1
  loc !0 = 'train.py':12 in 'step' "x = 2 * 'x'"
}"""


def same_routine(a: Routine, b: Routine) -> None:
    """Every field of the dataclass, array columns element by element."""
    for field in dataclasses.fields(Routine):
        if not field.compare:
            continue
        x, y = getattr(a, field.name), getattr(b, field.name)
        if isinstance(x, np.ndarray):
            assert x.dtype == y.dtype, field.name
            np.testing.assert_array_equal(x, y, err_msg=field.name)
        else:
            assert repr(x) == repr(y), field.name  # repr: NaN among the attributes is not equal to itself


def same_program(a: Program, b: Program) -> None:
    for x, y in zip(a.routines, b.routines, strict=True):
        same_routine(x, y)
    for name in ("name", "target", "tensors", "calls", "inputs", "outputs", "hbm_bytes"):
        assert getattr(a, name) == getattr(b, name), name
    assert a.constants.keys() == b.constants.keys()
    for key, value in a.constants.items():
        assert value.dtype == b.constants[key].dtype
        np.testing.assert_array_equal(value, b.constants[key])


def test_golden():
    assert routine_text(scale()) == GOLDEN


@pytest.mark.parametrize("make", [scale, everything])
def test_routines_survive_the_round_trip(make):
    routine = make()
    text = routine_text(routine)
    again = parse_routine(text)
    same_routine(routine, again)
    assert routine_text(again) == text


def test_programs_survive_the_round_trip():
    program = chain(routines=(scale(), everything()))
    text = program_text(program)
    again = parse_program(text, chip=CHIP)
    same_program(program, again)
    assert program_text(again) == text


@pytest.mark.parametrize(("old", "new"), [("'", "'\0"), ("float32", "float0")])
def test_programs_with_names_of_nothing_are_refused_with_their_line(old, new):
    """Found by damaged files: errors of Python's parser and of NumPy's."""
    text = program_text(chain(routines=(scale(), everything())))
    places = [found.start() for found in re.finditer(re.escape(old), text)]
    assert places
    for place in places:
        with suppress(TrnlabError):
            parse_program(text[:place] + new + text[place + len(old) :], chip=CHIP)


def test_an_empty_routine():
    same_routine(Builder("empty", CHIP).build(), parse_routine(routine_text(Builder("empty", CHIP).build())))


def test_one_instruction_for_error_messages():
    assert instruction_text(scale(), 1) == "vector: tensor_scalar dst=%t0, data=%t0, operand0=2.0 !0"


@pytest.mark.parametrize(
    ("old", "new", "line", "wanted"),
    [
        ("vector: tensor_scalar dst=%t0", "vector: tensor_scaler dst=%t0", 7, "an instruction of trnlab.isa"),
        ("vector: tensor_scalar dst=%t0", "vektor: tensor_scalar dst=%t0", 7, "an engine"),
        ("data=%t0", "data=%u0", 7, "a declared buffer"),
        ("rows 128 by 256, @0", "rows 128, @0", 6, "an access pattern"),
        ("operand0=2.0", "operand0=open('x')", 7, "a number"),
        ("operand0=2.0", "operand0=2.", 7, ""),
        ("routine @scale", "routines @scale", 1, "routine @name"),
        ("\n}", "", 12, "}"),
    ],
)
def test_errors_name_the_line(old, new, line, wanted):
    text = GOLDEN.replace(old, new, 1)
    if not wanted:
        same_routine(parse_routine(text), scale())
        return
    with pytest.raises(ConstraintError) as caught:
        parse_routine(text, name="kernel.txt")
    assert caught.value.code == "TRN420"
    assert wanted in str(caught.value.limit)
    assert (caught.value.where.file, caught.value.where.line) == ("kernel.txt", line)


def test_text_is_checked_like_anything_else():
    with pytest.raises(ConstraintError) as caught:
        parse_routine(GOLDEN.replace("vector: tensor_scalar", "tensor: tensor_scalar", 1))
    assert caught.value.code == "TRN401"
    with pytest.raises(ConstraintError) as caught:
        parse_routine(GOLDEN.replace("@32768, 1*64], src=%t1", "@32772, 1*64], src=%t1", 1))
    assert caught.value.code == "TRN410"


@pytest.mark.parametrize("number", ["1e400", "9" * 30, "0", str(2**62)])
def test_numbers_beyond_measure_are_read_or_refused_with_their_line(number: str) -> None:
    """In every place of a routine where a number stands."""
    for found in re.finditer(r"\d+", GOLDEN):
        with suppress(TrnlabError):
            parse_routine(GOLDEN[: found.start()] + number + GOLDEN[found.end() :])
