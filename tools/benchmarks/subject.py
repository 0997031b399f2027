# SPDX-License-Identifier: Apache-2.0
"""The training step of `examples/train_gpt.py`, which several benchmarks measure."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

from trnlab import chips
from trnlab.runtime.cache.executables import Cache
from trnlab.runtime.session import Session

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
import train_gpt

TARGET = "trn1.2xlarge"
ARGUMENTS = argparse.Namespace(seed=0, batch=8, steps=200, resume=None)


def session(cache: Path | None = None) -> Session:
    """A session on the demo's instance in bf16."""
    return Session(chips.target(TARGET), cache=Cache(cache) if cache is not None else None)


def model_and_batch(device: str) -> tuple[Any, Any, tuple[Any, Any]]:
    """The demo's model and optimizer, and its first batch."""
    place = torch.device(device)
    model, optimizer, *_ = train_gpt.make(ARGUMENTS, place)
    return model, optimizer, train_gpt.get_batch(train_gpt.read_text(), 0, ARGUMENTS, place)
