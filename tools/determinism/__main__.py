# SPDX-License-Identifier: Apache-2.0
"""Runs one script many times: what it computes, how long it takes on the chip, and its keys must never differ.

    python -m tools.determinism [--runs 200] [--seed 0] [--jobs 1]

Each run is a process in a folder of its own, with a hash seed of its own, one to four threads, and an empty cache or
one that it shares with others. Compared are the lines that the script prints (losses and weights to the last bit),
the keys of its programs, and the files of their timelines, byte by byte. Status 1 where two runs differ.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

SCRIPT = Path(__file__).with_name("training.py")
TARGET = "trn1.2xlarge"
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclass(frozen=True)
class Circumstances:
    """Of a run: its hash seed, its threads, how deep its folder lies, and whether it has a cache of its own."""

    hash_seed: int
    threads: int
    depth: int
    alone: bool


def drawn(seed: int, count: int) -> list[Circumstances]:
    """So many, the same for the same seed."""
    pick = random.Random(seed)
    return [
        Circumstances(pick.randrange(1 << 32), pick.choice((1, 2, 4)), pick.randrange(4), pick.random() < 0.5)
        for _ in range(count)
    ]


def run(place: Path, number: int, how: Circumstances, script: Path = SCRIPT) -> dict[str, str]:
    """What a run says of itself, by name. Raises CalledProcessError where it fails."""
    folder = place.joinpath(*(f"run {number}" for _ in range(how.depth + 1)))
    folder.mkdir(parents=True)
    cache = folder / "cache" if how.alone else place / "shared cache"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "PYTHONHASHSEED": str(how.hash_seed),
        **dict.fromkeys(_THREADS, str(how.threads)),
    }
    options = ["--target", TARGET, "--out", "out", "--cache", str(cache)]
    command = [sys.executable, "-m", "trnlab.cli.main", "run", *options, str(script)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return {**_printed(done.stdout), **_kept(folder / "out")}


def _printed(text: str) -> dict[str, str]:
    lines = [line for line in text.splitlines() if line.startswith(("loss ", "weights "))]
    return {"printed": "\n".join(lines)}


def _kept(folder: Path) -> Mapping[str, str]:
    """Keys and digests of timelines."""
    summary = json.loads((folder / "summary.json").read_bytes())
    files = sorted((folder / "timelines").iterdir())
    found = {f"timeline {f.stem}": hashlib.sha256(f.read_bytes()).hexdigest() for f in files}
    return {**found, "keys": " ".join(f.stem for f in files), "time of a step": repr(summary["step_time_s"])}


def differences(first: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """What two runs do not agree on."""
    return [name for name in {**first, **other} if first.get(name) != other.get(name)]


def main() -> int:
    """The command; returns 1 where runs differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    started, failed, first = time.monotonic(), 0, None
    chosen = drawn(args.seed, args.runs)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(args.jobs) as pool:
        found = pool.map(lambda pair: run(Path(folder), *pair), enumerate(chosen))
        for number, (how, result) in enumerate(zip(chosen, found)):
            first = first or result
            wrong = differences(first, result)
            failed += bool(wrong)
            if wrong:
                print(f"run {number} ({how}) differs from the first in {', '.join(wrong)}")
            if sys.stderr.isatty():
                sys.stderr.write(f"\r{number + 1} of {args.runs} runs ")
    keys = len((first or {}).get("keys", "").split())
    print(f"{args.runs} runs, {keys} programs, {failed} differ, {time.monotonic() - started:.0f} s")
    return 1 if failed or not keys else 0


if __name__ == "__main__":
    sys.exit(main())
