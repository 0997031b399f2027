# SPDX-License-Identifier: Apache-2.0
"""`trnlab estimate`."""

from __future__ import annotations

import argparse

from trnlab import documents
from trnlab.cli.check import FAILED, arguments_of_estimates, examined, held
from trnlab.estimate import document


def arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab estimate`."""
    arguments_of_estimates(command)


def main(args: argparse.Namespace) -> int:
    """Print time, memory and cost of a script's step; returns 1 where there is no time to tell."""
    report = examined(args)
    said = document.estimate(report, held(report))
    print(said.json() if args.json else documents.text(said))
    return 0 if any(t.step_s for t in report.targets) else FAILED
