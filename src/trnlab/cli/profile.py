# SPDX-License-Identifier: Apache-2.0
"""`trnlab profile`."""

from __future__ import annotations

import argparse

from trnlab import profile


def main(args: argparse.Namespace) -> int:
    """Show the summary of a run again, and where its report and trace are."""
    print(profile.show(args.folder))
    return 0
