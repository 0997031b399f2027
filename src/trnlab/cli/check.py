# SPDX-License-Identifier: Apache-2.0
"""`trnlab check` and what `trnlab estimate` shares with it."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from trnlab import chips, profile
from trnlab.chips import Target
from trnlab.errors import UsageError
from trnlab.porting import text
from trnlab.porting.kept import Kept
from trnlab.porting.page import page
from trnlab.porting.result import Report, from_json, to_json
from trnlab.runtime.script import Script
from trnlab.runtime.session import Session, cache_folder, for_kernels

FAILED = 1


def main(args: argparse.Namespace) -> int:
    """Check a script; returns 0 where it runs and fits, 1 where something is refused or does not fit."""
    report = examined(args)
    if args.page:
        args.page.parent.mkdir(parents=True, exist_ok=True)
        profile.write(args.page, page(report).encode())
    print(json.dumps(to_json(report), indent=2) if args.json else text.check(report))
    if args.page and not args.json:
        print(f"\npage    {args.page}")
    return FAILED if report.failed else 0


def examined(args: argparse.Namespace) -> Report:
    """The report on a script: of the last time, where nothing that it depends on has changed."""
    script = Script(args.script, args.arguments)
    file = script.file
    targets, session = _targets(args)
    folder = args.cache or cache_folder(os.environ)
    request = [str(file), *script.arguments, *(t.name for t in targets), session.precision, str(Path.cwd())]
    kept = Kept(folder / "checks", request) if not args.no_cache else None
    if kept is not None and (record := kept.get()) is not None:
        report = from_json(record)
        report.cached = True
        return report
    if args.no_cache:
        session.cache = None
    report = _followed(script, targets, session, kept)
    report.script = str(args.script)
    if kept is not None:
        kept.put(to_json(report))
    return report


def _followed(script: Script, targets: list[Target], session: Session, kept: Kept | None) -> Report:
    from trnlab.frontends import vendor_imports
    from trnlab.nki.imports import install_imports

    install_imports()
    vendor_imports.install()
    if kept is not None:
        kept.watch()
    import torch

    from trnlab.frontends.torch.check.report import examine  # PyTorch takes a while

    torch.empty(0, device="neuron")
    return examine(script, targets, session)


def _targets(args: argparse.Namespace) -> tuple[list[Target], Session]:
    names = [name for name in (args.target or os.environ.get("TRNLAB_TARGET", "")).split(",") if name]
    if not names:
        raise UsageError(
            "no target is chosen, and none is guessed", code="TRN120", limit=", ".join(chips.TARGETS),
            remedy="name one or several: --target trn1.2xlarge,trn2.3xlarge",
        )  # fmt: skip
    targets = [chips.target(name) for name in names]
    given = {"TRNLAB_TARGET": names[0], "TRNLAB_PRECISION": args.precision, "TRNLAB_CACHE": args.cache}
    session = for_kernels({**os.environ, **{name: str(value) for name, value in given.items() if value}})
    return targets, session
