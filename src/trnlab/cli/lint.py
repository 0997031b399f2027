# SPDX-License-Identifier: Apache-2.0
"""`trnlab lint`."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from trnlab.nki.lint import ERROR, Finding, lint_file
from trnlab.nki.target import default_chip
from trnlab.runtime.session import for_kernels


def main(args: argparse.Namespace) -> int:
    """Print the findings of the files; returns 1 when one is an error, or with --strict when there is any."""
    chip = for_kernels({"TRNLAB_TARGET": args.target}).chip if args.target else default_chip()
    found: list[Finding] = []
    kernels = 0
    for path in args.files:
        some, count = lint_file(path, chip)
        found, kernels = [*found, *some], kernels + count
    errors = sum(f.severity == ERROR for f in found)
    if args.json:
        print(json.dumps({"chip": chip.name, "kernels": kernels, "findings": [asdict(f) for f in found]}, indent=2))
    else:
        for f in found:
            print(f"{f}\n    {f.text}")
        others = len(found) - errors
        print(f"{_count(kernels, 'kernel')} for {chip.name}: {_count(errors, 'error')}, {_count(others, 'warning')}")
        if not kernels:
            print("no function is decorated with nki.jit, nor passed to nki.jit or nki.simulate")
    return int(bool(errors or (args.strict and found)))


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
