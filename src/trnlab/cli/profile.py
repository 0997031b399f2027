# SPDX-License-Identifier: Apache-2.0
"""`trnlab profile`."""

from __future__ import annotations

import argparse
from pathlib import Path

from trnlab import profile


def arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab profile`."""
    which = command.add_mutually_exclusive_group(required=True)
    which.add_argument("folder", metavar="DIR", type=Path, nargs="?", help="folder of a run")
    which.add_argument("--import", dest="measured", metavar="FILE", type=Path, help="JSON of the vendor's profiler")
    command.add_argument("--json", metavar="FILE", type=Path, help="write the step as the vendor's profiler would")


def main(args: argparse.Namespace) -> int:
    """Show the summary of a run again, or of one that was measured, and where its report and trace are."""
    print(profile.show_measured(args.measured) if args.measured else profile.show(args.folder))
    if args.json:
        profile.export(args.measured or args.folder, args.json)
        print(f"json    {args.json}")
    return 0
