# SPDX-License-Identifier: Apache-2.0
"""`trnlab run`."""

from __future__ import annotations

import argparse
import importlib
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

from trnlab import checks, policy
from trnlab.chips import apply_settings
from trnlab.errors import UsageError
from trnlab.files import write_atomic
from trnlab.frontends import vendor_imports
from trnlab.graph.ir import Graph
from trnlab.graph.stablehlo import to_stablehlo
from trnlab.nki.imports import install_imports
from trnlab.runtime.run import Run
from trnlab.runtime.script import Script, run_script
from trnlab.runtime.session import Session, for_kernels


def is_module(path: Path) -> bool:
    """Whether a file holds a module of StableHLO or an export of JAX, by its name, or by bytes that no script has."""
    if path.suffix in (".mlir", ".mlirbc", ".stablehlo"):
        return True
    try:
        with path.open("rb") as file:
            return b"\0" in file.read(4096)
    except OSError:
        return False  # which is said where the script is looked for


def _emit(session: Session, graph: Graph, key: str) -> None:
    assert isinstance(session.run, Run)
    path = session.run.folder / "stablehlo" / f"{graph.name}-{key[:12]}.mlir"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, to_stablehlo(graph).encode())


def main(args: argparse.Namespace) -> int:
    """Run a script; returns its exit status."""
    given = {"TRNLAB_TARGET": args.target, "TRNLAB_PRECISION": args.precision, "TRNLAB_CACHE": args.cache,
             "TRNLAB_PRECISION_RULES": args.precision_rules}  # fmt: skip
    session = for_kernels({**os.environ, **{name: str(value) for name, value in given.items() if value}})
    for setting in args.check or ():
        checks.configure(checks.parse(setting))
    if args.schedule:
        policy.configure(args.schedule)
    if args.set:
        session.target = replace(session.target, chip=apply_settings(session.chip, args.set))
    session.seed, session.check_nan = args.seed, args.check_nan
    if args.stochastic_rounding is not None:
        session.stochastic_rounding = args.stochastic_rounding
    session.band = args.band
    if args.no_cache:
        session.cache = None
    if args.emit_stablehlo:
        session.emit = partial(_emit, session)
    if not args.module and args.script.suffix != ".py" and is_module(args.script):
        files = importlib.import_module("trnlab.frontends.stablehlo.file")
        return int(files.run_file(args.script, session, args.out, args.inputs))
    if args.inputs is not None:
        raise UsageError(
            "--inputs is for modules of StableHLO", code="TRN236", got=str(args.script),
            remedy="give a script its inputs as arguments behind its name",
        )  # fmt: skip
    script = Script(args.script, args.arguments, args.module)
    script.file  # noqa: B018  (says at once when it cannot be read)
    install_imports(override=args.own_nki)
    vendor_imports.install(override=args.own_nki)
    return run_script(script, session, args.out)
