# SPDX-License-Identifier: Apache-2.0
"""Hosts that start at once on an empty cache on S3 compile each program once, see `tools/storage/hosts.py`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_eight_hosts_on_an_empty_s3_compile_each_program_once() -> None:
    pytest.importorskip("moto", reason="the extra `dev` has it")
    command = [sys.executable, "-m", "tools.storage.hosts", "--hosts", "8", "--programs", "4"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    said = ended.stdout + ended.stderr
    assert ended.returncode == 0, said
    assert re.search(r"^8 hosts .*, 4 programs, 4 compilations$", ended.stdout, re.MULTILINE), said
    each = re.findall(r"compiled (\d+) of 4 programs", ended.stdout)
    assert len(each) == 8
    assert sum(map(int, each)) == 4
