# SPDX-License-Identifier: Apache-2.0
"""Make an environment for each supported release of PyTorch and each Python that is found, and try trnlab in it.

    python -m tools.versions [RELEASE ...] [--python EXECUTABLE ...] [--folder FOLDER] [--cases CASE ...]

RELEASE: of PyTorch, as 2.15.0; the supported ones where none is named. --python: one, or several; those of 3.11 to
3.13 that are found. With the first Python all releases are tried, with the others the newest one; and in an
environment with the core's dependencies alone, kernels and plans. Environments are kept in FOLDER (.venv-versions);
each takes 1 to 5 GB, as PyTorch's index without CUDA can be reached or not. Exit status 1 if a case failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tools.versions import cases

RELEASES = ("2.13.0", "2.14.1", "2.15.0")
PYTHONS = ("3.11", "3.12", "3.13")
CORE = ("tests/nki/test_nki_jit.py", "tests/kernels/test_matmul.py", "tests/fleet/test_fleet_plans.py")
_INDEX = os.environ.get("TORCH_INDEX", "https://download.pytorch.org/whl/cpu")
_TOOLS = ("pytest", "hypothesis", "expecttest")
_LARGE = re.compile(r"extra ==|^triton")  # triton is for kernels of GPUs, and PyTorch does without it


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tools.versions")
    parser.add_argument("releases", nargs="*", metavar="RELEASE")
    parser.add_argument("--python", nargs="*", default=[p for v in PYTHONS if (p := shutil.which(f"python{v}"))])
    parser.add_argument("--folder", type=Path, default=cases.ROOT / ".venv-versions")
    parser.add_argument("--cases", nargs="*", default=list(cases.CASES))
    args = parser.parse_args()
    releases, first, *others = args.releases or list(RELEASES), *(args.python or [sys.executable])
    tries = [(first, release) for release in releases] + [(other, releases[-1]) for other in others]
    failed = [tried(executable, release, args.folder, args.cases) for executable, release in tries]
    failed += [of_core(executable, args.folder) for executable in args.python]
    return int(any(failed))


def tried(executable: str, release: str, folder: Path, wanted: list[str]) -> int:
    """Try a release of PyTorch; how many cases failed. A line for each."""
    python = _made(executable, folder, f"torch-{release}")
    _install(python, "--retries", "1", "--no-deps", "--extra-index-url", _INDEX, f"torch=={release}")
    wants = "import importlib.metadata as m; print('\\n'.join(m.requires('torch')))"
    needed = subprocess.run([python, "-c", wants], capture_output=True, text=True, check=True).stdout.splitlines()
    _install(python, *(line for line in needed if not _LARGE.search(line)), *_TOOLS)
    _install(python, "--no-deps", "-e", str(cases.ROOT))
    _install(python, "numpy", "ml_dtypes", "numba")
    failed = 0
    for name in wanted:
        run = [python, "-m", "tools.versions.cases", name]
        done = subprocess.run(run, cwd=cases.ROOT, capture_output=True, text=True, check=False)
        said = json.loads(done.stdout)["failed"] if not done.returncode else done.stderr.strip()[-200:]
        failed += bool(said)
        _row(executable, f"PyTorch {release}", name, said)
    return failed


def of_core(executable: str, folder: Path) -> int:
    """Kernels and plans with the core's three dependencies; 1 if that failed."""
    python = _made(executable, folder, "core")
    _install(python, "numpy", "ml_dtypes", "numba", *_TOOLS)
    _install(python, "--no-deps", "-e", str(cases.ROOT))
    run = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *CORE]
    done = subprocess.run(run, cwd=cases.ROOT, capture_output=True, text=True, check=False)
    _row(executable, "no PyTorch", "kernels and plans", "" if not done.returncode else done.stdout.strip()[-200:])
    return int(bool(done.returncode))


def _made(executable: str, folder: Path, name: str) -> str:
    """The Python of an environment; made where it is not there."""
    print_version = "import sys; print('%d.%d' % sys.version_info[:2])"
    found = subprocess.run(
        [executable, "-c", print_version], capture_output=True, text=True, check=True
    ).stdout.strip()
    environment = folder / f"python{found}-{name}"
    if not (environment / "bin" / "python").exists():
        subprocess.run([executable, "-m", "venv", "--without-pip", environment], check=True)
    return str(environment / "bin" / "python")


def _install(python: str, *what: str) -> None:
    """By the pip of this Python, which installs for another one, too; held to the lock but for PyTorch itself."""
    lock = cases.ROOT / "constraints.txt"
    kept = Path(python).parents[1] / "constraints.txt"
    kept.write_text("\n".join(line for line in lock.read_text().splitlines() if not line.startswith("torch==")))
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "-c", str(kept), *what], check=True)


def _row(executable: str, what: str, case: str, said: str) -> None:
    print(f"| {Path(executable).name} | {what} | {case} | {'failed: ' + said if said else 'passes'} |", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
