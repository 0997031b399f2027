# SPDX-License-Identifier: Apache-2.0
"""Which files of PyTorch's `test/distributed` are run, on how many ranks, and why others are not (`files.csv`)."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

INSTALLED = "torch.testing._internal.distributed.distributed_test"
LIST = Path(__file__).with_name("files.csv")
LIMIT_S = 120.0


@dataclass(frozen=True)
class TestFile:
    """How many ranks it gets, or why it is left out."""

    ranks: int
    left_out: str
    says_cuda: bool = False  # where it means its device
    limit_s: float = LIMIT_S  # processor seconds of a rank for a test; more where one trains in dozens of ways


@cache
def table() -> Mapping[str, TestFile]:
    """By path within `test/distributed`; one that ends in a slash stands for all files below it."""
    with LIST.open(newline="", encoding="utf-8") as file:
        return {
            row["file"]: TestFile(
                int(row["ranks"] or 0), row["left_out"], row["device"] == "cuda", float(row["limit_s"] or LIMIT_S)
            )
            for row in csv.DictReader(file)
        }


def says_cuda(file: str) -> bool:
    """Whether the tests of a file of these sources call their device so."""
    return any(entry.says_cuda and Path(file).match(name) for name, entry in table().items())


def limit_of(file: str) -> float:
    """Processor seconds that a rank may take for a test of a file of these sources."""
    return max((entry.limit_s for name, entry in table().items() if Path(file).match(name)), default=LIMIT_S)


def chosen(sources: Path, folder: str = "") -> list[tuple[str, int]]:
    """The files that are run, with their ranks; what comes with the installed PyTorch is the first."""
    found = [(INSTALLED, 4)] if not folder else []
    for name, entry in table().items():
        if not entry.left_out and name.startswith(folder) and (sources / name).exists():
            found.append((str(sources / name), entry.ranks))
    return found
