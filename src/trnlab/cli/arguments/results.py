# SPDX-License-Identifier: Apache-2.0
"""Arguments of the commands that show chips, instructions, runs and how good the model of time is."""

from __future__ import annotations

import argparse
from pathlib import Path

from trnlab.cli.arguments.common import cache_options


def monitor(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab monitor`."""
    add = command.add_argument
    how = command.add_mutually_exclusive_group()
    how.add_argument("--top", action="store_true", help="a page for people, renewed on a terminal; the default")
    how.add_argument("--json", action="store_true", help="as neuron-monitor: an object for each instance and period")
    how.add_argument("--prometheus", action="store_true", help="as neuron-monitor-prometheus.py: all metrics, once")
    add("--port", type=int, metavar="N", help="with --prometheus: serve them to this host at /metrics, until stopped")
    add("--period", type=float, default=5.0, metavar="SECONDS", help="between two reports; default: 5")
    add("--samples", type=int, metavar="N", help="reports; default: until stopped, or one page into a file")


def chips(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab chips`."""
    command.add_argument("name", metavar="NAME", nargs="?", help="a chip: all its figures, with their sources")
    command.add_argument("--assumed", action="store_true", help="only the figures that nobody published")


def profile(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab profile`."""
    which = command.add_mutually_exclusive_group(required=True)
    which.add_argument("folder", metavar="DIR", type=Path, nargs="?", help="folder of a run")
    which.add_argument("--import", dest="measured", metavar="FILE", type=Path, help="JSON of the vendor's profiler")
    command.add_argument("--json", metavar="FILE", type=Path, help="write the step as the vendor's profiler would")


def compare(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab compare`."""
    for name in ("first", "second"):
        command.add_argument(name, metavar="RUN", type=Path, help="folder of a run, or JSON of the vendor's profiler")
    command.add_argument("--json", action="store_true", help="everything as JSON, times in picoseconds")
    command.add_argument("--page", metavar="FILE", type=Path, help="write a page with both timelines")


def passes(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab passes`."""
    add = command.add_argument
    add("--target", metavar="NAME", help="the chip, e.g. trn2; default: that of kernels")
    add("--schedule", metavar="NAME", help="what is made of kernels, e.g. as-written or reuse=off")
    add(
        "script",
        metavar="SCRIPT",
        type=Path,
        nargs="?",
        help="time its kernels without each option; default: list them",
    )
    add("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="arguments of the script")


def folder(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab sensitivity`."""
    command.add_argument("folder", metavar="DIR", type=Path, help="folder of a run")


def isa(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab isa`."""
    command.add_argument("name", metavar="NAME", nargs="?", help="an instruction: operands, limits, meaning")


def graph(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab graph`."""
    add = command.add_argument
    add("file", metavar="FILE", type=Path, help="StableHLO (text, bytecode, a jax.export), or what this prints")
    shown = command.add_mutually_exclusive_group()
    shown.add_argument("--locations", action="store_true", help="with the lines of the source that each op is from")
    shown.add_argument("--stablehlo", action="store_true", help="print a module of StableHLO")
    shown.add_argument("--verify", action="store_true", help="print only that no rule is broken, and sizes")


def program(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab program`."""
    add = command.add_argument
    add("--target", metavar="NAME", help="what to compile for; of a program's text default: what it says")
    add("--precision", choices=("bf16", "fp32"), help="of matmul operands; default: $TRNLAB_PRECISION or bf16")
    add("--verify", action="store_true", help="print only that no rule is broken, and sizes")
    add(
        "file", metavar="FILE", type=Path, help="what `trnlab graph` takes, or a program or routine that this printed"
    )


def lint(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab lint`."""
    add = command.add_argument
    add("--target", metavar="NAME", help="the chip to lint for, e.g. trn2; default: that of kernels")
    add("--json", action="store_true", help="the findings as JSON")
    add("--strict", action="store_true", help="fail for warnings, too")
    add("files", metavar="FILE", type=Path, nargs="+")


def validate(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab validate`."""
    command.add_argument("--json", action="store_true", help="the same as JSON, times in seconds")
    command.add_argument("--only", metavar="TEXT", help="only measurements whose name contains this")
    command.add_argument("--sources", metavar="DIR", type=Path, help="time kernels now, from their sources in DIR")
    command.add_argument(
        "--fetch-list", metavar="DIR", type=Path, help="print the git commands that put these sources into DIR"
    )
    command.add_argument(
        "--readings", action="store_true", help="what profiles say of the figures of trn2 that were read off them"
    )
    command.add_argument(
        "--record",
        action="store_true",
        help="with --sources or --readings: keep it as what the package shows",
    )
    command.add_argument("--schedule", metavar="NAME", help="what the compiler decides, as for trnlab run")
    command.add_argument("--band", action="store_true", help="with --sources: under the policy's alternatives, too")
    cache_options(command, "record and time everything anew")
