# SPDX-License-Identifier: Apache-2.0
"""Run PyTorch's own distributed tests on the backend `neuron`, and count.

    python -m tools.torch_distributed --json results.jsonl                     # what comes with the installed PyTorch
    python -m tools.torch_distributed --json results.jsonl pytorch/test/distributed/test_functional_api.py ...

Files are those of a checkout of PyTorch at the installed version; nothing of them is part of this repository. Each
file has so many processes (`--ranks`) for all of its tests; where a test ends or hangs one, it failed, and the next
ones get new processes. The exit status is 0 whatever the counts are.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.torch_distributed.unfit import UNFIT, judged
from tools.torch_distributed.worker import AGAIN, FAILED, PASSED, REFUSED, SKIPPED

INSTALLED = "torch.testing._internal.distributed.distributed_test"
ORDER = (PASSED, SKIPPED, REFUSED, FAILED)  # of what ranks say the last counts
WAITED = ("TRN271", "barrier timeout")
PERIOD_S = 0.2
GRACE_S = 5.0  # for what the other ranks say of a test that failed on one
STARTUP_S = 180.0  # for imports, on a machine that does much else


def environment() -> dict[str, str]:
    """For the processes: what PyTorch's tests and trnlab want to know."""
    return {
        "BACKEND": "neuron",
        "TRNLAB_TARGET": "trn1.32xlarge",
        "TRNLAB_PRECISION": "fp32",
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29511",
        "PYTHONWARNINGS": "ignore",
        **os.environ,
    }


def listed(file: str, ranks: int) -> list[str]:
    """The tests of a file."""
    code = (
        "import sys; from tools.torch_distributed import worker as w; print('TESTS', *w.cases(w.load(sys.argv[1])))"
    )
    surroundings = {**environment(), "WORLD_SIZE": str(ranks)}
    told = subprocess.run([sys.executable, "-c", code, file], capture_output=True, text=True, env=surroundings)
    for line in told.stdout.splitlines():
        if line.startswith("TESTS"):
            return line.split()[1:]
    raise SystemExit(f"{file} cannot be loaded:\n{told.stderr[-2000:]}")


def read(folder: Path, ranks: int) -> list[list[dict[str, Any]]]:
    """What each rank has said so far."""
    files = [folder / f"{rank}.jsonl" for rank in range(ranks)]
    return [[json.loads(line) for line in file.open()] if file.exists() else [] for file in files]


def run(file: str, tests: Sequence[str], ranks: int, limit_s: float) -> list[dict[str, Any]]:
    """The verdicts on all tests of a file."""
    results: list[dict[str, Any]] = []
    while len(results) < len(tests):
        with tempfile.TemporaryDirectory() as name:
            results += until_one_breaks(file, tests[len(results) :], ranks, limit_s, Path(name))
        print(f"{file}: {len(results)} of {len(tests)}", file=sys.stderr, flush=True)
    return results


def until_one_breaks(
    file: str, tests: Sequence[str], ranks: int, limit_s: float, folder: Path
) -> list[dict[str, Any]]:
    """Run tests in fresh processes, to the end or to the first one that hangs or ends a process."""
    command = [sys.executable, "-m", "tools.torch_distributed.worker", file]
    running = [
        subprocess.Popen(
            [*command, str(rank), str(ranks), str(folder), *tests],
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=(folder / f"{rank}.err").open("w"),
        )
        for rank in range(ranks)
    ]
    seen, since = 0, time.monotonic()
    while any(process.poll() is None for process in running):
        time.sleep(PERIOD_S)
        said = read(folder, ranks)
        done = min(map(len, said))
        if done > seen:
            seen, since = done, time.monotonic()
        if any(process.poll() == AGAIN for process in running) and since + GRACE_S < time.monotonic():
            break
        one_ended = any(p.poll() is not None and len(s) < len(tests) for p, s in zip(running, said))
        patience = (limit_s / 4 if one_ended else limit_s) + (0 if seen else STARTUP_S)
        if time.monotonic() - since > patience:
            break
    for process in running:
        process.kill()
        process.wait()
    said = read(folder, ranks)
    results = [together(each) for each in zip(*said)]
    if len(results) < len(tests) and not any(process.returncode == AGAIN for process in running):
        more = [each[len(results)] for each in said if len(each) > len(results)]
        trace = (folder / "0.err").read_text()[-1500:]
        why = f"hung or ended a process; other ranks said {[e['reason'][:300] for e in more]}\n{trace}"
        results.append({"test": tests[len(results)], "verdict": FAILED, "reason": why})
    return results


def together(said: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The worst that any rank says, and not of the end of another, nor that it waited for one."""
    return max(said, key=lambda each: (ORDER.index(each["verdict"]), not any(w in each["reason"] for w in WAITED)))


def main(given: Sequence[str] | None = None) -> int:
    """Run files and print the counts."""
    parser = argparse.ArgumentParser(prog="python -m tools.torch_distributed", description=__doc__)
    parser.add_argument("files", nargs="*", default=[INSTALLED], help="files of PyTorch's test/distributed")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", default="", help="tests whose name has this in it")
    parser.add_argument("--limit", type=float, default=60.0, metavar="S", help="seconds for a test")
    parser.add_argument("--json", type=Path, help="where results go, one line each")
    args = parser.parse_args(given)
    total: Counter[str] = Counter()
    for file in args.files:
        tests = [test for test in listed(file, args.ranks) if args.only in test]
        results = [judged(each, file) for each in run(file, tests, args.ranks, args.limit)]
        counts = Counter(each["verdict"] for each in results)
        total += counts
        print(f"{Path(file).name if file.endswith('.py') else file}: {_said(counts)}", flush=True)
        if args.json:
            with args.json.open("a") as out:
                out.writelines(json.dumps({"file": file, "ranks": args.ranks, **each}) + "\n" for each in results)
    if len(args.files) > 1:
        print(f"together: {_said(total)}")
    return 1 if total[FAILED] else 0


def _said(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in (*ORDER[:-1], UNFIT, FAILED))


if __name__ == "__main__":
    sys.exit(main())
