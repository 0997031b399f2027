# SPDX-License-Identifier: Apache-2.0
"""`trnlab completion`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trnlab import chips
from trnlab.cli.commands import COMMANDS, parser
from trnlab.errors import UsageError

SHELLS = ("bash", "zsh", "fish")
_FOLDERS = ("DIR", "RUN", "OTHER", "SRC", "DST", "DIR_OR_URL")
_FILES = ("FILE", "SCRIPT", "SCRIPT_OR_MODEL", "KERNEL", "MODEL", "REAL", "FILE[:NAME]", "KEY_OR_SCRIPT")


def arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab completion`."""
    command.add_argument("shell", choices=SHELLS, help="the shell that is to complete commands and their arguments")


def main(args: argparse.Namespace) -> int:
    """Print what the shell reads. Raises UsageError (TRN107) where the package that writes it is not installed."""
    print(script(args.shell))
    return 0


def script(shell: str) -> str:
    """The completion of all commands for one shell of `SHELLS`, written from their parsers by shtab.

    The shell reads it once, so that no Python is started when somebody presses the key.
    Raises UsageError (TRN107).
    """
    try:
        import shtab
    except ImportError:
        raise UsageError(
            "the package that writes completions is not installed",
            code="TRN107",
            limit="shtab",
            got="none",
            remedy="pip install shtab",
        ) from None
    top = parser(*COMMANDS)
    for action in _actions(top):
        kind = action.metavar if isinstance(action.metavar, str) else ""
        if action.choices:
            continue
        if action.dest == "target":
            action.complete = _targets()  # type: ignore[attr-defined]
        elif kind in _FOLDERS:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif kind in _FILES or action.type is Path:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    return str(shtab.complete(top, shell))


def _actions(of: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """All arguments of a parser, and of the commands below it."""
    for action in of._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from _actions(each)


def _targets() -> dict[str, Any]:
    """How each shell completes an instance or a chip."""
    names = " ".join([*chips.TARGETS, *chips.NAMES])
    function = f"""_trnlab_targets() {{
  compgen -W "{names}" -- $1
}}"""
    return {"bash": "_trnlab_targets", "zsh": f"({names})", "fish": names, "preamble": {"bash": function}}
