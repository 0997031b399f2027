# SPDX-License-Identifier: Apache-2.0
"""What a script is: where it comes from, how it is started, on which data, and what of its output is compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tools.scripts import data

# Where sources come from: a repository and a commit. `own` are scripts of this folder, for libraries.
SOURCES: Mapping[str, tuple[str, str]] = {
    "aws-neuron-samples": ("aws-neuron/aws-neuron-samples", "2015d650cd89e4c671ae5bd1b5f1d4499d94d4dd"),
    "examples": ("pytorch/examples", "77f55b912142e11fcfdf5b530231fb9c52f181e8"),
    "diffusers": ("huggingface/diffusers", "58eb52c0803ea9af3abec60841c2a093bdf1f951"),
    "equinox": ("patrick-kidger/equinox", "9336d820b2ef66b360fc6cb3611b3da5cefbb14d"),
    "flax": ("google/flax", "18f8f311c275d57f46d95e41b15aa97b454754c0"),
    "keras": ("keras-team/keras", "3422977a5e38fb2f7709aaa9a08e47f0c43d0f60"),
    "llama2.c": ("karpathy/llama2.c", "350e04fe35433e6d2941dce5a1f53308f87058eb"),
    "makemore": ("karpathy/makemore", "988aa59e4d8fefa526d06f3b453ad116258398d4"),
    "minGPT": ("karpathy/minGPT", "37baab71b9abea1b76ab957409a1cc2fbfba8a26"),
    "nanoGPT": ("karpathy/nanoGPT", "3adf61e154c3fe3fca428ad6bc3818b27a3b8291"),
    "timm": ("huggingface/pytorch-image-models", "aa4b5850c1543fa488abf260f18390eda46cf85d"),
    "torchtitan": ("pytorch/torchtitan", "73a0e6979dd10b6b1904098eb3c8f62c18ab87ce"),  # v0.2.2
}
LOSS = r"[Ll]oss(?:[_ ]?\w*)?(?: is)?[:=' ]+\s*(-?\d+\.\d+(?:e-?\d+)?)"


@dataclass(frozen=True)
class Script:
    """One script. cpu: its arguments for the CPU, None where the same command runs with the host's operators."""

    name: str
    source: str
    folder: str
    arguments: tuple[str, ...]
    make: Callable[[Path], None] = data.nothing
    cpu: tuple[str, ...] | None = None
    ranks: int = 1
    losses: str = LOSS
    environment: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    draws: bool = False  # another order of samples, other draws or roundings than on the CPU: losses are not compared
    older: str = ""  # a folder of packages of older versions, which the script is of
    edits: Mapping[str, str] = field(default_factory=dict)  # sizes and data that no option has: what is replaced
