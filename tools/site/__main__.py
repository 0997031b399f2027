# SPDX-License-Identifier: Apache-2.0
"""Build the site from README.md, docs/ and docstrings; a link that leads nowhere, or a page that no list has, fails.

    python -m tools.site [--out FOLDER] [--check]

FOLDER: .site without this; open FOLDER/index.html, no server is needed. --check reads and resolves everything and
writes no page. Exit status 1 where anything is wrong.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from sphinx.cmd.build import build_main

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}  # frameworks are imported for their docstrings
ROOT = Path(__file__).resolve().parents[2]


def main(given: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tools.site")
    parser.add_argument("--out", metavar="FOLDER", type=Path, default=ROOT / ".site")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args(given)
    folder = args.out
    os.environ |= QUIET
    strict = ["--fail-on-warning", "--quiet", "--fresh-env", "--builder", "dummy" if args.check else "html"]
    status = build_main([*strict, "-c", str(Path(__file__).parent), str(ROOT), str(folder)])
    if not status and not args.check:
        print(f"{folder / 'index.html'}: {len(list(folder.rglob('*.html')))} pages")
    return int(status)


if __name__ == "__main__":
    raise SystemExit(main())
