# SPDX-License-Identifier: Apache-2.0
"""A training that goes on holds no more than before; 5,000 steps: `python -m tools.memory`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools import memory

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")


@pytest.mark.torch
def test_steps_leave_no_objects_behind(tmp_path: Path) -> None:
    found = memory.measured(150, [50, 150], tmp_path)
    (_, before), (_, after) = found[50], found[150]
    assert after - before < 100  # not one for each step
