# SPDX-License-Identifier: Apache-2.0
"""`trnlab compare`."""

from __future__ import annotations

import argparse
from pathlib import Path

from trnlab import documents, profile


def arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab compare`."""
    for name in ("first", "second"):
        command.add_argument(name, metavar="RUN", type=Path, help="folder of a run, or JSON of the vendor's profiler")
    command.add_argument("--json", action="store_true", help="everything as JSON, times in picoseconds")
    command.add_argument("--page", metavar="FILE", type=Path, help="write a page with both timelines")


def main(args: argparse.Namespace) -> int:
    """Say what changed from one run to the other."""
    first, second = (profile.open_run(path) for path in (args.first, args.second))
    found = profile.comparison.document(profile.compare(first, second), (first, second))
    print(found.json() if args.json else documents.text(found))
    if args.page:
        profile.write(args.page, documents.page(found).encode())
        if not args.json:
            print(f"\npage  {args.page}")
    return 0
