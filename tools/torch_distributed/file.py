# SPDX-License-Identifier: Apache-2.0
"""One file of tests: imported once by a process of its own, of which the ranks are copies.

    python -m tools.torch_distributed.file FILE RANKS SECONDS OUT [ONLY]

FILE is a module's name, or a file. What came of each test is a line of JSON in OUT. Where a test ends or hangs a
rank, it failed. Each test has ranks of its own, as PyTorch gives it, but for classes whose tests share a process
group.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import unittest
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from tools.torch_distributed.worker import (
    AGAIN,
    FAILED,
    PASSED,
    REFUSED,
    SKIPPED,
    cases,
    class_of,
    continuous,
    plays_ranks,
    ranks_of,
)
from tools.torch_distributed.worker import main as work

ORDER = (PASSED, SKIPPED, REFUSED, FAILED)  # of what ranks say the last counts
WAITED = ("TRN271", "barrier timeout")
PERIOD_S = 0.1
LOOK_S = 1.0  # between two looks at what the ranks use of the processors
IDLE_SHARE = 0.05  # of a processor for each rank, below which it waits: the watch for other ranks takes some
IDLE_S = 60.0  # of waiting, after which a test hangs
GRACE_S = 15.0  # the same where a rank has ended, or failed: PyTorch's tests wait for each other for 10 s
ENDED = "ended a process"
PRELOADED = (  # by the process that ranks are copies of
    "trnlab.compiler.pipeline",
    "trnlab.frontends.torch.capture.import_fx",
    "trnlab.frontends.torch.distributed.process_group",
    "trnlab.frontends.torch.recording.programs",
    "trnlab.runtime.device",
    "torch.distributed.tensor",
    "torch.distributed.fsdp",
)


def load(file: str, ranks: int) -> Any:
    """The module, by name or file."""
    from tools.torch_distributed.admit import admit

    if not file.endswith(".py"):
        return importlib.import_module(file)
    admit(ranks)
    from trnlab.frontends.torch.device import pinned_scripts

    path = Path(file).resolve()
    pinned_scripts.look(str(path), path.read_text())  # as a script is before it runs
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
    """A copy of this process."""

    def __init__(self, module: Any, rank: int, ranks: int, folder: Path, tests: Sequence[str]) -> None:
        given = (module, rank, ranks, folder, list(tests))
        self._process = multiprocessing.get_context("fork").Process(target=_as_rank, args=given)
        self._process.start()
        self._used = 0.0

    def poll(self) -> int | None:
        """The exit status, if it is there."""
        return self._process.exitcode

    def processor_s(self) -> float:
        """What it has used of the processors so far, with the processes that it started; seconds."""
        ticks = sum(used for session, used in _sessions() if session == self._process.pid)
        self._used = max(self._used, ticks / os.sysconf("SC_CLK_TCK"))
        return self._used

    def kill(self) -> None:
        """End it, and all that it started."""
        for end in (lambda: os.killpg(self._process.pid or 0, signal.SIGKILL), self._process.kill):
            with contextlib.suppress(ProcessLookupError):  # it has not begun yet, or is gone
                end()
        self._process.join()


def _sessions() -> Iterator[tuple[int, int]]:
    """Of each process of the machine its session and the processor's ticks it has used, with its children that
    ended: a rank begins a session, and what its test started may still be at work while it waits."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = stat.read_text().rpartition(")")[2].split()
            yield int(fields[3]), sum(map(int, fields[11:15]))


def _as_rank(module: Any, rank: int, ranks: int, folder: Path, tests: list[str]) -> None:
    os.setsid()  # with the processes that tests start it is ended as one
    _into(os.devnull, sys.stdout)
    _into(str(folder / f"{rank}.err"), sys.stderr)
    work(module, rank, ranks, folder, tests)


def _into(path: str, stream: Any) -> None:
    target = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    os.dup2(target, stream.fileno())


def of_one_start(module: Any, tests: Sequence[str]) -> Sequence[str]:
    """The first tests that go into the same processes: one, or those of a class whose tests share a process group."""
    first = class_of(module, tests[0])
    if not continuous(first):
        return tests[:1]
    return list(takewhile(lambda test: class_of(module, test) is first, tests))


