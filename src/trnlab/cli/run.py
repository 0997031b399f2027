# SPDX-License-Identifier: Apache-2.0
"""`trnlab run`."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace

from trnlab import checks, policy
from trnlab.chips import apply_settings
from trnlab.frontends import vendor_imports
from trnlab.nki.imports import install_imports
from trnlab.runtime.script import Script, run_script
from trnlab.runtime.session import for_kernels


def main(args: argparse.Namespace) -> int:
    """Run a script; returns its exit status."""
    given = {"TRNLAB_TARGET": args.target, "TRNLAB_PRECISION": args.precision, "TRNLAB_CACHE": args.cache}
    session = for_kernels({**os.environ, **{name: str(value) for name, value in given.items() if value}})
    for setting in args.check or ():
        checks.configure(checks.parse(setting))
    if args.schedule:
        policy.configure(args.schedule)
    if args.set:
        session.target = replace(session.target, chip=apply_settings(session.chip, args.set))
    session.stochastic_rounding, session.seed, session.check_nan = args.stochastic_rounding, args.seed, args.check_nan
    session.band = args.band
    if args.no_cache:
        session.cache = None
    script = Script(args.script, args.arguments, args.module)
    script.file  # noqa: B018  (says at once when it cannot be read)
    install_imports(override=args.own_nki)
    vendor_imports.install(override=args.own_nki)
    return run_script(script, session, args.out)
