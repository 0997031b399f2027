# SPDX-License-Identifier: Apache-2.0
"""`trnlab profile`."""

from __future__ import annotations

import argparse

from trnlab import profile


def main(args: argparse.Namespace) -> int:
    """Show the summary of a run again, or of one that was measured, and where its report and trace are."""
    print(profile.show_measured(args.measured) if args.measured else profile.show(args.folder))
    if args.json:
        profile.export(args.measured or args.folder, args.json)
        print(f"json    {args.json}")
    return 0
