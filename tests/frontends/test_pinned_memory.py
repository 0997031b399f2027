# SPDX-License-Identifier: Apache-2.0
"""Tensors made with `pin_memory=True`, as scripts for CUDA make them, and what they cost those that do not."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch  # before what it loads

from tests import processes
from trnlab.frontends.torch.device import pinned, pinned_scripts, script_texts
from trnlab.frontends.torch.device.pinned_scripts import makes_pinned

pytestmark = pytest.mark.torch

HELPER = """
import torch
def buffers(n):
    return [torch.zeros(n, pin_memory=True), torch.randn(n, pin_memory=True), torch.tensor([1.0], pin_memory=True),
            torch.ones(2).new_empty((2, 3), pin_memory=True), torch.empty_like(torch.ones(2), pin_memory=True)]
"""
SCRIPT = """
import torch
import buffers_of_mine
print([b.is_pinned() for b in buffers_of_mine.buffers(4)], torch.ones(2).is_pinned())
print(torch.full((2,), 3.0, pin_memory=True).to("neuron", non_blocking=True).sum().item())
"""


@pytest.mark.parametrize("start", [("-m", "trnlab.cli.main", "run"), ()], ids=["trnlab run", "python"])
def test_a_script_and_what_lies_beside_it_make_pinned_tensors(start: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "buffers_of_mine.py").write_text(HELPER)
    (tmp_path / "train.py").write_text(SCRIPT)
    ended = processes.run(
        [sys.executable, *start, "train.py"],
        cwd=tmp_path,
        text=True,
        capture_output=True,
        env={**os.environ, "TRNLAB_TARGET": "trn1.2xlarge", "TRNLAB_CACHE": str(tmp_path / "cache")},
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[:2] == ["[True, True, True, True, True] False", "6.0"]


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("torch.empty(3, pin_memory=True)", True),
        ("x.new_empty(3, pin_memory=args.pin)", True),
        ("DataLoader(data, pin_memory=True)", False),
        ("torch.empty(3, pin_memory=False)", False),
        ("x.pin_memory()", False),
        ("torch.empty(3, pin_memory=True", False),
    ],
)
def test_who_asks(text: str, asks: bool) -> None:
    assert makes_pinned(text) == asks


def test_installed_packages_are_not_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Their environment may lie in the script's folder: PyTorch's own files ask for pinned memory."""
    allowed: list[bool] = []
    monkeypatch.setattr(pinned, "allow", lambda: allowed.append(True))
    asks = [
        file for file in Path(torch.__file__).parent.glob("distributed/**/*.py") if makes_pinned(file.read_text())
    ]
    assert asks
    finder = script_texts._Looker(tmp_path, [pinned_scripts.look])
    finder.look_at(*map(str, asks))
    assert not allowed
    own = tmp_path / "own.py"
    own.write_text(asks[0].read_text())
    finder.look_at(str(own))
    assert allowed
