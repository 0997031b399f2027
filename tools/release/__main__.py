# SPDX-License-Identifier: Apache-2.0
"""Make a release of the commit that is checked out: check, build, try, and leave distributions with their sums.

    python -m tools.release [--out FOLDER] [--without-loops] [--here]

FOLDER (dist without this) gets a source distribution, a wheel for every system, one with the simulator's loops
compiled for this system and x86-64 with AVX2 (unless --without-loops), and SHA256SUMS. Each is installed into an
empty environment, where `trnlab --version` and the kernel of README.md have to print what they should. --here takes
dependencies from this environment and asks no index. Exit status 1, and nothing left, where anything is wrong.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
import tempfile
from pathlib import Path

from tools.release import distributions, rules, trial

ROOT = Path(__file__).resolve().parents[2]
SUMS = "SHA256SUMS"


def main(given: list[str] | None = None, root: Path = ROOT) -> int:
    """The command. root: of the clone that is released."""
    parser = argparse.ArgumentParser(prog="python -m tools.release")
    parser.add_argument("--out", metavar="FOLDER", type=Path, default=root / "dist")
    parser.add_argument("--without-loops", action="store_true")
    parser.add_argument("--here", action="store_true")
    args = parser.parse_args(given)
    if broken := rules.broken(root):
        print("\n".join(f"no release: {line}" for line in broken), file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as name:
        made = distributions.build(root, Path(name), loops=not args.without_loops)
        for file in made:
            print(f"trying {file.name}", flush=True)
            if problem := trial.problem(file, root, args.here):
                print(f"no release: {file.name}: {problem}", file=sys.stderr)
                return 1
        _leave(made, args.out)
    version = rules.version(root)
    print(f"{args.out} has the release. To publish: git tag -a v{version} -m {version}; git push origin v{version}")
    return 0


def _leave(made: list[Path], out: Path) -> None:
    """Put distributions and their sums in place of those that were there."""
    out.mkdir(parents=True, exist_ok=True)
    for old in (*out.glob("trnlab-*"), *out.glob(SUMS)):
        old.unlink()
    lines = []
    for file in made:
        shutil.copy(file, out / file.name)
        lines.append(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n")
        print(f"{file.stat().st_size / 1e6:6.1f} MB  {lines[-1]}", end="")
    (out / SUMS).write_text("".join(lines))


if __name__ == "__main__":
    raise SystemExit(main())
