# SPDX-License-Identifier: Apache-2.0
"""Run harnesses of others under `trnlab run`, and say which pass. Nothing is fetched.

    python -m tools.harnesses DIR [--only TEXT]      # DIR/nki-samples, DIR/AccelOpt ... as harnesses.toml names them
    python -m tools.harnesses --fetch-list DIR       # how to get them

A clone is copied before it is run, so that it stays as it was. A harness passes where it ends with 0 and its output
says what it has to; packages that it asks for and that are not installed are named.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PASSED, FAILED, MISSING = "passes", "fails", "not run"


def harnesses() -> list[dict[str, Any]]:
    """All of them, in file order."""
    found: list[dict[str, Any]] = tomllib.loads((HERE / "harnesses.toml").read_text(encoding="utf-8"))["harness"]
    return found


def judged(harness: dict[str, Any], status: int, output: str) -> tuple[str, str]:
    """What became of a harness, and why: by its exit status and what it said."""
    wrong = [pattern for pattern in harness.get("fails", ()) if re.search(pattern, output)]
    missing = [pattern for pattern in harness["passes"] if not re.search(pattern, output)]
    if status == 0 and not wrong and not missing:
        return PASSED, ", ".join(m[0] for p in harness["passes"] if (m := re.search(p, output)))
    error = re.findall(r"^(?:\w*Error|E  |trnlab: TRN\d+).*", output, re.MULTILINE)
    return FAILED, (error[-1] if error else f"says {wrong}" if wrong else f"does not say {missing}").strip()[:160]


def run(harness: dict[str, Any], folder: Path, seconds: int) -> tuple[str, str]:
    """Run a harness on a copy of its clone."""
    clone = folder / harness["clone"]
    if not clone.is_dir():
        return MISSING, f"no clone {clone}"
    absent = [name for name in harness.get("needs", ()) if not _is_installed(name)]
    if absent:
        return MISSING, f"asks for {', '.join(absent)}"
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / harness["clone"]
        shutil.copytree(clone, copy, ignore=shutil.ignore_patterns(".git"))
        words = {"pytest": shutil.which("pytest", path=str(Path(sys.executable).parent)) or "pytest"}
        words["driver"] = str(HERE / "drivers")
        command = [part.format(**words) for part in harness["command"]]
        path = [str(copy / part) for part in harness.get("path", ())]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([*path, *filter(None, [os.environ.get("PYTHONPATH")])]),
            "PATH": os.pathsep.join(
                [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
            ),  # they say "python"
            "TRNLAB_TARGET": harness["target"],  # of the processes that they start themselves
        }
        done = _done(command, harness["target"], copy / harness.get("at", "."), environment, seconds)
    return judged(harness, *done) if done is not None else (FAILED, f"not done after {seconds} s")


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # a package above it
        return False


def _done(
    command: list[str], target: str, place: Path, environment: dict[str, str], seconds: int
) -> tuple[int, str] | None:
    words = [sys.executable, "-m", "trnlab", "run", "--target", target, *command]
    try:
        done = subprocess.run(
            words, cwd=place, env=environment, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    return done.returncode, done.stdout + done.stderr


def main() -> int:
    """Do what the command line says; 1 where one of the harnesses that ran fails."""
    parser = argparse.ArgumentParser(prog="python -m tools.harnesses")
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=int, default=1800, help="for each; default: 1800")
    parser.add_argument("--fetch-list", type=Path)
    args = parser.parse_args()
    if args.fetch_list is not None:
        for h in harnesses():
            place = args.fetch_list / h["clone"]
            print(
                f"git clone -q https://github.com/{h['repository']} {place}; git -C {place} checkout -q {h['commit']}"
            )
    verdicts = []
    for h in harnesses() if args.folder is not None else ():
        if args.only in h["name"]:
            verdict, why = run(h, args.folder.resolve(), args.seconds)
            verdicts.append(verdict)
            print(f"{h['name']} ({h['repository']} at {h['commit'][:7]}): {verdict}: {why}", flush=True)
    return int(FAILED in verdicts)


if __name__ == "__main__":
    sys.exit(main())
