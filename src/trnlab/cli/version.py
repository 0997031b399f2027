# SPDX-License-Identifier: Apache-2.0
"""What `trnlab --version` says: the version, and of a checkout its commit and whether files differ from it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import trnlab
from trnlab.sources import ROOT

CHECKOUT = ROOT.parents[1]  # where src/trnlab lies in a clone
_GIT_SECONDS = 10


def version(checkout: Path = CHECKOUT) -> str:
    """The version in one line, of an installed package `trnlab 0.1.0`.

    checkout: a clone's root. What lies there counts only where it has this package: an environment within the
    repository of somebody else says nothing of their commits.
    """
    release = f"trnlab {trnlab.__version__}"
    if not (checkout / ".git").exists() or not (checkout / "src" / "trnlab").is_dir():
        return release
    commit = _git(checkout, "log", "-1", "--format=%h of %cs")
    if commit is None:
        return f"{release} (from {checkout}; git does not say which commit)"
    changes = _git(checkout, "status", "--porcelain", "--untracked-files=no")
    state = "unknown whether changed" if changes is None else "changed since" if changes else "unchanged"
    return f"{release} (commit {commit}, {state}, from {checkout})"


def _git(checkout: Path, *words: str) -> str | None:
    """What git prints, or None where it is not installed, refuses or does not end."""
    command = ["git", "-C", str(checkout), "--no-optional-locks", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
