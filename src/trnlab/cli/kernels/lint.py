# SPDX-License-Identifier: Apache-2.0
"""`trnlab lint`."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from trnlab.chips.spec import Chip
from trnlab.errors import UsageError
from trnlab.nki.lint import ERROR, LintFinding, lint_file
from trnlab.nki.target import default_chip
from trnlab.runtime.session import from_settings
from trnlab.runtime.settings import Settings


def arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab lint`."""
    add = command.add_argument
    add("--target", metavar="NAME", help="the chip to lint for, e.g. trn2; default: that of kernels")
    add("--json", action="store_true", help="the findings as JSON")
    add("--strict", action="store_true", help="fail for warnings, too")
    add("files", metavar="FILE", type=Path, nargs="+")


def main(args: argparse.Namespace) -> int:
    """Print the findings of the files; returns 1 when one is an error, or with --strict when there is any.

    Of several files, one that is not Python is an error of its own.
    """
    chip = from_settings(Settings(args.target)).chip if args.target else default_chip()
    found: list[LintFinding] = []
    kernels = 0
    for path in args.files:
        some, count = _of_file(path, chip, bool(args.target), len(args.files) > 1)
        found, kernels = [*found, *some], kernels + count
    errors = sum(f.severity == ERROR for f in found)
    if args.json:
        print(json.dumps({"chip": chip.name, "kernels": kernels, "findings": [asdict(f) for f in found]}, indent=2))
    else:
        for f in found:
            print(f"{f}\n    {f.text}")
        others = len(found) - errors
        if kernels or found:
            print(
                f"{_count(kernels, 'kernel')} for {chip.name}: {_count(errors, 'error')}, {_count(others, 'warning')}"
            )
        if not kernels:
            print("no function is decorated with nki.jit, nor passed to nki.jit or nki.simulate: nothing was read")
            print("lint reads kernels; for training scripts see `trnlab check`")
    return int(bool(errors or (args.strict and found)))


def _of_file(path: str, chip: Chip, chosen: bool, among_others: bool) -> tuple[list[LintFinding], int]:
    try:
        return lint_file(path, chip, chosen)
    except UsageError as error:
        if error.code != "TRN128" or not among_others:
            raise
        cause = error.__cause__
        line = cause.lineno or 1 if isinstance(cause, SyntaxError) else 1
        what = f"not Python: {cause.msg if isinstance(cause, SyntaxError) else cause}"
        return [LintFinding(str(path), line, 1, error.code, ERROR, what, "correct the file", "Python")], 0


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
