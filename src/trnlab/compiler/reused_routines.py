# SPDX-License-Identifier: Apache-2.0
"""The routines of a program that is there, as a compilation of the same graph takes them as known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress, product
from types import MappingProxyType
from typing import Any

from trnlab.chips.spec import Chip
from trnlab.compiler.fusing.packing import InterleavedUnit, Unit
from trnlab.compiler.fusing.signature import Signature
from trnlab.compiler.interleaving import Interleaved
from trnlab.compiler.pipeline import Assembly, assembled
from trnlab.compiler.routine_table import Known, PlannedRoutine
from trnlab.errors import CapacityError
from trnlab.graph.ir import Graph, Value
from trnlab.kernels.residence import Home
from trnlab.program import Program, Routine
from trnlab.program.transforms import own_bytes


def routines_of(graph: Graph, chip: Chip, options: Mapping[str, Any], program: Program) -> Known:
    """By the signature of what each does, the routines of `program`, which `compile` made with these arguments.

    Compiling does the same every time: signatures that are met in the same order are those of the program's routines
    in their order. Nothing is recorded for it but rounds of loops. Where it does not come out as the program, because
    tensors that had a place in SBUF lost it again, nothing is known.
    """

    class Numbered(Assembly):
        def _lower(
            self,
            unit: Unit,
            stores: list[set[Value]],
            limits: Sequence[int] = (),
            homes: Mapping[Value, Home] = MappingProxyType({}),
            banks: int | None = None,
            may_have_more: bool = False,
        ) -> Routine:
            found = program.routines[min(len(self.code), len(program.routines) - 1)]
            residents = sum(b.kind == "resident" for b in found.buffers)
            if residents != len(homes) or (limits and own_bytes(found) > limits[0]):
                raise CapacityError(f"{found.name!r} was made otherwise", code="TRN501", where=unit[0].ops[0].loc)
            return found

        def _ordered(self, key: Signature, routine: Routine) -> Routine:
            self.known[("ordered", *key)] = routine
            return routine

        def _interleaved_of(
            self, unit: InterleavedUnit, planned: Sequence[PlannedRoutine], key: Signature
        ) -> Interleaved:
            number = self.routines.get(key, len(self.code))
            attention, *products = unit.parts
            for chosen in product((True, False), repeat=len(products)):
                parts = [attention, *compress(products, chosen)]
                if self._call_of(InterleavedUnit(parts), number, 0) in program.calls:
                    return Interleaved(program.routines[number], tuple(compress(range(len(products)), chosen)))
            return Interleaved(None, ())

    known: Known = {}
    made = assembled(graph, chip, options, known, Numbered)
    try:
        again = made.program()
    except CapacityError:  # it was compiled with other choices
        return {}
    if again.calls != program.calls or made.spoilt or len(made.code) != len(program.routines):
        return {}
    return {what: found for what, found in known.items() if isinstance(found, Routine | Interleaved)}
