# SPDX-License-Identifier: Apache-2.0
"""Harnesses of others are judged by what they say, run on a copy, and named where something is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tools.harnesses.__main__ import FAILED, MISSING, PASSED, harnesses, judged, run

SCRIPT = """
import sys
from pathlib import Path
import numpy as np
import neuronxcc.nki as nki
import neuronxcc.nki.language as nl

@nki.jit
def double(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.add(nl.load(x), nl.load(x)))
    return out

x = np.ones((4, 4), np.float32)
Path("left_behind").write_text("x")
print("right:", bool((double(x) == 2 * x).all()), sys.argv[1:])
"""


def entry(**changed: Any) -> dict[str, Any]:
    plain = {
        "name": "n",
        "clone": "c",
        "command": ["script.py", "a"],
        "target": "trn1.2xlarge",
        "passes": ["right: True"],
    }
    return plain | changed


def test_a_harness_runs_on_a_copy(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "script.py").write_text(SCRIPT)
    assert run(entry(), tmp_path, 300) == (PASSED, "right: True")
    assert {path.name for path in (tmp_path / "c").iterdir()} == {"script.py"}
    verdict, why = run(entry(passes=["wrong: True"]), tmp_path, 300)
    assert (verdict, "wrong: True" in why) == (FAILED, True)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    assert run(entry(), tmp_path, 1)[0] == MISSING
    (tmp_path / "c").mkdir()
    assert run(entry(needs=["no_such_package", "no.such"]), tmp_path, 1) == (
        MISSING,
        "asks for no_such_package, no.such",
    )


def test_an_exit_status_or_a_bad_word_fails_it() -> None:
    assert judged(entry(), 0, "right: True")[0] == PASSED
    assert judged(entry(), 1, "right: True")[0] == FAILED
    assert judged(entry(fails=["Failed"]), 0, "right: True\nFailed")[0] == FAILED
    assert judged(entry(), 1, "x\nModuleNotFoundError: No module named 'y'")[1].endswith("'y'")


def test_every_entry_is_pinned() -> None:
    for harness in harnesses():
        assert len(harness["commit"]) == 40
        assert {"name", "repository", "clone", "command", "target", "passes"} <= set(harness)
