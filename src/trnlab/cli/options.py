# SPDX-License-Identifier: Apache-2.0
"""Options that several commands take, each in one place."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

from trnlab.errors import UsageError
from trnlab.runtime.settings import SETTINGS
from trnlab.stacks import OURS, OWN, VENDOR, Stack, parse


def whole(least: int, most: int = 1 << 31) -> Callable[[str], int]:
    """Reads a whole number in a range: the `type` of an option. Raises UsageError (TRN569) for one that is not."""

    def number(text: str) -> int:
        try:
            found = int(text) if len(text) < 100 else None
        except ValueError:
            found = None
        if found is None or not least <= found <= most:
            limit = f"a whole number from {least}" + (f" to {most}" if most != 1 << 31 else "")
            raise UsageError(
                "a number on the command line cannot be",
                code="TRN569",
                got=text[:60],
                limit=limit,
                remedy="see --help for what it is of",
            )
        return found

    return number


def real(least: float, most: float, *, above: bool = False) -> Callable[[str], float]:
    """Reads a number in a range: the `type` of an option. above: the least itself is none of them. Raises UsageError
    (TRN569) for one that is not."""

    def number(text: str) -> float:
        try:
            found = float(text) if len(text) < 100 else math.nan
        except ValueError:
            found = math.nan
        if not least <= found <= most or (above and found == least):
            raise UsageError(
                "a number on the command line cannot be",
                code="TRN569",
                got=text[:60],
                limit=f"a number {'above' if above else 'from'} {least:g} to {most:g}",
                remedy="see --help for what it is of",
            )
        return found

    return number


def is_range(reads: object) -> bool:
    """Whether this `type` of an option is one of those that `whole` and `real` make."""
    return getattr(reads, "__qualname__", "") in ("whole.<locals>.number", "real.<locals>.number")


RANKS = whole(1, 1 << 20)
RANK = whole(0, (1 << 20) - 1)
SEED = whole(0, (1 << 63) - 1)
COUNT = whole(1)
JOBS = whole(1, 1 << 10)


def setting(command: argparse._ActionsContainer, name: str, **instead: Any) -> None:
    """The option of a field of `Settings`. instead: what this command tells `argparse` otherwise, such as `help`."""
    field = SETTINGS[name]
    command.add_argument(field.option, **{"help": field.help, **field.argument, **instead})


def settings(command: argparse._ActionsContainer, *names: str) -> None:
    """The options of several fields of `Settings`."""
    for name in names:
        setting(command, name)


def allow(command: argparse.ArgumentParser) -> None:
    """--allow."""
    command.add_argument(
        "--allow",
        action="append",
        metavar="WHAT",
        help="what the script may do for real while it is followed: network, subprocesses, files; default: nothing",
    )


def cache(command: argparse.ArgumentParser, without: str | None = None) -> None:
    """--cache, and --no-cache, which excludes it. without: what the command does without a cache, where it is
    something else; "" where it takes no --no-cache."""
    group = command.add_mutually_exclusive_group()
    setting(group, "cache")
    if without != "":
        setting(group, "no_cache", **({"help": without} if without else {}))


BOTH = "both"


def stack(command: argparse._ActionsContainer, both: bool = True) -> None:
    """--stack. both: whether both are shown where nothing is said, else ours is."""
    default, also = (BOTH, " or both") if both else (OURS, "")
    command.add_argument(
        "--stack",
        metavar="NAME",
        default=default,
        help=f"whose software: ours, vendor (,release=2.18,...){also}; default: {default}; see `trnlab stacks`",
    )


def stacks_of(args: argparse.Namespace) -> list[Stack]:
    """The stacks that --stack names, the first one first where money is concerned. Raises UsageError (TRN587)."""
    return [parse(VENDOR), OWN] if args.stack == BOTH else [parse(args.stack)]