def until_one_breaks(
    module: Any, tests: Sequence[str], ranks: int, limit_s: float, folder: Path
) -> list[dict[str, Any]]:
    """Run tests in fresh processes, to the end or to the first one that fails."""
    try:
        if plays_ranks(class_of(module, tests[0])):
            raise unittest.SkipTest("ranks that one process plays: no backend takes part")
        wanted = ranks_of(class_of(module, tests[0]), tests[0].split(".")[1], ranks)
    except unittest.SkipTest as skip:
        return [{"test": test, "verdict": SKIPPED, "reason": str(skip), "seconds": 0.0} for test in tests]
    running = [Rank(module, rank, wanted, folder, tests) for rank in range(wanted)]
    how = _waited_for(running, folder, len(tests), limit_s)
    said = said_in(folder, wanted)
    for each in running:
        each.kill()
    results = [together(each) for each in zip(*said)]
    if len(results) < len(tests) and not any(each["verdict"] in (FAILED, REFUSED) for each in results):
        more = [each[len(results)] for each in said if len(each) > len(results)]
        results.append(_broken(tests[len(results)], how, more, folder))
    return results


def _broken(test: str, how: str, more: Sequence[dict[str, Any]], folder: Path) -> dict[str, Any]:
    """What is said of a test of which not all ranks could say what came of it."""
    if more and together(more)["verdict"] in (FAILED, REFUSED):
        return {**together(more), "test": test}
    trace = (folder / "0.err").read_text(errors="replace")[-1500:]
    return {"test": test, "verdict": FAILED, "reason": f"{how}\n{trace}", "seconds": 0.0}


def _waited_for(running: Sequence[Rank], folder: Path, count: int, limit_s: float) -> str:
    """Wait for the end of all, or until one test takes more of the processors than it may, or nobody does anything
    for long: what is said of a test that is not done. Time of processors, since a machine may have other work."""
    clock = _Clock(running)
    seen = 0
    while any(each.poll() is None for each in running):
        time.sleep(PERIOD_S)
        done = min(map(len, said_in(folder, len(running))))
        if done > seen:
            seen = done
            clock.restart()
        clock.tick()
        some_failed = any(each.poll() == AGAIN for each in running)
        some_ended = some_failed or any(each.poll() is not None for each in running)
        if clock.used_s > limit_s and not some_failed:
            return f"was not done within {limit_s:.0f} processor seconds"
        if clock.used_s > limit_s or clock.idle_s > (GRACE_S if some_ended else IDLE_S):
            return ENDED if some_failed else "hung"
    return ENDED


class _Clock:
    """How much of the processors all ranks have used since the last start, and for how long hardly anything.

    idle_s: by the wall's clock, in which they used less than `IDLE_SHARE` of a processor each.
    """

    def __init__(self, ranks: Sequence[Rank]) -> None:
        self._ranks, self.idle_s, self.used_s = ranks, 0.0, 0.0
        self.restart()

    def restart(self) -> None:
        """From now on."""
        self._at, self._before = time.monotonic(), self._total()
        self._began, self.idle_s, self.used_s = self._before, 0.0, 0.0

    def tick(self) -> None:
        """Look again, once in a while."""
        now = time.monotonic()
        if now - self._at < LOOK_S:
            return
        total = self._total()
        idle = total - self._before < IDLE_SHARE * (now - self._at) * len(self._ranks)
        self.idle_s = self.idle_s + now - self._at if idle else 0.0
        self.used_s, self._at, self._before = (total - self._began) / len(self._ranks), now, total

    def _total(self) -> float:
        return sum(each.processor_s() for each in self._ranks)


def together(said: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The worst that any rank says, and not of the end of another, nor that it waited for one."""
    return max(said, key=lambda each: (ORDER.index(each["verdict"]), not any(w in each["reason"] for w in WAITED)))


def main(file: str, ranks: int, limit_s: float, out: Path, only: str = "") -> None:
    """Run all tests whose name has `only` in it; the first line of `out` says how many they are."""
    module = load(file, ranks)
    for name in PRELOADED:
        importlib.import_module(name)
    tests = [test for test in cases(module) if only in test]
    out.write_text(json.dumps({"tests": len(tests)}) + "\n")
    done = 0
    while done < len(tests):
        with tempfile.TemporaryDirectory() as name:
            results = until_one_breaks(module, of_one_start(module, tests[done:]), ranks, limit_s, Path(name))
        with out.open("a") as lines:
            lines.writelines(json.dumps(each) + "\n" for each in results)
        done += len(results)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4]), *sys.argv[5:])
