# SPDX-License-Identifier: Apache-2.0
"""Hands damaged files to everything that reads files: no crash, no hang, no code run, nothing written elsewhere.

    python -m tools.fuzz [--inputs 1000000] [--seed 0] [--jobs N] [--reader NAME]
    python -m tools.fuzz --reader NAME --show NUMBER > file       one input again, with its traceback

Files are cache entries, runs, timelines, programs, graphs, profiles, reports of tools, models, rules, checkpoints,
leases and modules. Each is made from a sound one and damaged at random, checksums that fit included. A reader accepts
it or refuses it with a code; a failure is any other exception, more than ten seconds of work, half a gigabyte more
memory, a process started, a module of pickle's found, a file opened for writing outside of the reader's folder, or
markup of the file that became markup of a page. The same seed gives the same inputs, whatever the number of jobs.
Status 1 where something failed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool

from tools.fuzz import work
from tools.fuzz.readers import Reader, all_readers

CHUNK = 2000  # inputs that a process takes at once


def shares(inputs: int, chosen: list[Reader]) -> dict[str, int]:
    """How many inputs each reader gets."""
    total = sum(r.often for r in chosen)
    return {r.name: max(1, round(inputs * r.often / total)) for r in chosen}


def _memory() -> str | None:
    """Where files are in memory, which spares the disk millions of them."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def fuzz(inputs: int, seed: int, jobs: int, chosen: list[Reader], progress: bool = False) -> dict[str, work.Outcome]:
    """Outcomes by reader. A process that dies is a failure of the reader whose inputs it had."""
    counts = shares(inputs, chosen)
    parts = [(n, range(i, min(i + CHUNK, count))) for n, count in counts.items() for i in range(0, count, CHUNK)]
    found = {name: work.Outcome() for name in counts}
    started, done = time.monotonic(), 0
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        if jobs == 1:
            for name, numbers in parts:
                found[name].add(work.inputs(name, seed, numbers, folder))
            work.clean()
            return found
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(jobs, context) as pool:
            futures = {
                pool.submit(work.inputs, name, seed, numbers, folder): (name, numbers) for name, numbers in parts
            }
            for future in as_completed(futures):
                name, numbers = futures[future]
                try:
                    found[name].add(future.result())
                except BrokenProcessPool:
                    found[name].failures["the process died"] = (numbers.start, 1)
                done += len(numbers)
                if progress and sys.stderr.isatty():
                    sys.stderr.write(f"\r{done} inputs, {done / (time.monotonic() - started):.0f} each second ")
    return found


def main() -> int:
    """The command; returns 1 when something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--reader", choices=[r.name for r in all_readers()], help="this one alone")
    parser.add_argument("--show", type=int, metavar="NUMBER", help="write this input, and its traceback")
    args = parser.parse_args()
    if args.show is not None:
        work.shown(args.reader, args.seed, args.show)
        return 0
    chosen = [r for r in all_readers() if args.reader in (None, r.name)]
    started = time.monotonic()
    found = fuzz(args.inputs, args.seed, args.jobs, chosen, progress=True)
    failed = 0
    for name, outcome in found.items():
        refused, wrong = sum(outcome.codes.values()), sum(count for _, count in outcome.failures.values())
        failed += wrong
        print(f"{name:24}{outcome.accepted:9} accepted {refused:9} refused {wrong:7} failed")
        for where, (number, count) in sorted(outcome.failures.items()):
            print(f"    {count} times, first input {number}: {where}")
    total = sum(o.accepted + sum(o.codes.values()) + sum(c for _, c in o.failures.values()) for o in found.values())
    print(f"{total} inputs of seed {args.seed}, {failed} failures, {time.monotonic() - started:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
