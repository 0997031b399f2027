# SPDX-License-Identifier: Apache-2.0
"""Distributions of a commit: built from what git has of it, so that nothing else of a working tree gets in."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

from tools.release.rules import git

PROCESSOR = "x86-64-v3"
_BUILD = (
    "import sys; from setuptools import build_meta; print(getattr(build_meta, f'build_{sys.argv[2]}')(sys.argv[1]))"
)


def build(root: Path, folder: Path, loops: bool) -> list[Path]:
    """A source distribution and a wheel for every system; with `loops` one more that has them compiled."""
    sources, out = folder / "sources", folder / "out"
    out.mkdir()
    archive = folder / "sources.tar"
    git(root, "archive", "--output", str(archive), "HEAD")
    with tarfile.open(archive) as file:
        file.extractall(sources, filter="data")
    when = git(root, "log", "-1", "--format=%ct")
    made = [_built(kind, sources, out, when) for kind in ("sdist", "wheel")]
    if loops:
        environment = os.environ | {"PYTHONPATH": str(sources / "src")}
        command = [sys.executable, "-m", "trnlab.loops", "--processor", PROCESSOR]
        subprocess.run(command, cwd=sources, env=environment, check=True)
        made.append(_built("wheel", sources, out, when))
    return made


def _built(kind: str, sources: Path, out: Path, when: str) -> Path:
    """One distribution, by the build system that pyproject.toml names. when: the time that its files get."""
    command = [sys.executable, "-c", _BUILD, str(out), kind]
    environment = os.environ | {"SOURCE_DATE_EPOCH": when}
    done = subprocess.run(command, cwd=sources, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"no release: {kind} could not be built:\n{done.stderr}")
    return out / done.stdout.splitlines()[-1]
