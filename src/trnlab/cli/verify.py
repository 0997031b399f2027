# SPDX-License-Identifier: Apache-2.0
"""`trnlab verify`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from trnlab import documents, profile
from trnlab.cli import options
from trnlab.errors import UsageError
from trnlab.frontends import vendor_imports
from trnlab.nki.imports import install_imports
from trnlab.runtime.run import new_folder
from trnlab.runtime.script import Script
from trnlab.runtime.session import Session, for_kernels
from trnlab.runtime.settings import Settings
from trnlab.verify.document import document

PAGE, RECORD = "verify.html", "verify.json"
DIVERGES = 1
VERIFIED = ("bf16", "fp32")


def arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab verify`."""
    add = command.add_argument
    add("--steps", type=options.COUNT, default=3, metavar="N", help="steps to verify; default: 3")
    options.setting(command, "target")
    options.settings(command, "precision", "precision_rules")
    add("--reference", choices=("fp32", "float64"), default="fp32", help="how the host computes; default: fp32")
    add("--against", metavar="OTHER", type=Path, help="another script: compare the two on the host, module by module")
    add("--json", metavar="FILE", type=Path, help="write the verdict as JSON, see docs/verify.md")
    add("--out", metavar="DIR", type=Path, help="folder for verify.html and verify.json; default: runs/<script>-<n>")
    options.setting(command, "seed")
    options.cache(command)
    add("script", metavar="SCRIPT", type=Path)
    add("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="arguments of the script")


def main(args: argparse.Namespace) -> int:
    """Verify a script; returns 0 where there is no difference beyond rounding, 1 where there is."""
    script = Script(args.script, args.arguments)
    script.file  # noqa: B018  (says at once when it cannot be read)
    if args.steps < 1:
        raise UsageError(
            "there is nothing to verify in that many steps",
            code="TRN163",
            limit="at least 1",
            got=args.steps,
            remedy="give --steps a larger number",
        )
    session = for_kernels(Settings.resolved(os.environ, args))
    _check_bounds(session)
    install_imports()
    vendor_imports.install()
    from trnlab.frontends.torch.verify.script import VerifyRequest, verify  # takes PyTorch a while

    other = Script(args.against) if args.against else None
    verdict = verify(VerifyRequest(script, args.steps, args.reference, other), session)
    folder = args.out or new_folder(Path("runs"), script.path.stem)
    said = document(verdict)
    record = said.json().encode()
    for path, content in ((folder / PAGE, documents.page(said).encode()), (folder / RECORD, record)):
        path.parent.mkdir(parents=True, exist_ok=True)
        profile.write(path, content)
    if args.json:
        profile.write(args.json, record)
    print(f"{documents.text(said)}\n\npage    {folder / PAGE}")
    return 0 if verdict.clean else DIVERGES


def _check_bounds(session: Session) -> None:
    """Raise UsageError (TRN247) for formats whose errors nobody has bounds for: scaled ones, and what is narrower
    than the session's."""
    asked = [session.precision, *(rule.choice.format for rule in session.rules.rules)]
    wrong = [name for name in asked if name not in VERIFIED]
    if session.precision == "fp32" and "bf16" in asked:
        wrong.append("bf16 in an fp32 run")
    if wrong:
        raise UsageError(
            f"trnlab verify knows no bounds for {wrong[0]}",
            code="TRN247",
            limit=", ".join(VERIFIED),
            got=wrong[0],
            remedy="give --precision bf16 without such a rule, or compare modes with trnlab precision",
        )
