# SPDX-License-Identifier: Apache-2.0
"""Source text out of clones of public repositories, at the commits that were measured."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trnlab.errors import UsageError
from trnlab.validation.sources.catalogue import SourceKernel


def missing(kernels: Iterable[SourceKernel], folder: Path) -> list[str]:
    """The repositories that `folder` lacks, as owner/name."""
    wanted = dict.fromkeys(k.repository for k in kernels)
    return [name for name in wanted if _clone(folder, name) is None]


def source_of(kernel: SourceKernel, folder: Path) -> str:
    """The kernel's Python source as it was measured. Raises UsageError (TRN129) where the clone does not hold it."""
    return _edited(_unquoted(_between(_file(kernel, kernel.path, folder), kernel.lines)), kernel)


def profile_of(kernel: SourceKernel, folder: Path) -> Any:
    """The full JSON of the profiler that measured the kernel; None without one. Raises as `source_of`."""
    return json.loads(_file(kernel, kernel.profile, folder)) if kernel.profile else None


def _file(kernel: SourceKernel, path: str, folder: Path) -> str:
    clone = _clone(folder, kernel.repository)
    shown = None if clone is None else _show(clone, f"{kernel.commit}:{path}")
    if shown is None:
        raise UsageError(
            f"no clone of {kernel.repository} in {str(folder)!r} holds {path}", code="TRN129",
            limit=f"commit {kernel.commit}",
            remedy=f"git clone https://github.com/{kernel.repository} {folder / kernel.repository}",
        )  # fmt: skip
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
