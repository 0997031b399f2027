# SPDX-License-Identifier: Apache-2.0
"""Source text out of clones of public repositories, at the commits that were measured."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trnlab.errors import UsageError
from trnlab.validation.sources.catalogue import SourceKernel


def missing(kernels: Iterable[SourceKernel], folder: Path) -> list[SourceKernel]:
    """The kernels whose commit is in no clone of `folder`."""
    held: dict[tuple[str, str], bool] = {}
    for k in kernels:
        if (k.repository, k.commit) not in held:
            clone = _clone(folder, k.repository)
            held[k.repository, k.commit] = clone is not None and _show(clone, f"{k.commit}:") is not None
    return [k for k in kernels if not held[k.repository, k.commit]]


def fetch_list(kernels: Iterable[SourceKernel], folder: Path) -> list[str]:
    """The commands that put the sources of `kernels` into `folder`: the pinned commits and nothing else."""
    commits: dict[str, dict[str, None]] = {}
    for kernel in kernels:
        commits.setdefault(kernel.repository, {})[kernel.commit] = None
    return [line for name, wanted in commits.items() for line in _fetch(name, wanted, folder / name)]


def _fetch(name: str, commits: Iterable[str], clone: Path) -> list[str]:
    place = shlex.quote(str(clone))
    return [
        f"git init -q {place}",
        f"git -C {place} fetch -q --depth 1 https://github.com/{name} {' '.join(commits)}",
    ]


def source_of(kernel: SourceKernel, folder: Path) -> str:
    """The kernel's Python source as it was measured. Raises UsageError (TRN129) where the clone does not hold it."""
    text = textwrap.dedent(_between(_file(kernel, kernel.path, folder), kernel.lines))
    return _edited(_unquoted(text), kernel)


def profile_of(kernel: SourceKernel, folder: Path) -> Any:
    """The full JSON of the profiler that measured the kernel; None without one. Raises as `source_of`."""
    return json.loads(_file(kernel, kernel.profile, folder)) if kernel.profile else None


def _file(kernel: SourceKernel, path: str, folder: Path) -> str:
    clone = _clone(folder, kernel.repository)
    shown = None if clone is None else _show(clone, f"{kernel.commit}:{path}")
    if shown is None:
        raise UsageError(
            f"no clone of {kernel.repository} in {str(folder)!r} holds {path}",
            code="TRN129",
            limit=f"commit {kernel.commit}",
            remedy="; ".join(fetch_list([kernel], folder)),
        )
    return shown


def _clone(folder: Path, repository: str) -> Path | None:
    """A clone as DIR/owner/name or DIR/name, with or without a work tree."""
    owner, name = repository.split("/")
    places = (folder / owner / name, folder / name)
    return next((p for p in places if (p / ".git").exists() or (p / "HEAD").is_file()), None)


def _show(clone: Path, thing: str) -> str | None:
    done = subprocess.run(["git", "-C", str(clone), "show", thing], capture_output=True, check=False)
    return done.stdout.decode("utf-8") if done.returncode == 0 else None


def _between(text: str, lines: tuple[int, int] | None) -> str:
    return text if lines is None else "\n".join(text.splitlines()[lines[0] - 1 : lines[1]])


def _unquoted(text: str) -> str:
    """The code in a string literal, where the source is one (`code='''...'''`, as in traces of searches)."""
    if not text.startswith("code="):
        return text
    code: str = ast.literal_eval(text.removeprefix("code=").rstrip().rstrip(","))
    return code


def _edited(text: str, kernel: SourceKernel) -> str:
    for pattern, replacement in kernel.edits:
        text, count = re.subn(pattern, replacement, text)
        if count == 0:
            raise ValueError(f"{kernel.id}: nothing in {kernel.path} matches {pattern!r}")
    return text
