# SPDX-License-Identifier: Apache-2.0
"""`trnlab chips`."""

from __future__ import annotations

import argparse

from trnlab import chips
from trnlab.chips.render import describe, overview


def main(args: argparse.Namespace) -> int:
    """Show all chips, or one, or what is assumed of one or all."""
    names = [args.name] if args.name else chips.NAMES if args.assumed else []
    texts = [describe(chips.get(name), only_assumed=args.assumed) for name in names]
    print("\n\n".join(texts) if texts else overview())
    return 0
