# SPDX-License-Identifier: Apache-2.0
"""A run's folder in, its report and trace beside it."""

from __future__ import annotations

from pathlib import Path

from trnlab import documents
from trnlab.errors import RunError
from trnlab.files import way_out, why, write_atomic
from trnlab.profile import vendor
from trnlab.profile.compare import open_run
from trnlab.profile.data import load, read_summary
from trnlab.profile.pages import measured
from trnlab.profile.pages.page import document
from trnlab.profile.perfetto import trace
from trnlab.profile.summary import text

REPORT, TRACE = "report.html", "trace.json"


def render(folder: Path) -> None:
    """Write the report and the trace of the run in `folder`, each whole or not at all.

    Raises RunError when the run cannot be read, or they cannot be written.
    """
    profile = load(folder)
    write(folder / TRACE, trace(profile))
    write(folder / REPORT, documents.page(document(profile)).encode())


def show(folder: Path) -> str:
    """The answers of the run in `folder`, and where its report and trace are; made if they are not there.

    Raises RunError as `render` does.
    """
    summary = read_summary(folder)
    if not all((folder / name).exists() for name in (REPORT, TRACE)):
        render(folder)
    return f"{text(summary)}\n\nreport  {folder / REPORT}\ntrace   {folder / TRACE} (opens in Perfetto)"


def show_measured(path: Path) -> str:
    """The answers of a run that the vendor's profiler measured; its page is written beside the file.

    Raises RunError when the file cannot be read, is of another format, or the page cannot be written.
    """
    profile = vendor.read(path)
    report = path.with_suffix(".html")
    found = measured.document(profile)
    write(report, documents.page(found).encode())
    return f"{documents.text(found)}\n\nreport  {report}"


def export(source: Path, path: Path) -> None:
    """Write the step of a run in the format of the vendor's profiler. Raises RunError."""
    write(path, vendor.export(open_run(source)))


def write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all. Raises RunError when it cannot be written."""
    try:
        write_atomic(path, content)
    except OSError as error:
        raise RunError(
            f"{str(path)!r} cannot be written: {why(error)}",
            code="TRN813",
            remedy=way_out(error, "copy the folder to where you may write"),
        ) from error
