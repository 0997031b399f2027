# SPDX-License-Identifier: Apache-2.0
"""Arguments of the commands that take a script."""

from __future__ import annotations

import argparse
from pathlib import Path

from trnlab.cli.arguments.common import allow, cache_folder, fault, precision, threshold, whole


def run(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab run`."""
    add = command.add_argument
    add("--target", metavar="NAME", help="what to simulate, e.g. trn1.2xlarge or trn2; default: $TRNLAB_TARGET")
    precision(command)
    add("--out", metavar="DIR", type=Path, help="folder of the run; default: runs/<script>-<n>")
    add("--ranks", metavar="N", help="start it as so many ranks of torch.distributed, a core each; 2:4: at least 2")
    add("--max-restarts", type=int, default=0, metavar="N", help="when ranks die, start again so often; default: 0")
    add("--spares", type=int, default=0, metavar="N", help="ranks that take the place of those that die; default: 0")
    add("--lnc", choices=("1", "2"), help="NeuronCores of a logical one; default: $NEURON_LOGICAL_NC_CONFIG or 1")
    fault(command)
    threshold(command)
    add(
        "--stochastic-rounding",
        action=argparse.BooleanOptionalAction,
        help="round to narrower floats stochastically, reproducibly; default: with bf16-all only",
    )
    add("--seed", type=int, default=0, help="of stochastic rounding and the device's random numbers; default: 0")
    add("--set", metavar="FIGURE=VALUE", action="append", help="what if, e.g. chip.dma.engine_bandwidth=30GBps")
    add("--schedule", metavar="NAME", help="what is made of kernels, e.g. as-written or reuse=off: see trnlab passes")
    add(
        "--band",
        action="store_true",
        help="time kernels with the compiler's other likely choices, too (trnlab passes)",
    )
    add("--check", metavar="NAME=LEVEL", action="append", help="a check as error, warn or off, e.g. race=warn")
    add("--check-nan", action="store_true", help="stop at the first instruction that makes a NaN or infinity")
    cache_folder(command).add_argument("--no-cache", action="store_true", help="compile everything, keep nothing")
    add("--checkpoint", metavar="DIR_OR_URL", help="write checkpoints there, and go on from the newest one")
    add("--every", type=int, metavar="N", help="steps between two checkpoints; default: 200")
    add("--keep", type=int, metavar="N", help="checkpoints that stay; default: 3")
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
    add(
        "--target", metavar="NAME", help="of the job, e.g. trn1.32xlarge or 16xtrn2.48xlarge; default: $TRNLAB_TARGET"
    )
    add("--ranks", type=whole(1), metavar="N", help="of the job; default: 1, and of a cluster all that it holds")
    add("--rank", type=whole(0), default=0, metavar="R", help="the rank to follow; default: 0")
    add("--batches", type=whole(0), default=0, metavar="N", help=argparse.SUPPRESS)
    add("--checkpoint", metavar="DIR_OR_URL", help="where checkpoints will go; default: $TRNLAB_CHECKPOINT")
    add("--keep", type=whole(1), metavar="N", help="checkpoints that stay; default: 3")
    add("--json", action="store_true", help="everything as JSON, see docs/doctor.md")
    precision(command)
    threshold(command)
    allow(command)
    cache_folder(command).add_argument("--no-cache", action="store_true", help="look at the script anew")
    add("script", metavar="SCRIPT", type=Path, nargs="?", help="what will run: memory, and room for its checkpoints")
    add("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="arguments of the script")


def verify(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab verify`."""
    add = command.add_argument
    add("--steps", type=int, default=3, metavar="N", help="steps to verify; default: 3")
    add("--target", metavar="NAME", help="what to simulate, e.g. trn1.2xlarge; default: $TRNLAB_TARGET")
    precision(command)
    add("--reference", choices=("fp32", "float64"), default="fp32", help="how the host computes; default: fp32")
    add("--against", metavar="OTHER", type=Path, help="another script: compare the two on the host, module by module")
    add("--json", metavar="FILE", type=Path, help="write the verdict as JSON, see docs/verify.md")
    add("--out", metavar="DIR", type=Path, help="folder for verify.html and verify.json; default: runs/<script>-<n>")
    add("--seed", type=int, default=0, help="of the device's random numbers; default: 0")
    cache_folder(command).add_argument("--no-cache", action="store_true", help="compile everything, keep nothing")
    add("script", metavar="SCRIPT", type=Path)
    add("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="arguments of the script")


def check(command: argparse.ArgumentParser, page: bool = True) -> None:
    """Add the arguments of `trnlab check` and `trnlab estimate`."""
    add = command.add_argument
    add(
        "--target",
        metavar="A,B,C",
        help="one target or several, e.g. trn1.2xlarge,trn2.3xlarge; default: $TRNLAB_TARGET",
    )
    precision(command)
    add("--json", action="store_true", help="everything as JSON, see docs/check.md")
    if page:
        add("--page", metavar="FILE", type=Path, help="write it as a page, too")
    else:
        add("--ranks", type=int, metavar="N", help="of a cluster such as 4xtrn2.48xlarge; default: all that it holds")
        add("--rank", type=int, default=0, metavar="R", help="the rank to follow; default: 0")
        add("--batches", type=int, default=0, metavar="N", help="batches of all ranks; default: as the script says")
        threshold(command)
        fault(command)
    allow(command)
    cache_folder(command).add_argument("--no-cache", action="store_true", help="look anew, compile all, keep nothing")
    add("script", metavar="SCRIPT", type=Path)
    add("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="arguments of the script")


def compile(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab compile`."""
    add = command.add_argument
    add(
        "--target",
        metavar="NAME",
        help="one target, such as trn2.3xlarge or 4xtrn2.48xlarge; default: $TRNLAB_TARGET",
    )
    precision(command)
    add("--jobs", type=int, default=1, metavar="N", help="processes that compile; default: 1")
    add("--dry-run", action="store_true", help="compile nothing; say what that would take")
    add("--json", action="store_true", help="everything as JSON")
    add("--ranks", type=int, metavar="N", help="of a cluster such as 4xtrn2.48xlarge; default: all that it holds")
    add("--rank", type=int, default=0, metavar="R", help="the rank to follow; default: 0")
    fault(command)
    allow(command)
    cache_folder(command)
    add("script", metavar="SCRIPT", type=Path)
    add("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="arguments of the script")


def study(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab precision`."""
    add = command.add_argument
    add("--steps", type=whole(1), default=20, metavar="N", help="steps in each mode; default: 20")
    add("--modes", metavar="A,B,...", help="bf16, bf16-all, fp8, mxfp8, beside fp32; default: all that the chip has")
    add("--target", metavar="NAME", help="what to simulate, e.g. trn2.3xlarge; default: $TRNLAB_TARGET")
    add("--precision-rules", metavar="FILE", help="formats of single modules, TOML")
    add("--json", action="store_true", help="everything as JSON")
    add("--out", metavar="DIR", type=Path, help="folder of the runs and the page; default: runs/<script>-<n>")
    add("--seed", type=int, default=0, help="of stochastic rounding and the device's random numbers; default: 0")
    cache_folder(command)
    add("script", metavar="SCRIPT", type=Path)
    add("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="arguments of the script")
