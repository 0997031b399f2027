# SPDX-License-Identifier: Apache-2.0
"""Arguments of the commands that take a script."""

from __future__ import annotations

import argparse
from pathlib import Path

from trnlab.cli.arguments.common import allow, cache_options, setting, settings, whole


def run(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab run`."""
    add = command.add_argument
    settings(command, "target", "precision", "precision_rules")
    add("--out", metavar="DIR", type=Path, help="folder of the run; default: runs/<script>-<n>")
    add("--ranks", metavar="N", help="start it as so many ranks of torch.distributed, a core each; 2:4: at least 2")
    add("--max-restarts", type=int, default=0, metavar="N", help="when ranks die, start again so often; default: 0")
    add("--spares", type=int, default=0, metavar="N", help="ranks that take the place of those that die; default: 0")
    settings(command, "lnc", "fault", "comm_threshold", "stochastic_rounding", "seed", "set", "schedule", "band")
    settings(command, "check", "check_nan")
    cache_options(command)
    settings(command, "checkpoint", "every", "keep")
    add(
        "--own-nki",
        action="store_true",
        help="`import nki` means trnlab even where the vendor's package is installed",
    )
    add(
        "--inputs",
        metavar="FILE",
        type=Path,
        help="of a module of StableHLO: its arguments, an .npz; default: random",
    )
    add(
        "--emit-stablehlo",
        action="store_true",
        help="write the graphs that are compiled into the run's folder, as StableHLO",
    )
    add("-m", dest="module", action="store_true", help="SCRIPT is a module, as with python -m: -m pytest my_test.py")
    add("script", metavar="SCRIPT", type=Path)
    add("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="arguments of the script")


def doctor(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab doctor`."""
    add = command.add_argument
    setting(
        command,
        "target",
        metavar="NAME",
        help="of the job, e.g. trn1.32xlarge or 16xtrn2.48xlarge; default: $TRNLAB_TARGET",
    )
    add("--ranks", type=whole(1), metavar="N", help="of the job; default: 1, and of a cluster all that it holds")
    add("--rank", type=whole(0), default=0, metavar="R", help="the rank to follow; default: 0")
    add("--batches", type=whole(0), default=0, metavar="N", help=argparse.SUPPRESS)
    setting(command, "checkpoint", help="where checkpoints will go; default: $TRNLAB_CHECKPOINT")
    setting(command, "keep", type=whole(1))
    add("--json", action="store_true", help="everything as JSON, see docs/doctor.md")
    settings(command, "precision", "precision_rules")
    setting(command, "comm_threshold")
    allow(command)
    cache_options(command, "look at the script anew")
    add("script", metavar="SCRIPT", type=Path, nargs="?", help="what will run: memory, and room for its checkpoints")
    add("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="arguments of the script")


def verify(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab verify`."""
    add = command.add_argument
    add("--steps", type=int, default=3, metavar="N", help="steps to verify; default: 3")
    setting(command, "target")
    settings(command, "precision", "precision_rules")
    add("--reference", choices=("fp32", "float64"), default="fp32", help="how the host computes; default: fp32")
    add("--against", metavar="OTHER", type=Path, help="another script: compare the two on the host, module by module")
    add("--json", metavar="FILE", type=Path, help="write the verdict as JSON, see docs/verify.md")
    add("--out", metavar="DIR", type=Path, help="folder for verify.html and verify.json; default: runs/<script>-<n>")
    setting(command, "seed")
    cache_options(command)
    add("script", metavar="SCRIPT", type=Path)
    add("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="arguments of the script")


def check(command: argparse.ArgumentParser, page: bool = True) -> None:
    """Add the arguments of `trnlab check` and `trnlab estimate`."""
    add = command.add_argument
    setting(
        command,
        "target",
        metavar="A,B,C",
        help="one target or several, e.g. trn1.2xlarge,trn2.3xlarge; default: $TRNLAB_TARGET",
    )
    settings(command, "precision", "precision_rules")
    add("--json", action="store_true", help="everything as JSON, see docs/check.md")
    if page:
        add("--page", metavar="FILE", type=Path, help="write it as a page, too")
    else:
        add("--ranks", type=int, metavar="N", help="of a cluster such as 4xtrn2.48xlarge; default: all that it holds")
        add("--rank", type=int, default=0, metavar="R", help="the rank to follow; default: 0")
        add("--batches", type=int, default=0, metavar="N", help="batches of all ranks; default: as the script says")
        settings(command, "comm_threshold", "fault")
    allow(command)
    cache_options(command, "look anew, compile all, keep nothing")
    add("script", metavar="SCRIPT", type=Path)
    add("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="arguments of the script")


def compile(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab compile`."""
    add = command.add_argument
    setting(
        command,
        "target",
        metavar="NAME",
        help="one target, such as trn2.3xlarge or 4xtrn2.48xlarge; default: $TRNLAB_TARGET",
    )
    settings(command, "precision", "precision_rules")
    add("--jobs", type=int, default=1, metavar="N", help="processes that compile; default: 1")
    add("--dry-run", action="store_true", help="compile nothing; say what that would take")
    add("--json", action="store_true", help="everything as JSON")
    add("--ranks", type=int, metavar="N", help="of a cluster such as 4xtrn2.48xlarge; default: all that it holds")
    add("--rank", type=int, default=0, metavar="R", help="the rank to follow; default: 0")
    setting(command, "fault")
    allow(command)
    cache_options(command, "")
    add("script", metavar="SCRIPT", type=Path)
    add("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="arguments of the script")


def study(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab precision`."""
    add = command.add_argument
    add("--steps", type=whole(1), default=20, metavar="N", help="steps in each mode; default: 20")
    add("--modes", metavar="A,B,...", help="bf16, bf16-all, fp8, mxfp8, beside fp32; default: all that the chip has")
    setting(command, "target")
    setting(command, "precision_rules")
    add("--json", action="store_true", help="everything as JSON")
    add("--out", metavar="DIR", type=Path, help="folder of the runs and the page; default: runs/<script>-<n>")
    setting(command, "seed")
    cache_options(command, "")
    add("script", metavar="SCRIPT", type=Path)
    add("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="arguments of the script")
