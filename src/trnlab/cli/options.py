# SPDX-License-Identifier: Apache-2.0
"""Options that several commands take, each in one place."""

from __future__ import annotations

import argparse
import contextlib
import math
from dataclasses import dataclass, replace
from typing import Any

from trnlab.errors import UsageError
from trnlab.runtime.settings import SETTINGS
from trnlab.stacks import OURS, OWN, VENDOR, Stack, parse


@dataclass(frozen=True)
class NumberRange:
    """The `type` of an option that takes a number: reads one that lies in the range.

    Raises UsageError (TRN569) for all else.
    """

    least: float
    most: float
    whole: bool = True
    above: bool = False  # the least itself is none of them
    option: str = ""  # whose it is, for the error, see `name_numbers`

    def __call__(self, text: str) -> float:
        """The number that a text is."""
        found = math.nan
        with contextlib.suppress(ValueError):
            found = (int if self.whole else float)(text) if len(text) < _LONGEST else math.nan
        if not self.least <= found <= self.most or (self.above and found == self.least):
            raise UsageError(
                f"{self.option or 'a number on the command line'} cannot be {text[:_LONGEST]!r}",
                code="TRN569",
                limit=self.limit,
                remedy="see --help for what it is of",
            )
        return found

    @property
    def limit(self) -> str:
        """The range in words."""
        kind = "a whole number" if self.whole else "a number"
        start = f"{kind} {'above' if self.above else 'from'} {self.least:{'' if self.whole else 'g'}}"
        return start if self.most == _MOST else f"{start} to {self.most:{'' if self.whole else 'g'}}"


_LONGEST = 100  # characters of a number
_MOST = 1 << 31


def whole(least: int, most: int = _MOST) -> NumberRange:
    """A whole number from `least` to `most`."""
    return NumberRange(least, most)


def real(least: float, most: float, *, above: bool = False) -> NumberRange:
    """A number from `least` to `most`; above: the least itself is none of them."""
    return NumberRange(least, most, whole=False, above=above)


def name_numbers(command: argparse.ArgumentParser) -> None:
    """Tell each range in a command's parser whose it is."""
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                name_numbers(each)
        elif isinstance(action.type, NumberRange):
            action.type = replace(action.type, option=max(action.option_strings, key=len, default=action.dest))


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
