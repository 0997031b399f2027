# SPDX-License-Identifier: Apache-2.0
"""The compiler from end to end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import accumulate
from types import MappingProxyType
from typing import Any

import numpy as np

from trnlab import stacks
from trnlab.chips.spec import Chip
from trnlab.collector import collector_paused
from trnlab.compiler import loops, passes
from trnlab.compiler.ahead import SecondRecorder
from trnlab.compiler.analysis.selection import SelectionRule
from trnlab.compiler.analysis.strided import resolve_views
from trnlab.compiler.choices import RULES
from trnlab.compiler.communication import ExecutionWorld, filled, shifted, world_of
from trnlab.compiler.fusing.duplicates import merge_duplicates
from trnlab.compiler.fusing.fusion import Partition
from trnlab.compiler.fusing.groups import FusionGroup, GroupKind
from trnlab.compiler.fusing.packing import InterleavedUnit, Unit, pack
from trnlab.compiler.fusing.rematerialize import rematerialize
from trnlab.compiler.fusing.signature import Signature, ports_of
from trnlab.compiler.fusing.tiles import exact_converts
from trnlab.compiler.fusing.updates import join_updates
from trnlab.compiler.interleaving import BANKS, Interleaved, interleave, interleave_units
from trnlab.compiler.lowerings.row_epilogue import needs_rows
from trnlab.compiler.passes import FINISH, run_passes, with_chip
from trnlab.compiler.progress import counted
from trnlab.compiler.residence import FOREIGN, SbufRing, settle
from trnlab.compiler.routine_table import OF_PRODUCTS, Known, PlannedRoutine, RoutineTable
from trnlab.compiler.row_epilogues import join_row_loops
from trnlab.compiler.siblings import join_siblings
from trnlab.compiler.supported import select_rules
from trnlab.errors import CapacityError, UnsupportedOpError
from trnlab.fabric.cluster import CORES_PER_RANK
from trnlab.graph.collectives import has_collectives
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.loops import Body
from trnlab.program import Call, Program, ProgramTensor, Routine
from trnlab.program.callee import KernelCallee
from trnlab.program.communication import collective_of
from trnlab.program.transforms import ends_in, own_bytes, renamed

Array = np.ndarray[Any, Any]
LATE = ("overlap", "siblings", "interleaving", "order", *OF_PRODUCTS)  # options that groups do not depend on
# Elements that a second process's share of the calls reads; with fewer, a copy of a process takes longer.
LONG_RECORDING = 1 << 24


def compile(graph: Graph, chip: Chip, options: Mapping[str, Any], known: Known | None = None) -> Program:
    """The program that computes `graph` on one core of `chip`.

    options: "precision": "fp32" (as the framework says) or "bf16" (see `precision`). Of a graph with collectives:
    "cluster" and "ranks" that execute it; "overlap", see `communication`; "bucket_mib", see `collectives`.
    "fusion" and "attention": as another compiler has them, see `stacks.Stack`.
    known: routines of this graph, on this chip and in this precision, that were made with other options of
    communication or other choices, and its groups where they differ in `LATE` alone; what is missing is added.
    Raises CapacityError for what does not fit on chip, UnsupportedOpError for what has no lowering.
    """
    known = {} if known is None else known
    with collector_paused():
        assembly = assembled(graph, chip, options, known)
        try:
            return assembly.program()
        except CapacityError:
            if not any(map(needs_rows, assembly.groups)):
                raise
        return assembled(graph, chip, {**options, "rows": stacks.APART}, known).program()


def assembled(
    graph: Graph,
    chip: Chip,
    options: Mapping[str, Any],
    known: Known,
    kind: type[Assembly] | None = None,
) -> Assembly:
    """What becomes the program of `compile`, of another `kind` where one is given."""
    key = "groups", graph, repr(sorted((name, value) for name, value in options.items() if name not in LATE))
    if key not in known:
        copied, options = graph.copy(), with_chip(options, chip)
        run_passes(copied, options, passes.PASSES)
        known[key] = (kind or Assembly)(copied, chip, select_rules(copied, chip), chosen=_chosen(options))
    pristine: Assembly = known[key]
    assembly = pristine.afresh(_chosen(options))
    assembly.world = world_of(options) if has_collectives(assembly.graph) else ExecutionWorld()
    assembly.known = known
    return assembly


def _chosen(options: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(options.get(name, rule)) for name, rule in RULES.items()}


class Assembly(RoutineTable):
    """A canonical graph on its way to a program. around: of a loop's round, the assembly of the loop; they share
    their routines. chosen: values of `choices.CHOICES`."""

    def __init__(
        self,
        graph: Graph,
        chip: Chip,
        rules: Mapping[Op, SelectionRule],
        tapped: Iterable[Value] = (),
        around: Assembly | None = None,
        chosen: Mapping[str, str] = MappingProxyType(RULES),
    ) -> None:
        self.graph, self.chip, self.chosen = graph, chip, chosen
        operators = chosen["fusion"] == stacks.OPERATORS
        # cores that share a call share no SBUF; an attention beside a product is divided worse than each of them
        self.shared = chip.name in CORES_PER_RANK
        self._partition(rules, tapped, operators)
        self.groups = self.part.ordered()
        self.cols = [group.cols for group in self.groups]
        self.stores = self._stored_values() | self.probed
        self.stores_of: dict[FusionGroup, set[Value]] = {group: set() for group in self.groups}
        for value in self.stores:
            self.stores_of[self.part.owner[value]].add(value)
        for group in self.groups:
            if group.kind in (GroupKind.ROWS, GroupKind.DOT):
                group.exact = exact_converts(group, self.stores)
        self.stays = chosen["residence"] == "stay" and not operators and not self.shared
        # whether all calls lie behind each other in SBUF: loops that gain by having all of it take turns at halves
        self.in_ring = chosen["sbuf"] == "ring" and not any(
            group.kind in (GroupKind.CONVOLUTION, GroupKind.POOL) for group in self.groups
        )
        self.spoilt: set[int] = set()
        self._begin(around)
        self.world = ExecutionWorld()
        self.known: Known = {} if around is None else around.known

    def _partition(self, rules: Mapping[Op, SelectionRule], tapped: Iterable[Value], operators: bool) -> None:
        """Put every op into a group. operators: as of `Partition`."""
        looks, copies = resolve_views(self.graph)
        with_epilogues, joined = self.chosen["convolutions"] == "with", self.chosen["rows"] == stacks.JOINED
        self.part = Partition(self.graph, looks, copies, rules, operators, with_epilogues)
        self.part.form()
        join_updates(self.part)
        if joined and not operators:
            join_row_loops(self.part, self.chip, self.chosen["residence"] == "stay" and not self.shared)
        merge_duplicates(self.part)
        self.probed = {root for v in tapped if self._storable(root := self.part.root(v))}
        if joined and not operators:
            rematerialize(self.part, {self.part.root(v) for v in self.graph.outputs} | self.probed)

    def _begin(self, around: Assembly | None = None) -> None:
        """Nothing is assembled yet, but the routines of what is around it."""
        self._name_nothing()
        self.routines: dict[Signature | str, int] = {} if around is None else around.routines
        self.code: list[Routine] = [] if around is None else around.code
        self.kept: dict[Signature, Signature] = {} if around is None else around.kept
        self.second = SecondRecorder({})
        self.settled: set[int] = set()  # calls that have their place in SBUF
        self.ring = SbufRing()

    def afresh(self, chosen: Mapping[str, str]) -> Assembly:
        """The same groups, of which nothing is assembled yet; with other values of the choices in `LATE`."""
        other = copy(self)
        other.chosen = chosen
        for group, cols in zip(self.groups, self.cols):
            group.cols = cols  # which recording has fixed
        other.spoilt = set()
        other._begin()
        return other

    def program(self) -> Program:
        """All calls in order, and all tensors in their places."""
        calls = self.calls(resident=True)
        self._take_halves(calls)
        peak = self._place(calls)
        ids = [self.tensor_of[v] for v in self.graph.inputs], [self.tensor_of[v] for v in self.graph.outputs]
        return Program(
            self.graph.name,
            self.chip.name,
            tuple(self.code),
            tuple(self.tensors),
            tuple(calls),
            tuple(ids[0]),
            tuple(ids[1]),
            self.constants,
            peak,
            self.world.cluster,
            self.world.ranks,
            self.world.waits,
        )

    def _take_halves(self, calls: list[Call]) -> None:
        """Have calls take turns at both halves of SBUF, so that each loads while the one before computes. One that
        needs all of it finds the upper half free."""
        half = self._half(0)
        fits = [self.code[call.routine].sbuf_bytes <= half for call in calls]
        computing = [i for i, call in enumerate(calls) if collective_of(self.code[call.routine]) is None]
        turns = list(accumulate(not calls[i].concurrent for i in computing))  # those beside each other are one
        upper, whole = {}, 0
        for i, turn in zip(reversed(computing), reversed(turns)):
            if not fits[i]:
                whole = turn - 1
            upper[i] = (turn - whole) % 2 == 1 if whole else turn % 2 == 0
        for i in computing:
            if upper[i] and fits[i] and i not in self.settled:
                calls[i] = replace(calls[i], sbuf_base=half)

    def calls(self, resident: bool = False) -> list[Call]:
        """All calls in order. resident: whether tensors may stay in SBUF between them."""
        packed = pack(self.groups, self.part)
        if self.chosen["siblings"] == stacks.JOINED:
            packed = join_siblings(packed, self.part, self.chip)
        units = filled(shifted(packed, self.part, self.world), self.part, self.world)
        if self.chosen["interleaving"] == stacks.INTERLEAVED and not self.shared:
            units = interleave_units(units, self.part)
        if resident and self.stays:
            self.residence = settle(self.part, units, self._may_stay(), self.chip, self.spoilt)
        self._name_tensors(units)
        planned = [self._planned(i, unit) for i, unit in enumerate(units)]
        self.second = SecondRecorder(self._recordings(units, planned))
        try:
            return self._in_order(units, planned, resident)
        finally:
            self.second.close()

    def _in_order(self, units: Sequence[Unit], planned: Sequence[list[PlannedRoutine]], resident: bool) -> list[Call]:
        calls: list[Call] = []
        for i, unit in counted(list(enumerate(units))):
            together, left = None, [(unit, planned[i])]
            if isinstance(unit, InterleavedUnit):
                together, parts = self._interleaved(unit, planned[i])
                left = [(part, self._planned(i, part)) for part in parts]
            for each, how in left:
                try:
                    self._add_calls(calls, i, each, how)
                except CapacityError:
                    if not self._meets(i)[0]:
                        raise
                    self.spoilt.add(i)
                    self.second.close()
                    self._begin()
                    return self.calls(resident)
            if together is not None:
                self.settled.add(len(calls))
                calls.append(together)
        return calls

    def _add_calls(self, calls: list[Call], i: int, unit: Unit, planned: Sequence[PlannedRoutine]) -> None:
        """Append the calls of a unit, or of a part of the unit of that number."""
        meets, in_ring = self._meets(i)
        if not (meets or in_ring) or unit[0].kind in (GroupKind.COLLECTIVE, *FOREIGN):
            calls += self._calls(unit, planned)
            return
        calls.append(self._call_in_ring(unit, planned))
        self.settled.add(len(calls) - 1)

    def _planned(self, i: int, unit: Unit) -> list[PlannedRoutine]:
        """The routines that the unit of that number may get, the first before the others; or those of its parts."""
        if unit[0].kind in FOREIGN:
            return []
        if isinstance(unit, InterleavedUnit):
            attention = unit.parts[0]
            beside = (self._beside_residents(part, BANKS[part is not attention])[0] for part in unit.parts)
            return [*(self._planned(i, part)[0] for part in unit.parts), *beside]
        alone = unit[0].kind is GroupKind.COLLECTIVE or not self._meets(i)[0]
        return [self._alone(unit)] if alone else self._beside_residents(unit)

    def _interleaved(
        self, unit: InterleavedUnit, planned: Sequence[PlannedRoutine]
    ) -> tuple[Call | None, list[Unit]]:
        """The call of the parts that gain by it, and those that are left."""
        attention, *products = unit.parts
        key = "interleaved", self.chosen["order"], *((*each.key, *each.addresses) for each in planned)
        if key not in self.known:
            self.known[key] = self._interleaved_of(unit, planned, key)
        found: Interleaved = self.known[key]
        left = [product for n, product in enumerate(products) if n not in found.products]
        if found.routine is None:
            return None, [*left, attention]
        together = InterleavedUnit([attention, *(products[n] for n in found.products)])
        self.ring.fill(*ends_in(found.routine))
        if key not in self.routines:
            self.routines[key] = len(self.code)
            self.code.append(renamed(found.routine, self._names(together)))
        return self._call_of(together, self.routines[key], 0), left

    def _interleaved_of(
        self, unit: InterleavedUnit, planned: Sequence[PlannedRoutine], key: Signature
    ) -> Interleaved:
        """What becomes of an attention and products, whose routines are planned alone and with BANKS."""
        made, parts = [self._at_home(each) for each in planned], len(unit.parts)
        alone, beside = made[:parts], made[parts:]
        alone = [r and self._ordered((*p.key, *p.addresses), r) for r, p in zip(alone, planned)]
        base = self._half(self.chip.sbuf.usable_bytes_per_partition - planned[-1].room)
        ordered = self.chosen["order"] == stacks.SCHEDULED
        return interleave(alone, beside, base, self.chip, ordered)

    def _recordings(
        self, units: Sequence[Unit], planned: Sequence[list[PlannedRoutine]]
    ) -> dict[Signature, Callable[[], Routine]]:
        """What has to be recorded, in order, where that takes long; of what may need several attempts, the first."""
        found: dict[Signature, Callable[[], Routine]] = {}
        sizes: list[int] = []
        for unit, attempts in zip(units, planned):
            if unit[0].kind in (GroupKind.COLLECTIVE, *FOREIGN):
                continue
            for attempt in attempts if isinstance(unit, InterleavedUnit) else attempts[:1]:
                if attempt.kept not in found and attempt.kept not in self.known:
                    found[attempt.kept] = attempt.make
                    pairs = zip(unit, self._stores(unit))
                    sizes.append(sum(v.type.size for g, stored in pairs for v in ports_of(g, self.part, stored)))
        return found if sum(sizes) - max(sizes, default=0) >= LONG_RECORDING else {}

    def _meets(self, i: int) -> tuple[bool, bool]:
        """Whether the unit of that number meets tensors that stay in SBUF, and whether calls lie in a ring there."""
        found = self.residence
        return found is not None and found.meets[i], found is not None and self.in_ring

    def _may_stay(self) -> list[Value]:
        """Values that are in memory between two calls, and nowhere seen."""
        seen = {*self.graph.outputs, *self.probed}
        return [v for g in self.groups for op in g.ops for v in op.results if v in self.stores and v not in seen]

    # -- routines -----------------------------------------------------------------------------------------------
    def _calls(self, unit: Unit, planned: Sequence[PlannedRoutine]) -> Iterable[Call]:
        of: dict[GroupKind, Callable[[Op], Iterable[Call]]] = {
            GroupKind.LOOP: self._calls_of_loop,
            GroupKind.CALL: self._calls_of_kernel,
        }
        kind = unit[0].kind
        if kind in of:
            return of[kind](unit[0].anchor)
        self._know(planned[0].kept, planned[0].make)
        return [self._call_of(unit, self._placed(unit, planned[0], 0), 0)]

    def _calls_of_loop(self, op: Op) -> Iterable[Call]:
        """Those of all rounds; a round is an assembly of its own."""
        body: Body = op.attrs["body"]
        body = replace(body, graph=body.graph.copy(), _memo={})
        run_passes(body.graph, {}, FINISH)
        inner = Assembly(body.graph, self.chip, select_rules(body.graph, self.chip), around=self, chosen=self.chosen)
        round_ = loops.Round(inner.calls(), inner.tensors, inner.tensor_of)
        operands = [loops.ByteRange(self.tensor_of.get(self.part.root(v), -1)) for v in op.operands]
        results = [loops.ByteRange(self.tensor_of[v]) for v in op.results]

        def own(tensor: int) -> int:
            return self._own_memory(inner.tensors[tensor], inner.constants.get(tensor))

        def spare(index: int) -> int:
            return self._own_memory(self.tensors[results[index].tensor], None)

        return loops.calls_of(body, round_, operands, results, own, spare)

    def _call_in_ring(self, unit: Unit, planned: Sequence[PlannedRoutine]) -> Call:
        """The call of a unit beside what stays in SBUF. Calls lie one behind the other there and begin anew at its
        end, so that what the next ones load waits for none of the last.

        Raises CapacityError where it is too little, or for a kernel that has to move what stays.
        """
        for each in planned:
            try:
                self._know(each.kept, each.make)
            except CapacityError as error:
                failure = error
                continue
            spread = own_bytes(self.known[each.kept])
            base = self.ring.place((*each.key, *each.addresses), spread, each.room)
            return self._call_of(unit, self._placed(unit, each, base), base)
        raise failure

    def _calls_of_kernel(self, op: Op) -> Iterable[Call]:
        """Its calls as they are, one for each core, whose tensors are bound to the op's operands and results."""
        callee: KernelCallee = op.attrs["callee"]
        program = callee.program
        if program.target != self.chip.name:
            raise UnsupportedOpError(
                f"kernel {callee.name!r} was recorded for another chip",
                code="TRN206",
                where=op.loc,
                chip=self.chip.name,
                got=program.target,
                remedy="record it without a chip of its own",
            )
        bound = [self._bound(op, callee, tensor) for tensor in program.tensors]
        for call in program.calls:
            index = self.routines.setdefault(f"{callee.digest}, {call.place}", len(self.code))
            if index == len(self.code):
                self.code.append(program.routines[call.routine])
            args = tuple(bound[tensor] for tensor in call.args)
            yield replace(call, routine=index, args=args, loc=op.loc)

    def _bound(self, op: Op, callee: KernelCallee, tensor: ProgramTensor) -> int:
        """What a tensor of a kernel is in this program."""
        kind, i = callee.tensors[tensor.id]
        if kind in ("operand", "result"):
            return self.tensor_of[self.part.root(op.operands[i]) if kind == "operand" else op.results[i]]
        return self._own_memory(tensor, callee.constants[i] if kind == "constant" else None)
