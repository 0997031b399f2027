# SPDX-License-Identifier: Apache-2.0
"""Drawn programs whose operators are recorded say what they say on the CPU; `python -m tools.recorded` draws more."""

from __future__ import annotations

import pytest
import torch

from tools.recorded import loops, programs
from tools.recorded.judge import difference
from tools.recorded.world import Said

pytestmark = pytest.mark.torch


def test_drawn_programs_say_what_they_say_on_the_cpu():
    with programs.recording_on("trn1.2xlarge", interprets=True):
        wrong = {n: found for n in range(4) if (found := programs.compared(programs.drawn(n, 15)))}
    assert wrong == {}


def test_a_drawn_loop_trains_as_on_the_cpu():
    with programs.recording_on("trn1.2xlarge", interprets=True):
        assert programs.compared(loops.drawn(3)) == ""


def test_what_differs_is_found():
    said = [Said("a step", torch.tensor([1.0, 2.0]))]
    assert difference(said, [Said("a step", torch.tensor([1.0, 2.0]))]) == ""
    assert "1 of 2, at [1]: 2.0 for 3.0" in difference(said, [Said("a step", torch.tensor([1.0, 3.0]))])
    assert difference(said, [Said("a step", "raises RuntimeError")])
    assert difference(said, [])
