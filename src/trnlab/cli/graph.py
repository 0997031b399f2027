# SPDX-License-Identifier: Apache-2.0
"""`trnlab graph`, and the graphs that a file holds, which `trnlab program` compiles."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from trnlab.graph.ir import Graph
from trnlab.graph.parse import parse
from trnlab.graph.stablehlo import to_stablehlo
from trnlab.graph.text import to_text
from trnlab.graph.verify import verify
from trnlab.runtime.script import contents

_OURS = re.compile(rb"(?:\s|//[^\n]*\n)*graph\s*@")


def arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab graph`."""
    add = command.add_argument
    add("file", metavar="FILE", type=Path, help="StableHLO (text, bytecode, a jax.export), or what this prints")
    shown = command.add_mutually_exclusive_group()
    shown.add_argument("--locations", action="store_true", help="with the lines of the source that each op is from")
    shown.add_argument("--stablehlo", action="store_true", help="print a module of StableHLO")
    shown.add_argument("--verify", action="store_true", help="print only that no rule is broken, and sizes")


def main(args: argparse.Namespace) -> int:
    """Read the graphs of a file, check them, and print them, or with --verify only what each is."""
    for graph in graphs(args.file, contents(args.file)):
        if args.verify:
            print(summary(graph))
        elif args.stablehlo:
            print(to_stablehlo(graph), end="")
        else:
            print(to_text(graph, locations=args.locations), end="")
    return 0


def graphs(path: Path, data: bytes) -> list[Graph]:
    """The graphs of a file with this content, verified: one in trnlab's own text, or those of a module of StableHLO,
    which are several where a loop ends when the data say so.

    Raises UsageError (TRN230) for a file that is neither, GraphError for one that breaks a rule, UnsupportedOpError
    (TRN231 to TRN235) for a module that has no graph on the chip.
    """
    if _OURS.match(data):
        return [parse(data.decode("utf-8", "replace"), str(path))]
    from trnlab.frontends.stablehlo import import_module  # with jaxlib, which reads modules
    from trnlab.frontends.stablehlo.file import module

    found = list(import_module(module(path, data), path.stem).graphs())
    for graph in found:
        verify(graph)
    return found


def summary(graph: Graph) -> str:
    """One line about a graph: its name, its ops, its inputs and outputs."""
    counts = (len(graph.ops), "op"), (len(graph.inputs), "input"), (len(graph.outputs), "output")
    return f"graph {graph.name}: {', '.join(counted(*count) for count in counts)}; no rule is broken"


def counted(number: int, what: str) -> str:
    """A number of things, such as "1 op" and "2 ops"."""
    return f"{number:,} {what}{'s' * (number != 1)}"
