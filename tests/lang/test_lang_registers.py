# SPDX-License-Identifier: Apache-2.0
"""Recording without anybody who executes: what is known from the kernel's text, and the error for what is not."""

from __future__ import annotations

import pytest

from trnlab import chips, isa
from trnlab.errors import UsageError
from trnlab.lang import registers
from trnlab.lang.recorder import Recorder
from trnlab.lang.storage import MemorySpace


def test_loops_over_numbers_and_registers_that_hold_numbers_need_no_values() -> None:
    recorder = Recorder("counting", chips.get("trn2"))
    with recorder.active():
        stop = registers.allocate(7)
        seen = [int(i) for i in registers.counted(1, stop, 2)]
        registers.move(stop, 2)
        registers.for_each(0, stop, lambda i: seen.append(int(i)))
    assert seen == [1, 3, 5, 0, 1]
    assert not recorder.depends
    names = [isa.BY_OPCODE[int(code)].name for code in recorder.finish().opcode]
    assert names.count("register_alloc") == 3
    assert names.count("register_move") == 4


def test_a_value_that_only_data_decide_cannot_be_known_without_them() -> None:
    recorder = Recorder("guessing", chips.get("trn2"))
    with recorder.active():
        register = registers.allocate(recorder.tensor((1, 1), "int32", MemorySpace.sbuf))
        with pytest.raises(UsageError) as caught:
            int(register)
    assert caught.value.code == "TRN113"
    assert caught.value.where is not None
    assert caught.value.where.file == __file__
