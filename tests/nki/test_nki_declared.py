# SPDX-License-Identifier: Apache-2.0
"""Functions of nki.isa that are made from the declarations of instructions, in both dialects."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from trnlab import isa
from trnlab.nki import declared
from trnlab.nki import isa as nisa


def test_instructions_of_ones_own_are_called_in_both_dialects():
    """In a process of its own: they would be in the registry of every test that follows."""
    tests = Path(__file__).with_name("own_instructions.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)]
    done = subprocess.run(command, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout


def test_collectives_are_not_among_them():
    assert not hasattr(nisa, "all_gather")


def test_each_instruction_has_a_function_in_the_newer_dialect():
    """Those that nki.collectives has, and what its functions are made of, aside."""
    missing = [n for n, instr in isa.REGISTRY.items() if declared.is_callable(instr) and not hasattr(nisa, n)]
    assert missing == []
