# SPDX-License-Identifier: Apache-2.0
"""What the passes and the placement do grows with the kernel, not with its square.

Counted are the lines of Python that run, and the whole columns that are made anew; compiled loops over the columns
are linear as they stand. Four times the instructions may take a little more than four times the work (sorting).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from trnlab import chips
from trnlab.lang import allocation
from trnlab.lang.recorder import Recorder
from trnlab.nki import isa as nisa
from trnlab.nki import language as nl
from trnlab.policy import SCHEDULED
from trnlab.program import passes
from trnlab.program.passes.draft import Draft

SMALL, LARGE, MOST = 12, 48, 4.6
COLUMNS = ("first", "of")


def body(x: Any, out: Any, kept: Any, i: int) -> None:
    """Work for every pass: tiles written again, a row negated twice, a product with a name, equal loads."""
    nisa.dma_copy(dst=kept, src=x[:, 512 * (i % 4) : 512 * (i % 4) + 512])
    tile, wide = (nl.ndarray((128, 512), dtype=nl.bfloat16, buffer=nl.sbuf) for _ in range(2))
    nisa.dma_copy(dst=tile, src=x[:, 0:512])
    top, low = (nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf) for _ in range(2))
    nisa.tensor_reduce(dst=top, op=nl.maximum, data=kept, axis=1)
    for _ in range(2):
        nisa.tensor_scalar(dst=low, data=top, op0=nl.multiply, operand0=-1.0)
    nisa.activation(dst=wide, op=nl.exp, data=kept, bias=low)
    acc, product = (nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum) for _ in range(2))
    nisa.nc_matmul(dst=acc, stationary=wide[:, 0:128], moving=tile)
    nisa.nc_matmul(dst=product, stationary=wide[:, 128:256], moving=tile)
    named = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=named, src=product)
    nisa.tensor_tensor(dst=acc, data1=acc, data2=named, op=nl.add)
    result = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=result, src=acc)
    nisa.dma_copy(dst=out[:, 512 * (i % 4) : 512 * (i % 4) + 512], src=result)


def recorded(rounds: int, hoarded: int = 0) -> Recorder:
    """A kernel of so many rounds. hoarded: tiles that are filled first and read last, more than there is room for."""
    recorder = Recorder("work", chips.get("trn2"))
    with recorder.active():
        x = recorder.argument("x", (128, 2048), "bfloat16")
        out = recorder.argument("out", (128, 2048), "float32")
        held = [nl.ndarray((128, 16384), dtype=nl.bfloat16, buffer=nl.sbuf) for _ in range(hoarded)]
        for tile in held:
            nisa.memset(dst=tile, value=1.0)
            nisa.activation(dst=tile, op=nl.exp, data=tile)
        kept = nl.ndarray((128, 512), dtype=nl.bfloat16, buffer=nl.sbuf)
        for i in range(rounds):
            body(x, out, kept, i)
        for tile in held:
            nisa.dma_copy(dst=x, src=tile[:, 0:2048])
    return recorder


def lines_run(work: Callable[[], Any]) -> int:
    """Lines of Python that a call runs, each as often as it does."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def growth(make: Callable[[int], Callable[[], Any]]) -> tuple[int, int]:
    """Lines that make(rounds)() runs in a small kernel and in one four times as large."""
    make(SMALL)()  # whatever is compiled, or remembered
    small, large = lines_run(make(SMALL)), lines_run(make(LARGE))
    return small, large


@pytest.mark.parametrize("name", passes.PASSES)
def test_four_times_the_instructions_are_four_times_the_work_of_a_pass(name):
    def make(rounds: int) -> Callable[[], Any]:
        recorder = recorded(rounds)
        draft = Draft(recorder.builder, [made.buffer.id for made in recorder.tiles], SCHEDULED)
        return lambda: passes.PASSES[name].change(draft)

    small, large = growth(make)
    assert large <= MOST * small + 200


@pytest.mark.parametrize("hoarded", [0, 8])
def test_all_passes_with_placement_and_spilling_are_linear(hoarded):
    def make(rounds: int) -> Callable[[], Any]:
        builder = recorded(rounds, hoarded * rounds // SMALL).builder
        return lambda: allocation.finished(builder, {}, SCHEDULED)

    small, large = growth(make)
    assert large <= MOST * small + 2000


def test_no_pass_makes_whole_columns_anew_for_single_instructions(monkeypatch):
    """`Draft.first` and its like go through all instructions each time that they are asked for."""
    asked = 0

    def counted(column: property) -> property:
        def get(draft: Draft) -> Any:
            nonlocal asked
            asked += 1
            assert column.fget is not None
            return column.fget(draft)

        return property(get)

    for column in COLUMNS:
        monkeypatch.setattr(Draft, column, counted(getattr(Draft, column)))
    found = []
    for rounds in (SMALL, LARGE):
        asked = 0
        allocation.finished(recorded(rounds).builder, {}, SCHEDULED)
        found.append(asked)
    assert found[1] <= found[0] + 8
