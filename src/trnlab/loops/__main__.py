# SPDX-License-Identifier: Apache-2.0
"""`python -m trnlab.loops`: make all loops ahead of time, beside the sources where that can be, else for the user."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from trnlab.loops import build, places, prebuilt


def _target() -> Path:
    """Where they are looked for, and can be written."""
    name = places.file_name()
    if os.access(places.INSTALLED.parent, os.W_OK):
        return places.INSTALLED / name
    own = places.own_folder()
    own.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = own / f"made-{prebuilt.stamp()[:32]}"
    folder.mkdir(exist_ok=True, mode=0o700)
    return folder / name


def main() -> None:
    """Make what is not there."""
    parser = argparse.ArgumentParser(prog="python -m trnlab.loops", description=__doc__)
    parser.add_argument("--processor", help="for another processor than this one, such as x86-64-v3")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--force", action="store_true", help="also what is there")
    parser.add_argument("--out", type=Path, help="the file; by default where it is looked for")
    parser.add_argument("--share", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.share is not None:
        share, shares = map(int, given.share.split("/"))
        build._work(share, shares, given.out)
        return
    target = given.out or _target()
    if given.force or given.processor or prebuilt.read(target) is None:
        build.build(target, given.processes, given.processor)


if __name__ == "__main__":
    main()
