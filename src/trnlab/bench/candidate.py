# SPDX-License-Identifier: Apache-2.0
"""Which function of which file a candidate is."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trnlab.errors import UsageError

NO_CANDIDATE = "TRN840"


@dataclass(frozen=True)
class KernelCandidate:
    """A kernel in a file."""

    path: Path
    function: str = ""  # "" for the only one there
    constants: Mapping[str, Any] = field(default_factory=dict)  # keyword arguments that are no tensors

    @property
    def name(self) -> str:
        """As a table shows it."""
        said = ", ".join(f"{name}={value}" for name, value in self.constants.items())
        of = f":{self.function}" if self.function else ""
        return f"{self.path.name}{of}" + (f" ({said})" if said else "")

    def digest(self) -> str:
        """What tells its file's content from others. Raises OSError."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()


def split(text: str) -> tuple[Path, str]:
    """The file and the function that FILE or FILE:FUNCTION names; "" for no function."""
    file, colon, function = text.rpartition(":")
    return (Path(file), function) if colon and function.isidentifier() else (Path(text), "")


def candidate(text: str) -> KernelCandidate:
    """FILE or FILE:FUNCTION. Raises UsageError (TRN840) where there is no such file."""
    path, function = split(text)
    if not path.is_file():
        raise UsageError(
            "there is no such file of a kernel",
            code=NO_CANDIDATE,
            got=text,
            limit="FILE or FILE:FUNCTION",
            remedy="name a Python file, and the kernel in it where it has several: softmax.py:fused",
        )
    return KernelCandidate(path, function)


def candidates(texts: list[str]) -> list[KernelCandidate]:
    """Those of all texts; a folder stands for the Python files in it, in the order of their names."""
    found = []
    for text in texts:
        folder = Path(text)
        if folder.is_dir():
            files = sorted(p for p in folder.glob("*.py") if not p.name.startswith(("_", ".")))
            found += [KernelCandidate(path) for path in files]
        else:
            found.append(candidate(text))
    return found
