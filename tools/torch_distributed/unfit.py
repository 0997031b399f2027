# SPDX-License-Identifier: Apache-2.0
"""Tests of PyTorch's that cannot pass here whatever the backend does, each with the reason (`unfit.csv`).

An entry counts only for a failure that says what the entry says it does: one that fails in another way failed.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

UNFIT = "unfit"
LIST = Path(__file__).with_name("unfit.csv")


@dataclass(frozen=True)
class UnfitTest:
    """Why a test cannot pass, and words of its failure."""

    says: str
    reason: str


@cache
def listed() -> Mapping[tuple[str, str], UnfitTest]:
    """By file, without folder or ending, and test."""
    with LIST.open(newline="", encoding="utf-8") as file:
        return {(row["file"], row["test"]): UnfitTest(row["says"], row["reason"]) for row in csv.DictReader(file)}


def judged(result: Mapping[str, Any], file: str) -> dict[str, Any]:
    """The verdict on a test; of one that failed as the list says it does, why it cannot pass."""
    stem = Path(file).stem if file.endswith(".py") else file.rpartition(".")[2]
    known = listed().get((stem, str(result["test"]).rpartition(".")[2]))
    if result["verdict"] != "failed" or known is None or known.says not in result["reason"]:
        return dict(result)
    return {**result, "verdict": UNFIT, "unfit": known.reason}
