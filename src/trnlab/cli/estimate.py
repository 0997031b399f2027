# SPDX-License-Identifier: Apache-2.0
"""`trnlab estimate`."""

from __future__ import annotations

import argparse
import json

from trnlab.cli.check import FAILED, examined
from trnlab.porting import text
from trnlab.porting.result import to_json


def main(args: argparse.Namespace) -> int:
    """Print time, memory and cost of a script's step; returns 1 where there is no time to tell."""
    report = examined(args)
    print(json.dumps(to_json(report), indent=2) if args.json else text.estimate(report))
    return 0 if any(t.step_s for t in report.targets) else FAILED
