# SPDX-License-Identifier: Apache-2.0
"""`trnlab chips`."""

from __future__ import annotations

import argparse

from trnlab import chips
from trnlab.chips.render import describe, overview


def arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab chips`."""
    command.add_argument("name", metavar="NAME", nargs="?", help="a chip: all its figures, with their sources")
    command.add_argument("--assumed", action="store_true", help="only the figures that nobody published")


def main(args: argparse.Namespace) -> int:
    """Show all chips, or one, or what is assumed of one or all."""
    names = [args.name] if args.name else chips.NAMES if args.assumed else []
    texts = [describe(chips.get(name), only_assumed=args.assumed) for name in names]
    if args.assumed and texts:
        texts.append(_rules())
    print("\n\n".join(texts) if texts else overview())
    return 0


def _rules() -> str:
    """What is assumed of every chip beyond its figures."""
    from trnlab.isa.costs import assumed_rules  # with all instructions, which take a while

    rules = assumed_rules()
    width = max(len(kind) for kind, _ in rules)
    lines = [f"{kind:<{width}}  {rule}" for kind, rule in rules]
    order = "kernels are scheduled as docs/adr/0017 says: in which order is not published"
    return "\n".join(["rules of cost, on every chip", *lines, "", order])
