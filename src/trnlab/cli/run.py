# SPDX-License-Identifier: Apache-2.0
"""`trnlab run`."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace

from trnlab.chips import apply_settings
from trnlab.runtime.script import run_script
from trnlab.runtime.session import from_environment


def main(args: argparse.Namespace) -> int:
    """Run a script; returns its exit status."""
    given = {"TRNLAB_TARGET": args.target, "TRNLAB_PRECISION": args.precision, "TRNLAB_CACHE": args.cache}
    session = from_environment({**os.environ, **{name: str(value) for name, value in given.items() if value}})
    if args.set:
        session.target = replace(session.target, chip=apply_settings(session.chip, args.set))
    session.stochastic_rounding, session.seed, session.check_nan = args.stochastic_rounding, args.seed, args.check_nan
    if args.no_cache:
        session.cache = None
    return run_script(args.script, args.arguments, session, args.out)
