# SPDX-License-Identifier: Apache-2.0
"""Compilers and writers killed at random, entries damaged at random: a few rounds of `tools/storage/kills.py`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    not hasattr(os, "fork"), reason="workers are forks of a process that has imported all"
)


def test_nothing_half_is_read_as_whole_and_nothing_stays_in_the_way(tmp_path: Path) -> None:
    # a process of its own: workers are forks, and this one may have the threads of other tests
    command = [sys.executable, "-m", "tools.storage.kills", "--rounds", "24", "--seed", "7"]
    ended = subprocess.run([*command, "--cache", str(tmp_path / "cache")], cwd=ROOT, capture_output=True, text=True)
    said = ended.stdout + ended.stderr
    assert ended.returncode == 0, said
    counts = {name.strip(): int(n) for name, n in re.findall(r"^(\S.{31})(\d+)$", ended.stdout, re.MULTILINE)}
    assert counts["kills"] == 24, said
    assert counts["noticed"] == sum(n for kind, n in counts.items() if kind.startswith("damaged")) > 0, said
    assert counts["whole"] > 10, said
    assert "\n0 failures in 24 rounds" in ended.stdout
