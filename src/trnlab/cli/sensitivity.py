# SPDX-License-Identifier: Apache-2.0
"""`trnlab sensitivity`."""

from __future__ import annotations

import argparse
from pathlib import Path

from trnlab.documents import text
from trnlab.files import write_atomic
from trnlab.validation.sensitivity import PICTURE, document, sensitivity, tornado


def arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab sensitivity`."""
    command.add_argument("folder", metavar="DIR", type=Path, help="folder of a run")


def main(args: argparse.Namespace) -> int:
    """Show which assumptions move a run's time, and leave the picture in its folder."""
    found = sensitivity(args.folder)
    print(text(document(found)))
    write_atomic(args.folder / PICTURE, tornado(found).encode())
    print(f"\npicture: {args.folder / PICTURE}")
    return 0
