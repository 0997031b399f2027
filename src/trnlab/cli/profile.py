# SPDX-License-Identifier: Apache-2.0
"""`trnlab profile`."""

from __future__ import annotations

import argparse

from trnlab.runtime import summary


def main(args: argparse.Namespace) -> int:
    """Show the summary of a run again."""
    print(summary.text(summary.read(args.folder)))
    return 0
