# SPDX-License-Identifier: Apache-2.0
"""The routines of a program that is there, as a compilation of the same graph takes them as known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trnlab.chips.spec import Chip
from trnlab.compiler.fusing.packing import Unit
from trnlab.compiler.pipeline import Assembly, Known, assembled
from trnlab.graph.ir import Graph, Value
from trnlab.program import Program, Routine


def routines_of(graph: Graph, chip: Chip, options: Mapping[str, Any], program: Program) -> Known:
    """By the signature of what each does, the routines of `program`, which `compile` made with these arguments.

    Compiling does the same every time: signatures that are met in the same order are those of the program's routines
    in their order. Nothing is recorded for it but rounds of loops.
    """

    class Numbered(Assembly):
        def _lower(self, unit: Unit, stores: list[set[Value]], *others: Any) -> Routine:
            return program.routines[len(self.code)]

    known: Known = {}
    assembled(graph, chip, options, known, Numbered).program()
    return {what: found for what, found in known.items() if isinstance(found, Routine)}
