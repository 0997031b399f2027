# SPDX-License-Identifier: Apache-2.0
"""`trnlab precision`."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from trnlab import chips, documents, profile
from trnlab.cli import options
from trnlab.errors import UsageError
from trnlab.precision import MODES
from trnlab.runtime.notices import say
from trnlab.runtime.run import new_folder
from trnlab.runtime.script import Script
from trnlab.runtime.session import from_settings
from trnlab.runtime.settings import Settings
from trnlab.verify.precision import REFERENCE, Mode, Study, document, read_mode

PAGE, RECORD, LOG = "precision.html", "precision.json", "output.txt"


def arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab precision`."""
    add = command.add_argument
    add("--steps", type=options.whole(1), default=20, metavar="N", help="steps in each mode; default: 20")
    add("--modes", metavar="A,B,...", help="bf16, bf16-all, fp8, mxfp8, beside fp32; default: all that the chip has")
    options.setting(command, "target")
    options.setting(command, "precision_rules")
    add("--json", action="store_true", help="everything as JSON")
    add("--out", metavar="DIR", type=Path, help="folder of the runs and the page; default: runs/<script>-<n>")
    options.setting(command, "seed")
    options.cache(command, "")
    add("script", metavar="SCRIPT", type=Path)
    add("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="arguments of the script")


def main(args: argparse.Namespace) -> int:
    """Run a script in several precisions, one after the other, each in a process of its own."""
    script = Script(args.script, args.arguments)
    script.file  # noqa: B018  (says at once when it cannot be read)
    settings = Settings.resolved(os.environ, args, precision=REFERENCE)
    target = from_settings(settings).target
    folder = args.out or new_folder(Path("runs"), script.path.stem)
    modes = []
    for name in wanted(args.modes, target.chip):
        say(f"{script.path.name} in {name}")
        modes.append(_run(name, args, folder / name, replace(settings, precision=name)))
    if modes[0].failed:
        raise UsageError(
            f"the script fails in {REFERENCE}: {modes[0].failed}",
            code="TRN249",
            remedy=f"run it with `trnlab run` first; what it said is in {folder / REFERENCE / LOG}",
        )
    study = Study(str(args.script), target.name, args.steps, modes)
    said = document(study)
    record = said.json().encode()
    profile.write(folder / PAGE, documents.page(said).encode())
    profile.write(folder / RECORD, record)
    print(record.decode() if args.json else f"{documents.text(said)}\n\npage    {folder / PAGE}")
    return 0


def wanted(modes: str | None, chip: chips.Chip) -> list[str]:
    """The modes to run, fp32 first, to which the others are compared. Raises UsageError (TRN121) for unknown ones."""
    names = modes.split(",") if modes is not None else [m for m in MODES if m != "mxfp8" or chip.has("mx_formats")]
    for name in names:
        if name not in MODES:
            raise UsageError(
                f"unknown precision {name!r}",
                code="TRN121",
                limit=", ".join(MODES),
                remedy="choose of these, separated by commas",
            )
    return [REFERENCE, *(name for name in names if name != REFERENCE)]


def _run(name: str, args: argparse.Namespace, folder: Path, settings: Settings) -> Mode:
    request = {
        "script": str(args.script),
        "arguments": args.arguments,
        "steps": args.steps,
        "out": str(folder),
        "settings": settings.record(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "trnlab.frontends.torch.study", json.dumps(request)]
    with (folder / LOG).open("wb") as log:
        status = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
    if status:
        said = [line for line in (folder / LOG).read_text(errors="replace").splitlines() if line.strip()]
        told = [line for line in said if "TRN" in line] or said
        return Mode(name, failed=told[-1] if told else f"exit status {status}")
    return read_mode(name, folder, None if name == REFERENCE else folder.parent / REFERENCE)
