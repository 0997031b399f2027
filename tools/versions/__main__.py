# SPDX-License-Identifier: Apache-2.0
"""Try trnlab with other releases of what it stands on, and put what came of it into docs/versions.md.

    python -m tools.versions [PACKAGE==RELEASE ...] [--python EXECUTABLE ...] [--folder FOLDER] [--cases CASE ...]
                             [--discard]

PACKAGE: torch, jax or tensorflow-cpu; the releases below where none is named, and `core` (no release): kernels and
plans with trnlab's own dependencies. --python: one, or several; those of 3.11 to 3.13 that run. With the first all
releases are tried, with the others PyTorch's newest and the core. Environments are kept in FOLDER (.venv-versions),
unless --discard says that each is deleted once it was tried; one with PyTorch takes 5 GB where its index of wheels
without CUDA cannot be reached. Exit status 1 if a case failed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tools.versions import cases, page
from tools.versions.environments import PACKAGES, Environment, version_of

RELEASES = ("2.13.0", "2.14.1", "2.15.0")  # of PyTorch
OTHERS = ("jax==0.9.2", "jax==0.10.0", "jax==0.10.2", "tensorflow-cpu==2.20.0", "tensorflow-cpu==2.21.0")
PYTHONS = ("3.11", "3.12", "3.13")


def main(given: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tools.versions")
    parser.add_argument("wanted", nargs="*", metavar="PACKAGE==RELEASE")
    parser.add_argument("--python", nargs="*", default=[f"python{v}" for v in PYTHONS])
    parser.add_argument("--folder", type=Path, default=cases.ROOT / ".venv-versions")
    parser.add_argument("--cases", nargs="*", help="names, or files of tests; all of a package without this")
    parser.add_argument("--discard", action="store_true", help="delete each environment once it was tried")
    args = parser.parse_args(given)
    running = [p for p in args.python if version_of(p)]
    for other in set(args.python) - set(running):
        say(f"{other} does not run here, and is left out")
    failed = 0
    for environment in wanted(args.wanted, running or [sys.executable], args.folder):
        failed += tried(environment, args.cases)
        if args.discard:
            shutil.rmtree(environment.path)
    return int(failed > 0)


def wanted(names: list[str], pythons: list[str], folder: Path) -> list[Environment]:
    """What is tried with which Python."""
    newest = f"torch=={RELEASES[-1]}"
    first = names or [*(f"torch=={release}" for release in RELEASES), *OTHERS, "core"]
    pairs = [(name, pythons[0]) for name in first]
    pairs += [(name, python) for python in pythons[1:] for name in names or [newest, "core"]]
    unknown = {name.partition("==")[0] for name in first} - PACKAGES.keys()
    if unknown:
        raise SystemExit(f"{', '.join(sorted(unknown))}: none of {', '.join(PACKAGES)}")
    return [
        Environment(package, release, python, folder)
        for name, python in pairs
        for package, _, release in [name.partition("==")]
    ]


def tried(environment: Environment, chosen: list[str] | None) -> int:
    """Try all cases, and write each row once it is known; how many failed."""
    failed = 0
    title = f"{environment.title}, Python {environment.version}"
    say(f"{title}: installing")
    environment.make()
    names = chosen or PACKAGES[environment.package].cases
    for i, case in enumerate(names):
        began = time.monotonic()
        say(f"{title}: {case} ({i + 1} of {len(names)})")
        passed, said = _outcome(environment, case)
        page.write([row := page.row(environment.title, environment.version, case, passed, said)])
        say(f"{title}: {case}: {row.said} ({time.monotonic() - began:.0f} s)")
        failed += not passed
    return failed


def _outcome(environment: Environment, case: str) -> tuple[bool, str]:
    run = [environment.python, "-m", "tools.versions.cases", case]
    done = subprocess.run(run, cwd=cases.ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        return False, done.stderr.strip().splitlines()[-1]
    found = json.loads(done.stdout)
    return found["passed"], found["said"]


def say(text: str) -> None:
    """Progress."""
    print(text, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
