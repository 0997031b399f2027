# SPDX-License-Identifier: Apache-2.0
"""`trnlab program`."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

from trnlab import chips
from trnlab.chips.spec import Chip
from trnlab.cli.graph import counted, graphs
from trnlab.program import Program, Routine
from trnlab.program.parse import parse_program, parse_routine
from trnlab.program.text import program_text, routine_text
from trnlab.program.verify import verify_program, verify_routine
from trnlab.runtime.device import compile_graph
from trnlab.runtime.script import contents
from trnlab.runtime.session import from_settings
from trnlab.runtime.settings import Settings

_OURS = re.compile(rb"\s*(program|routine)\s+@")


def arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab program`."""
    add = command.add_argument
    add("--target", metavar="NAME", help="what to compile for; of a program's text default: what it says")
    add("--precision", choices=("bf16", "fp32"), help="of matmul operands; default: $TRNLAB_PRECISION or bf16")
    add("--verify", action="store_true", help="print only that no rule is broken, and sizes")
    add(
        "file", metavar="FILE", type=Path, help="what `trnlab graph` takes, or a program or routine that this printed"
    )


def main(args: argparse.Namespace) -> int:
    """Read a program, or compile the graphs of a file, check what that gives, and print it, or with --verify only how
    large it is."""
    for found in _programs(args):
        chip = _chip(args, found.target)
        if isinstance(found, Program):
            verify_program(found, chip)
            print(_summary(found) if args.verify else program_text(found))
        else:
            verify_routine(found, chip)
            print(_summary_of_routine(found) if args.verify else routine_text(found))
    return 0


def _programs(args: argparse.Namespace) -> list[Program | Routine]:
    """What the file holds in trnlab's own text, else what its graphs are compiled to."""
    data = contents(args.file)
    written = _OURS.match(data)
    if written is None:
        session = from_settings(Settings.resolved(os.environ, args))
        return [compile_graph(graph, session).program for graph in graphs(args.file, data)]
    source, chip = data.decode("utf-8", "replace"), _chip(args, "") if args.target else None
    parse = parse_program if written[1] == b"program" else parse_routine
    return [parse(source, chip=chip, name=str(args.file))]


def _chip(args: argparse.Namespace, named: str) -> Chip:
    """The chip whose rules hold: that of --target, else the one that the program is for."""
    return chips.target(args.target).chip if args.target else chips.get(named)


def _summary(program: Program) -> str:
    counts = (
        (len(program.routines), "routine"),
        (len(program.calls), "call"),
        (program.num_instructions, "instruction"),
    )
    return (
        f"program {program.name} for {program.target}: {', '.join(counted(*count) for count in counts)}, "
        f"{program.hbm_bytes:,} bytes of HBM between calls; no rule is broken"
    )


def _summary_of_routine(routine: Routine) -> str:
    return (
        f"routine {routine.name} for {routine.target}: {counted(len(routine), 'instruction')}, "
        f"{routine.sbuf_bytes:,} bytes of SBUF in each partition; no rule is broken"
    )
