# SPDX-License-Identifier: Apache-2.0
"""Run PyTorch's operator database against the device.

    python -m tools.opdb --ops add,mul --dtypes float32,int32 --mode compiled --samples 8 --json results.json

Without arguments all operators run in all dtypes and modes with all of their samples. Results are cached by what they
depend on (operator, dtype, options, and the sources of trnlab and of this tool), so that a second run does only what
changed. The exit status is 1 when anything failed.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from tools.opdb.cache import Cache
from tools.opdb.pool import Worker
from tools.opdb.report import print_summary, write_json
from tools.opdb.verdicts import FAILED, Record

MODES = ("compiled", "interpreter", "eager")
DTYPES = "float32,bfloat16,float16,int64,int32,int16,int8,uint8,bool,float64,complex64"


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.opdb", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--ops", help="names of op_db, or beginnings ending in *; all without this")
    parser.add_argument("--dtypes", default=DTYPES, help="which dtypes (%(default)s)")
    parser.add_argument("--mode", action="append", choices=MODES, help="one of the engines; all without this")
    parser.add_argument("--samples", type=int, help="the first so many distinct samples; all without this")
    parser.add_argument("--other-samples", type=int, help="as --samples, for dtypes other than float32")
    parser.add_argument("--reference-inputs", action="store_true", help="PyTorch's larger set of inputs")
    parser.add_argument("--chip", default="trn1.2xlarge", help="instance type (%(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="processor time for one operator and dtype")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes")
    parser.add_argument("--json", type=Path, help="write all records there")
    parser.add_argument("--cache", type=Path, default=Path(".opdb_cache"), help="folder of known results")
    parser.add_argument("--quiet", action="store_true", help="no line per operator")
    return parser.parse_args(given)


def jobs(options: argparse.Namespace) -> list[dict[str, Any]]:
    """One job per operator and dtype."""
    from tools.opdb.samples import DTYPES as KINDS
    from tools.opdb.samples import REFUSED_DTYPES, database, supports

    patterns = options.ops.split(",") if options.ops else ["*"]
    found = []
    for name, op in database().items():
        if not any(name == p or (p.endswith("*") and name.startswith(p[:-1])) for p in patterns):
            continue
        for kind in options.dtypes.split(","):
            dtype = KINDS[kind]
            if not supports(op, dtype):
                continue
            count = options.samples if kind == "float32" else options.other_samples or options.samples
            modes = list(options.mode or MODES)
            if dtype in REFUSED_DTYPES:
                count, modes = 1, [m for m in modes if m == "compiled"]
            if modes:
                found.append(
                    {
                        "op": name,
                        "dtype": kind,
                        "samples": count,
                        "reference": options.reference_inputs,
                        "modes": modes,
                        "seconds": options.seconds,
                        "chip": options.chip,
                    }
                )
    return found


def run(wanted: list[dict[str, Any]], options: argparse.Namespace) -> list[Record]:
    """All records, from the cache or from workers."""
    cache = Cache(options.cache)
    results: dict[int, list[Record]] = {}
    waiting: Queue[int] = Queue()
    for i, job in enumerate(wanted):
        known = cache.get(job)
        if known is None:
            waiting.put(i)
        else:
            results[i] = known
    lock, started = threading.Lock(), time.monotonic()

    def work() -> None:
        worker = Worker(options.chip)
        while True:
            try:
                i = waiting.get_nowait()
            except Empty:
                worker.close()
                return
            begun = time.monotonic()
            records = worker.run(wanted[i])
            with lock:
                results[i] = records
                cache.put(wanted[i], records)
                if not options.quiet:
                    _progress(len(results), len(wanted), wanted[i], records, time.monotonic() - begun, started)

    threads = [threading.Thread(target=work) for _ in range(min(options.jobs, waiting.qsize()))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [record for i in range(len(wanted)) for record in results.get(i, [])]


def _progress(
    done: int, total: int, job: dict[str, Any], records: list[Record], seconds: float, start: float
) -> None:
    kinds = [r.verdict.kind for r in records]
    counts = " ".join(f"{kind} {kinds.count(kind)}" for kind in dict.fromkeys(sorted(kinds)))
    elapsed = time.monotonic() - start
    print(f"[{done}/{total} {elapsed:6.0f}s] {job['op']} {job['dtype']}: {counts} ({seconds:.1f}s)", flush=True)


def main() -> int:
    """Run, print the counts, write the file."""
    options = arguments()
    records = run(jobs(options), options)
    print_summary(records)
    if options.json is not None:
        write_json(options.json, records)
    return int(any(r.verdict.kind == FAILED for r in records))


if __name__ == "__main__":
    sys.exit(main())
