# SPDX-License-Identifier: Apache-2.0
"""One fault in a checkout of its own, and the tests that reach its line until one of them fails."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tools.faults.kinds import Fault, faults
from tools.faults.reached import Reached

MEMORY = 20 << 30  # bytes of address space of a process under test: a fault can ask for any amount
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?\.py(?:::.+?)?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """What one fault came to.

    `caught`: "yes", "no", or "gone" where the sources have no such place any more. `by`: the test that failed.
    `files`: how many files of tests were chosen.
    """

    caught: str
    by: str
    files: int


def moved(fault: Fault, text: str) -> Fault | None:
    """The same fault in another version of its file: the nearest with the same change. None where there is none."""
    same = [f for f in faults(fault.file, text) if (f.kind, f.old, f.new) == (fault.kind, fault.old, fault.new)]
    return min(same, key=lambda f: abs(f.line - fault.line), default=None)


def trial(checkout: Path, fault: Fault, reached: Reached, budget: float, first: str = "", marks: str = "") -> Outcome:
    """Plant the fault, run the tests that reach it for at most `budget` processor seconds, and take it out again.

    first: the file of tests to begin with, where it is known what caught the fault elsewhere. marks: of the tests
    that run, as pytest's -m has it.
    """
    path = checkout / "src" / fault.file
    here = moved(fault, path.read_text()) if path.exists() else None
    if here is None:
        return Outcome("gone", "", 0)
    chosen = list(dict.fromkeys([first, *_within(budget, reached, here)]))
    chosen = [test for test in chosen if test and (checkout / test).exists()]
    innocent: list[str] = []
    while chosen:
        with _planted(path, here):
            failed = _first_failure(checkout, chosen, innocent, budget, marks)
        if failed is None:
            return Outcome("no", "", len(chosen))
        if failed == _HANGS or _first_failure(checkout, [failed], [], budget, marks) is None:
            return Outcome("yes", failed, len(chosen))
        if failed in innocent:  # left out, and it fails: nothing runs here
            break
        innocent.append(failed)  # it fails without the fault as well
    return Outcome("no", "", 0)


def _within(budget: float, reached: Reached, fault: Fault) -> Iterator[str]:
    spent = 0.0
    for test in reached.order(fault.file, fault.line):
        spent += reached.costs.get(test, 1.0)
        if spent > budget:
            return
        yield test


@contextmanager
def _planted(path: Path, fault: Fault) -> Iterator[None]:
    text = path.read_text()
    try:
        path.write_text(fault.planted(text))
        yield
    finally:
        path.write_text(text)


_HANGS = "it never ends"


def _first_failure(
    checkout: Path, tests: Sequence[str], innocent: Sequence[str], budget: float, marks: str
) -> str | None:
    """The first test that fails, `_HANGS` where nothing ends, None where all pass."""
    left_out = [f"--deselect={test}" for test in innocent]
    options = ["-x", "-q", "-n0", "-p", "no:cacheprovider", "-rfE", "-m", marks]
    command = [sys.executable, "-m", "pytest", *options, *left_out, *tests]
    # The shell sets the limit: Python between fork and exec is not safe where a library has threads.
    process = subprocess.Popen(
        ["sh", "-c", f'ulimit -v {MEMORY >> 10}; exec "$@"', "sh", *command],
        cwd=checkout,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(checkout / "src"), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    try:
        said, _ = process.communicate(timeout=60 + 10 * budget)
    except subprocess.TimeoutExpired:
        return _HANGS
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode in (0, 5):
        return None
    found = _FAILED.search(said)
    return found.group(1) if found else tests[0]
