# SPDX-License-Identifier: Apache-2.0
"""`trnlab graph`, and the graphs that a file holds, which `trnlab program` compiles."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from trnlab.errors import UsageError
from trnlab.files import why
from trnlab.graph.ir import Graph
from trnlab.graph.parse import parse
from trnlab.graph.stablehlo import to_stablehlo
from trnlab.graph.text import to_text
from trnlab.graph.verify import verify

_OURS = re.compile(rb"(?:\s|//[^\n]*\n)*graph\s*@")


def main(args: argparse.Namespace) -> int:
    """Read the graphs of a file, check them, and print them, or with --verify only what each is."""
    for graph in graphs(args.file):
        if args.verify:
            print(summary(graph))
        elif args.stablehlo:
            print(to_stablehlo(graph), end="")
        else:
            print(to_text(graph, locations=args.locations), end="")
    return 0


def graphs(path: Path) -> list[Graph]:
    """The graphs of a file, verified: one in trnlab's own text, or those of a module of StableHLO, which are several
    where a loop ends when the data say so.

    Raises UsageError (TRN123, TRN230) for a file that cannot be read or is neither, GraphError for one that breaks
    a rule, UnsupportedOpError (TRN231 to TRN235) for a module that has no graph on the chip.
    """
    data = contents(path)
    if _OURS.match(data):
        return [parse(data.decode("utf-8", "replace"), str(path))]
    from trnlab.frontends.stablehlo import import_module  # with jaxlib, which reads modules
    from trnlab.frontends.stablehlo.file import read

    found = list(import_module(read(path), path.stem).graphs())
    for graph in found:
        verify(graph)
    return found


def contents(path: Path) -> bytes:
    """All bytes of a file. Raises UsageError (TRN123) for one that cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"{str(path)!r} cannot be read: {why(error)}", code="TRN123", remedy="check the path"
        ) from error


def summary(graph: Graph) -> str:
    """One line about a graph: its name, its ops, its inputs and outputs."""
    counts = (len(graph.ops), "op"), (len(graph.inputs), "input"), (len(graph.outputs), "output")
    return f"graph {graph.name}: {', '.join(counted(*count) for count in counts)}; no rule is broken"


def counted(number: int, what: str) -> str:
    """A number of things, such as "1 op" and "2 ops"."""
    return f"{number:,} {what}{'s' * (number != 1)}"
