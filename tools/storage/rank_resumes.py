# SPDX-License-Identifier: Apache-2.0
"""Kills one rank of a training on ranks and starts all again: losses must be those of an undisturbed run, to the bit.

    python -m tools.storage.rank_resumes [--kind ddp|fsdp|tp, with -steps behind] [--ranks 2] [--kills 1] [--seed 0]

Each kill is of a rank and after a step that are drawn at random.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = Path(__file__).with_name("rank_training.py")
STEPS, PATIENCE_S = 12, 600


def started(kind: str, ranks: int, folder: Path, name: str, kill: str, place: Path | None) -> str:
    """Run the training; returns what it printed."""
    options = ["--target", "trn1.32xlarge", "--precision", "bf16-all", "--cache", str(folder / "cache")]
    kept = [] if place is None else ["--checkpoint", str(place), "--every", "2"]
    command = [sys.executable, "-m", "trnlab.cli.main", "run", *options, "--ranks", str(ranks), *kept]
    count = len(list(folder.glob("run*")))
    command += ["--out", str(folder / f"run{count}"), str(SCRIPT), kind, str(folder / name), kill]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    return done.stdout + done.stderr


def logs(folder: Path, name: str, ranks: int) -> list[set[str]]:
    """The lines of each rank."""
    found = [folder / f"{name}.{rank}" for rank in range(ranks)]
    return [set(path.read_text().splitlines()) if path.exists() else set() for path in found]


def trial(kind: str, ranks: int, kills: int, pick: random.Random, folder: Path) -> list[str]:
    """Train undisturbed, and with so many kills; returns what differs."""
    said = [started(kind, ranks, folder, "whole", ":", None)]
    first = 3
    for _ in range(kills):
        first = pick.randrange(first, STEPS)
        said.append(started(kind, ranks, folder, "killed", f"{pick.randrange(ranks)}:{first}", folder / "kept"))
    said.append(started(kind, ranks, folder, "killed", ":", folder / "kept"))
    wrong = []
    for rank, (whole, killed) in enumerate(zip(logs(folder, "whole", ranks), logs(folder, "killed", ranks))):
        if len(whole) != STEPS or whole != killed:
            wrong.append(f"rank {rank}: {len(whole)} steps, {sorted(whole ^ killed)[:4]}")
    wrong += [] if kills == 0 or "going on after step" in said[-1] else ["it did not go on from a checkpoint"]
    return wrong + ([said[-1][-3000:]] if wrong else [])


def main() -> int:
    """The command; returns 1 when something differed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", default="fsdp")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--kills", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wrong = trial(args.kind, args.ranks, args.kills, random.Random(args.seed), Path(folder))
    print(f"{args.kind}, {args.ranks} ranks, {args.kills} kills: {len(wrong)} differences")
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
