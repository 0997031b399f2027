# SPDX-License-Identifier: Apache-2.0
"""Run PyTorch's own distributed tests on the backend `neuron`, and count.

    python -m tools.torch_distributed --ranks 4                                # what comes with the installed PyTorch
    python -m tools.torch_distributed --sources PYTORCH/test/distributed       # and what `files.csv` lists of these
    python -m tools.torch_distributed PYTORCH/test/distributed/test_functional_api.py ...

Files are those of a checkout of PyTorch at the installed version; nothing of them is part of this repository. The
exit status is 1 where a test failed, or a file could not be imported.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.torch_distributed.file import ORDER
from tools.torch_distributed.files import INSTALLED, LIMIT_S, chosen, limit_of, says_cuda
from tools.torch_distributed.unfit import UNFIT, judged
from tools.torch_distributed.worker import CUDAS_WORDS, FAILED, SKIPPED

MEETING = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}


def environment(ranks: int, file: str = "") -> dict[str, str]:
    """For the processes: what PyTorch's tests and trnlab want to know."""
    return {
        "BACKEND": "neuron",
        "TRNLAB_TARGET": "trn1.32xlarge",
        "TRNLAB_PRECISION": "fp32",
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
        **(MEETING if file == INSTALLED else {}),  # other files say themselves where ranks meet, or that none is said
        **os.environ,
        "WORLD_SIZE": str(ranks),
        CUDAS_WORDS: "1" if says_cuda(file) else "",
    }


def run(file: str, ranks: int, limit_s: float, only: str = "") -> list[dict[str, Any]]:
    """The verdicts on all tests of a file."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "results.jsonl"
        command = [sys.executable, "-m", "tools.torch_distributed.file", file, str(ranks), str(limit_s), str(out)]
        with (Path(folder) / "err").open("w") as err:
            status = subprocess.call(
                [*command, only], stdout=subprocess.DEVNULL, stderr=err, env=environment(ranks, file)
            )
        lines = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
        trace = (Path(folder) / "err").read_text(errors="replace").strip()
    if lines and len(lines) == 1 + lines[0]["tests"]:
        return [judged(each, file) for each in lines[1:]]
    if not status or trace.endswith("SkipTest"):
        return [{"test": "all.all", "verdict": SKIPPED, "reason": "the file has no tests here", "seconds": 0.0}]
    return [*lines[1:], judged({"test": "all.all", "verdict": FAILED, "reason": trace[-2000:], "seconds": 0.0}, file)]


def main(given: Sequence[str] | None = None) -> int:
    """Run files and print the counts."""
    parser = argparse.ArgumentParser(prog="python -m tools.torch_distributed", description=__doc__)
    parser.add_argument("files", nargs="*", default=[], help="files of PyTorch's test/distributed")
    parser.add_argument("--sources", type=Path, help="the folder test/distributed of PyTorch's sources")
    parser.add_argument("--folder", default="", help="of --sources, files whose path begins so")
    parser.add_argument("--ranks", type=int, help="4, or what files.csv says of the file")
    parser.add_argument("--only", default="", help="tests whose name has this in it")
    parser.add_argument(
        "--limit",
        type=float,
        metavar="S",
        help=f"processor seconds of a rank for a test; {LIMIT_S:.0f}, or what files.csv says of the file",
    )
    parser.add_argument("--json", type=Path, help="where results go, one line each")
    args = parser.parse_args(given)
    files = [(file, args.ranks or 4) for file in args.files]
    if args.sources:
        files += [(file, args.ranks or ranks) for file, ranks in chosen(args.sources, args.folder)]
    total: Counter[str] = Counter()
    for file, ranks in files or [(INSTALLED, args.ranks or 4)]:
        results = run(file, ranks, args.limit or limit_of(file), args.only)
        counts = Counter(each["verdict"] for each in results)
        total += counts
        print(f"{_name(file, args.sources)}: {_said(counts)}", flush=True)
        if args.json:
            with args.json.open("a") as out:
                out.writelines(json.dumps({"file": file, "ranks": ranks, **each}) + "\n" for each in results)
    print(f"together: {_said(total)}")
    return 1 if total[FAILED] else 0


def _name(file: str, sources: Path | None) -> str:
    path = Path(file)
    return str(path.relative_to(sources)) if sources and path.is_relative_to(sources) else path.name


def _said(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in (*ORDER[:-1], UNFIT, FAILED))


if __name__ == "__main__":
    sys.exit(main())
