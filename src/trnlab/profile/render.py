# SPDX-License-Identifier: Apache-2.0
"""A run's folder in, its report and trace beside it."""

from __future__ import annotations

import os
from pathlib import Path

from trnlab.errors import RunError
from trnlab.profile.data import load, read_summary
from trnlab.profile.page import page
from trnlab.profile.perfetto import trace
from trnlab.profile.summary import text

REPORT, TRACE = "report.html", "trace.json"


def render(folder: Path) -> None:
    """Write the report and the trace of the run in `folder`, each whole or not at all.

    Raises RunError when the run cannot be read, or they cannot be written.
    """
    profile = load(folder)
    _write(folder / TRACE, trace(profile))
    _write(folder / REPORT, page(profile).encode())


def show(folder: Path) -> str:
    """The answers of the run in `folder`, and where its report and trace are; made if they are not there.

    Raises RunError as `render` does.
    """
    summary = read_summary(folder)
    if not all((folder / name).exists() for name in (REPORT, TRACE)):
        render(folder)
    return f"{text(summary)}\n\nreport  {folder / REPORT}\ntrace   {folder / TRACE} (opens in Perfetto)"


def _write(path: Path, content: bytes) -> None:
    """Beside its place first, then renamed, so that no reader sees half of it."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_bytes(content)
        os.replace(aside, path)
    except OSError as error:
        raise RunError(
            f"{str(path)!r} cannot be written", code="TRN813", got=error.strerror,
            remedy="free some space, or copy the folder to where you may write",
        ) from error  # fmt: skip
    finally:
        aside.unlink(missing_ok=True)
