# SPDX-License-Identifier: Apache-2.0
"""One file of tests: imported once by a process of its own, of which the ranks are copies.

    python -m tools.torch_distributed.file FILE RANKS SECONDS OUT [ONLY]

FILE is a module's name, or a file. What came of each test is a line of JSON in OUT. Where a test ends or hangs a
rank, it failed, and the next ones get new ranks.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.torch_distributed.worker import AGAIN, FAILED, PASSED, REFUSED, SKIPPED, cases
from tools.torch_distributed.worker import main as work

ORDER = (PASSED, SKIPPED, REFUSED, FAILED)  # of what ranks say the last counts
WAITED = ("TRN271", "barrier timeout")
PERIOD_S = 0.1
GRACE_S = 5.0  # for what the other ranks say of a test that failed on one
FIRST_S = 30.0  # more for the first test, which imports and compiles what others use, too


def load(file: str, ranks: int) -> Any:
    """The module, by name or file."""
    from tools.torch_distributed.admit import admit

    if not file.endswith(".py"):
        return importlib.import_module(file)
    admit(ranks)
    path = Path(file).resolve()
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def said_in(folder: Path, ranks: int) -> list[list[dict[str, Any]]]:
    """What each rank has said so far."""
    files = [folder / f"{rank}.jsonl" for rank in range(ranks)]
    return [[json.loads(line) for line in file.open()] if file.exists() else [] for file in files]


class Rank:
    """A copy of this process. status: how it ended, None while it runs."""

    def __init__(self, module: Any, rank: int, ranks: int, folder: Path, tests: Sequence[str]) -> None:
        self.status: int | None = None
        self.pid = os.fork()
        if not self.pid:
            try:
                os.setsid()  # with the processes that tests start it is ended as one
                _into(os.devnull, sys.stdout)
                _into(str(folder / f"{rank}.err"), sys.stderr)
                work(module, rank, ranks, folder, list(tests))
            finally:
                os._exit(1)

    def poll(self) -> int | None:
        """The exit status, if it is there."""
        if self.status is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = os.waitstatus_to_exitcode(status) if ended else None
        return self.status

    def kill(self) -> None:
        """End it, and all that it started."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        while self.poll() is None:
            time.sleep(PERIOD_S / 10)


def _into(path: str, stream: Any) -> None:
    target = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    os.dup2(target, stream.fileno())


def until_one_breaks(
    module: Any, tests: Sequence[str], ranks: int, limit_s: float, folder: Path
) -> list[dict[str, Any]]:
    """Run tests in fresh processes, to the end or to the first one that fails."""
    running = [Rank(module, rank, ranks, folder, tests) for rank in range(ranks)]
    hung = not _waited_for(running, folder, len(tests), limit_s)
    said = said_in(folder, ranks)
    for each in running:
        each.kill()
    results = [together(each) for each in zip(*said)]
    if len(results) < len(tests) and not any(each["verdict"] in (FAILED, REFUSED) for each in results):
        more = [each[len(results)] for each in said if len(each) > len(results)]
        results.append(_broken(tests[len(results)], hung, more, folder))
    return results


def _broken(test: str, hung: bool, more: Sequence[dict[str, Any]], folder: Path) -> dict[str, Any]:
    """What is said of a test of which not all ranks could say what came of it."""
    if more and together(more)["verdict"] in (FAILED, REFUSED):
        return {**together(more), "test": test}
    how = "hung" if hung else "ended a process"
    trace = (folder / "0.err").read_text(errors="replace")[-1500:]
    return {"test": test, "verdict": FAILED, "reason": f"{how}\n{trace}", "seconds": 0.0}


def _waited_for(running: Sequence[Rank], folder: Path, count: int, limit_s: float) -> bool:
    """Wait for the end of all, or until one test takes longer than it may: whether they ended."""
    seen, since = 0, time.monotonic()
    while any(each.poll() is None for each in running):
        time.sleep(PERIOD_S)
        said = said_in(folder, len(running))
        done = min(map(len, said))
        if done > seen:
            seen, since = done, time.monotonic()
        ended = any(each.poll() is not None and len(s) < count for each, s in zip(running, said))
        patience = limit_s + (0 if seen else FIRST_S)
        if any(each.poll() == AGAIN for each in running):
            patience = GRACE_S
        elif ended:
            patience /= 4
        if time.monotonic() - since > patience:
            return any(each.poll() == AGAIN for each in running)
    return True


def together(said: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The worst that any rank says, and not of the end of another, nor that it waited for one."""
    return max(said, key=lambda each: (ORDER.index(each["verdict"]), not any(w in each["reason"] for w in WAITED)))


def main(file: str, ranks: int, limit_s: float, out: Path, only: str = "") -> None:
    """Run all tests whose name has `only` in it; the first line of `out` says how many they are."""
    module = load(file, ranks)
    tests = [test for test in cases(module) if only in test]
    out.write_text(json.dumps({"tests": len(tests)}) + "\n")
    done = 0
    while done < len(tests):
        with tempfile.TemporaryDirectory() as name:
            results = until_one_breaks(module, tests[done:], ranks, limit_s, Path(name))
        with out.open("a") as lines:
            lines.writelines(json.dumps(each) + "\n" for each in results)
        done += len(results)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4]), *sys.argv[5:])
