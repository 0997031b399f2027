# SPDX-License-Identifier: Apache-2.0
"""What several commands take."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from trnlab.errors import UsageError
from trnlab.precision import MODES


def whole(least: int, most: int = 1 << 31) -> Callable[[str], int]:
    """Reads a whole number in a range: the `type` of an option. Raises UsageError (TRN569) for one that is not."""

    def number(text: str) -> int:
        try:
            found = int(text) if len(text) < 100 else None
        except ValueError:
            found = None
        if found is None or not least <= found <= most:
            limit = f"a whole number from {least}" + (f" to {most}" if most < 1 << 31 else "")
            raise UsageError(
                "a number on the command line cannot be",
                code="TRN569",
                got=text[:60],
                limit=limit,
                remedy="see --help for what it is of",
            )
        return found

    return number


def fault(command: argparse.ArgumentParser) -> None:
    """--fault."""
    command.add_argument(
        "--fault",
        action="append",
        metavar="LINK=STATE",
        help="a sick link between ranks, such as efa:node1.rail3=half, or failure, such as rank2:step37=kill (run); "
        "several times for several",
    )


def precision(command: argparse.ArgumentParser) -> None:
    """--precision and its rules."""
    command.add_argument(
        "--precision",
        choices=tuple(MODES),
        help="format of matmul operands, or of all that is stored (bf16-all); default: $TRNLAB_PRECISION or bf16",
    )
    command.add_argument(
        "--precision-rules", metavar="FILE", help="formats of single modules, TOML; default: $TRNLAB_PRECISION_RULES"
    )


def threshold(command: argparse.ArgumentParser) -> None:
    """--comm-threshold."""
    command.add_argument(
        "--comm-threshold",
        type=float,
        metavar="SHARE",
        help="share of a step from which the exchange of gradients is warned of; default: 0.25",
    )


def allow(command: argparse.ArgumentParser) -> None:
    """--allow."""
    command.add_argument(
        "--allow",
        action="append",
        metavar="WHAT",
        help="what the script may do for real while it is followed: network, subprocesses, files; default: nothing",
    )


def cache_folder(command: argparse.ArgumentParser) -> argparse._MutuallyExclusiveGroup:
    """--cache; the group takes what excludes it."""
    group = command.add_mutually_exclusive_group()
    group.add_argument("--cache", metavar="DIR_OR_URL", help="where the cache is; default: $TRNLAB_CACHE")
    return group
