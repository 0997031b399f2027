# SPDX-License-Identifier: Apache-2.0
"""What has to be true of a repository before it is released."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

_VERSION = re.compile(r'^__version__ = "([^"]*)"$', re.MULTILINE)
_RELEASE = re.compile(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?")


def version(root: Path) -> str:
    """The version that the sources say, "" where they say none."""
    found = _VERSION.search((root / "src/trnlab/__init__.py").read_text())
    return found[1] if found else ""


def broken(root: Path) -> list[str]:
    """Every rule that does not hold, with what to do."""
    return [*_of_git(root), *_of_version(root)]


def _of_git(root: Path) -> Iterator[str]:
    if changed := git(root, "status", "--porcelain").splitlines():
        named = ", ".join(line[3:] for line in changed[:3]) + (", ..." if len(changed) > 3 else "")
        yield f"{len(changed)} files are not as they were committed ({named}): commit them, or put them away"
    tag = f"v{version(root)}"
    if git(root, "tag", "--list", tag) and git(root, "rev-parse", f"{tag}^{{commit}}") != git(
        root, "rev-parse", "HEAD"
    ):
        yield f"{tag} is another commit: raise __version__ in src/trnlab/__init__.py"


def _of_version(root: Path) -> Iterator[str]:
    now = version(root)
    if not _RELEASE.fullmatch(now):
        yield f"{now!r} is no version, such as 1.2.3 or 1.2.3rc1: say one in src/trnlab/__init__.py"
    entries = re.findall(r"^## (.*)\n((?:(?!## ).*\n)*)", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    if not entries or entries[0][0] != now:
        first = repr(entries[0][0]) if entries else "none"
        yield f"CHANGELOG.md begins with {first}, not with {now}: say there what changed"
    elif not entries[0][1].strip():
        yield f"CHANGELOG.md says nothing of {now}"
    if f"\nversion: {now}\n" not in (root / "CITATION.cff").read_text():
        yield f"CITATION.cff is of another version: say `version: {now}`"


def git(root: Path, *words: str) -> str:
    """What git prints of a clone."""
    command = ["git", "-C", str(root), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.rstrip("\n")
