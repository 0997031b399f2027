# SPDX-License-Identifier: Apache-2.0
"""The compiler from end to end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import accumulate
from types import MappingProxyType
from typing import Any, NamedTuple

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
from trnlab.compiler.fusing.packing import Unit, label, pack
from trnlab.compiler.fusing.signature import Signature, is_awaited, ports_of, signature, sources
from trnlab.compiler.fusing.tiles import exact_converts
from trnlab.compiler.fusing.updates import join_updates
from trnlab.compiler.in_place import _read
from trnlab.compiler.lowerings.context import Lowering
from trnlab.compiler.lowerings.forms import LOWERINGS
from trnlab.compiler.lowerings.rows import CHUNKS
from trnlab.compiler.lowerings.units import record
from trnlab.compiler.memory_table import MemoryTable, memory_shape
from trnlab.compiler.passes import FINISH, run_passes, with_chip
from trnlab.compiler.progress import counted
from trnlab.compiler.residence import FOREIGN, SbufRing, settle
from trnlab.compiler.siblings import join_siblings, need_all_of_sbuf
from trnlab.compiler.supported import select_rules
from trnlab.errors import CapacityError, UnsupportedOpError
from trnlab.fabric.cluster import CORES_PER_RANK
from trnlab.graph.collectives import has_collectives
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.loops import Body
from trnlab.kernels.residence import Home, keep, of
from trnlab.program import AP, Builder, Call, Program, ProgramTensor, Routine
from trnlab.program.callee import KernelCallee
from trnlab.program.communication import collective_of
from trnlab.program.digest import written_buffers
from trnlab.program.moved import moved, own_bytes, renamed

Array = np.ndarray[Any, Any]
Known = dict[Any, Any]  # routines by what they do, and groups by the options that they depend on
OF_PRODUCTS = ("few_rows", "blockings")  # options that decide how groups of PRODUCTS are recorded
PRODUCTS = (GroupKind.DOT, GroupKind.SCATTER)
LATE = ("overlap", "siblings", *OF_PRODUCTS)  # options that groups do not depend on
# Elements that a second process's share of the calls reads; with fewer, a copy of a process takes longer.
LONG_RECORDING = 1 << 24
LONG = 1 << 23  # elements that a call reads


def compile(graph: Graph, chip: Chip, options: Mapping[str, Any], known: Known | None = None) -> Program:
    """The program that computes `graph` on one core of `chip`.

    options: "precision": "fp32" (as the framework says) or "bf16" (see `precision`). Of a graph with collectives:
    "cluster" and "ranks" that execute it; "overlap", see `communication`; "bucket_mib", see `collectives`.
    "fusion" and "attention": as another compiler has them, see `stacks.Stack`.
    known: routines of this graph, on this chip and in this precision, that were made with other options of
    communication or other choices, and its groups where they differ in `LATE` alone; what is missing is added.
    Raises CapacityError for what does not fit on chip, UnsupportedOpError for what has no lowering.
    """
    with collector_paused():
        return assembled(graph, chip, options, {} if known is None else known).program()


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


class PlannedRoutine(NamedTuple):
    """A routine that a unit needs, and how it is recorded where nobody has it. kept: by what it is found among
    those that other programs of the graph have."""

    key: Signature
    kept: Signature
    make: Callable[[], Routine]
    addresses: tuple[int, ...]  # of what stays in SBUF beside it
    room: int  # bytes of SBUF for it and others


class Assembly(MemoryTable):
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
        looks, copies = resolve_views(graph)
        operators = chosen["fusion"] == stacks.OPERATORS
        self.part = Partition(graph, looks, copies, rules, operators, chosen["convolutions"] == "with")
        self.part.form()
        join_updates(self.part)
        merge_duplicates(self.part)
        self.groups = self.part.ordered()
        self.cols = [group.cols for group in self.groups]
        self.probed = {root for v in tapped if self._storable(root := self.part.root(v))}
        self.stores = self._stored_values() | self.probed
        self.stores_of: dict[FusionGroup, set[Value]] = {group: set() for group in self.groups}
        for value in self.stores:
            self.stores_of[self.part.owner[value]].add(value)
        for group in self.groups:
            if group.kind in (GroupKind.ROWS, GroupKind.DOT):
                group.exact = exact_converts(group, self.stores)
        # cores that share a call share no SBUF
        self.stays = chosen["residence"] == "stay" and not operators and chip.name not in CORES_PER_RANK
        # whether all calls lie behind each other in SBUF: loops that gain by having all of it take turns at halves
        self.in_ring = chosen["sbuf"] == "ring" and not any(
            group.kind in (GroupKind.CONVOLUTION, GroupKind.POOL) for group in self.groups
        )
        self.spoilt: set[int] = set()
        self._begin(around)
        self.world = ExecutionWorld()
        self.known: Known = {} if around is None else around.known

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
        half = self._half(0)
        computing = [i for i, call in enumerate(calls) if collective_of(self.code[call.routine]) is None]
        turns = accumulate(not calls[i].concurrent for i in computing)  # those beside each other are one
        for i, turn in zip(computing, turns):
            if turn % 2 == 0 and i not in self.settled and self.code[calls[i].routine].sbuf_bytes <= half:
                calls[i] = replace(calls[i], sbuf_base=half)
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

    def calls(self, resident: bool = False) -> list[Call]:
        """All calls in order. resident: whether tensors may stay in SBUF between them."""
        packed = pack(self.groups, self.part)
        if self.chosen["siblings"] == stacks.JOINED:
            packed = join_siblings(packed, self.part, self.chip)
        units = filled(shifted(packed, self.part, self.world), self.part, self.world)
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
            meets, in_ring = self._meets(i)
            if not (meets or in_ring) or unit[0].kind in (GroupKind.COLLECTIVE, *FOREIGN):
                calls += self._calls(unit, planned[i])
                continue
            try:
                calls.append(self._call_in_ring(unit, planned[i]))
            except CapacityError:
                if not meets:
                    raise
                self.spoilt.add(i)
                self.second.close()
                self._begin()
                return self.calls(resident)
            self.settled.add(len(calls) - 1)
        return calls

    def _planned(self, i: int, unit: Unit) -> list[PlannedRoutine]:
        """The routines that the unit of that number may get, the first before the others."""
        if unit[0].kind in FOREIGN:
            return []
        alone = unit[0].kind is GroupKind.COLLECTIVE or not self._meets(i)[0]
        return [self._alone(unit)] if alone else self._beside_residents(unit)

    def _recordings(
        self, units: Sequence[Unit], planned: Sequence[list[PlannedRoutine]]
    ) -> dict[Signature, Callable[[], Routine]]:
        """What has to be recorded, in order, where that takes long; of what may need several attempts, the first."""
        found: dict[Signature, Callable[[], Routine]] = {}
        sizes: list[int] = []
        for unit, attempts in zip(units, planned):
            if unit[0].kind in (GroupKind.COLLECTIVE, *FOREIGN):
                continue
            attempt = attempts[0]
            if attempt.kept not in found and attempt.kept not in self.known:
                found[attempt.kept] = attempt.make
                pairs = zip(unit, self._stores(unit))
                sizes.append(sum(v.type.size for g, stored in pairs for v in ports_of(g, self.part, stored)))
        return found if sum(sizes) - max(sizes, default=0) >= LONG_RECORDING else {}

    def _meets(self, i: int) -> tuple[bool, bool]:
        """Whether the unit of that number meets tensors that stay in SBUF, and whether calls lie in a ring there."""
        found = self.residence
        return found is not None and found.meets[i], found is not None and self.in_ring

    def _stores(self, unit: Unit) -> list[set[Value]]:
        """What each group of a unit stores."""
        return [self.stores_of[g] for g in unit]

    def _may_stay(self) -> list[Value]:
        """Values that are in memory between two calls, and nowhere seen."""
        seen = {*self.graph.outputs, *self.probed}
        return [v for g in self.groups for op in g.ops for v in op.results if v in self.stores and v not in seen]

    def _half(self, taken: int) -> int:
        """Half of SBUF less what is taken of it."""
        return (self.chip.sbuf.usable_bytes_per_partition - taken) // 2 // 64 * 64

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

    def _signatures(self, unit: Unit, stores: Sequence[set[Value]]) -> Signature:
        """What a unit's routine does, and the choices that decide how."""
        how = tuple(self.chosen[name] for name in OF_PRODUCTS)
        return (*(signature(g, self.part, s) for g, s in zip(unit, stores)), how)

    def _alone(self, unit: Unit) -> PlannedRoutine:
        """How a unit is recorded that has SBUF for itself."""
        stores = self._stores(unit)
        key, make = self._signatures(unit, stores), partial(self._lower, unit, stores)
        # of other programs, what is recorded of the same ops of the graph: it has the same lines, too
        kept = key if any(g.kind in PRODUCTS for g in unit) else (*key[:-1], *map(sources, unit))
        kept = self.kept.setdefault(key, kept)  # those of the first unit of a kind
        return PlannedRoutine(key, kept, make, (), self.chip.sbuf.usable_bytes_per_partition)

    def _names(self, unit: Unit) -> list[str]:
        """What the parameters of a unit's routine are called."""
        ports = (v for g in unit for v in ports_of(g, self.part, self.stores_of[g]))
        return [self._name(v) for v in ports if self._home(v) is None]

    def _name(self, value: Value) -> str:
        return value.name or f"t{self.tensor_of[value]}"

    def _know(self, key: Signature, make: Callable[[], Routine]) -> None:
        """Have the routine of a key."""
        if key not in self.known:
            self.known[key] = self.second.take(key) or make()

    def _call_of(self, unit: Unit, routine: int, base: int) -> Call:
        ports = (v for g in unit for v in ports_of(g, self.part, self.stores_of[g]))
        args = [self.tensor_of[v] for v in ports if self._home(v) is None]
        purpose = str(unit[0].anchor.attrs["purpose"]) if unit[0].kind is GroupKind.COLLECTIVE else ""
        return Call(routine, tuple(args), base, label(unit), unit[0].ops[0].loc, purpose=purpose)

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

    def _beside_residents(self, unit: Unit) -> list[PlannedRoutine]:
        """What a unit needs beside what stays in SBUF: within half of what that leaves, or all."""
        assert self.residence is not None
        stores, room, usable = self._stores(unit), self.residence.first, self.chip.sbuf.usable_bytes_per_partition
        signatures = self._signatures(unit, stores)
        ports = [v for g, s in zip(unit, stores) for v in ports_of(g, self.part, s)]
        homes = {v: home for v in ports if (home := self._home(v)) is not None}
        places = tuple(replace(homes[v], address=0) if v in homes else None for v in ports)
        addresses = tuple(h.address for h in homes.values())
        found = []
        halves = () if need_all_of_sbuf(unit, self.part, self.chip) else (self._half(usable - room),)
        for limit in (*halves, room):
            make = partial(self._lower, unit, stores, (limit,), homes)
            key = (*signatures, limit, places)
            found.append(PlannedRoutine(key, key, make, addresses, room))
        return found

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

    def _placed(self, unit: Unit, planned: PlannedRoutine, base: int) -> int:
        """The number of a routine, recorded for whatever places, with residents at these bytes where its own tiles
        begin at `base`."""
        routine: Routine = self.known[planned.kept]
        residents = [b.id for b in routine.buffers if b.kind == "resident"]
        places = dict(zip(residents, (address - base for address in planned.addresses), strict=True))
        key = (*planned.key, *places.values())
        if key not in self.routines:
            if places:
                self._know(key, partial(moved, routine, places, self.chip))
                routine = self.known[key]
            self.routines[key] = len(self.code)
            self.code.append(routine if places else renamed(routine, self._names(unit)))
        return self.routines[key]

    def _lower(
        self,
        unit: Unit,
        stores: list[set[Value]],
        limits: Sequence[int] = (),
        homes: Mapping[Value, Home] = MappingProxyType({}),
    ) -> Routine:
        """The first form that fits, within half of SBUF if possible, so that neighbouring calls overlap.

        Convolutions, and loops over very long rows, gain more by having all of it. limits: bytes of SBUF that it may
        have instead, the best first. homes: of the tensors that stay in SBUF beside them.

        Raises CapacityError, with the user's line, when none does.
        """
        usable = self.chip.sbuf.usable_bytes_per_partition
        first = unit[0]
        alone = first.kind in (GroupKind.CONVOLUTION, GroupKind.POOL) or (
            first.kind is GroupKind.ROWS and (first.cols or 0) > CHUNKS[0]
        )
        long = len(unit) == 1 and alone and sum(v.type.size for v in _read(first)) >= LONG
        long = long or need_all_of_sbuf(unit, self.part, self.chip)
        forms = [form for form, applies in LOWERINGS[unit[0].kind] if applies(unit[0])]
        for form in forms:
            for limit in limits or ((usable,) if long else (self._half(0), usable)):
                try:
                    return self._build(unit, stores, limit, form, homes)
                except CapacityError as error:
                    failure = error
        failure.where = failure.where or unit[0].ops[0].loc
        failure.remedy = (
            "make the tensors of this line smaller: fewer rows at once, shorter rows, or a narrower format"
        )
        raise failure

    def _build(
        self,
        unit: Unit,
        stores: list[set[Value]],
        limit: int,
        form: Callable[[Lowering], None],
        homes: Mapping[Value, Home],
    ) -> Routine:
        b = Builder(label(unit), self.chip, sbuf_limit=limit)
        b.follows_blockings = self.chosen["blockings"] == stacks.FOLLOWED
        lowerings = []
        kept: dict[Value, AP] = {}  # what stays in SBUF, which several groups may read
        for group, stored in zip(unit, stores):
            ports = {}
            for value in ports_of(group, self.part, stored):
                if value in homes:
                    if value not in kept:
                        kept[value] = keep(b, value.name or "resident", homes[value])
                    ports[value] = kept[value]
                    continue
                shape = memory_shape(value)
                ports[value] = b.param(self._name(value), shape, value.dtype)
                if is_awaited(value, group, self.part):
                    b.awaited.add(ports[value].buffer.id)
            lowerings.append(Lowering(b, group, self.part, ports, stored, chosen=self.chosen))
        record(b, lowerings, form)
        routine = b.build()
        for low in lowerings:
            _check_stored(routine, low)
        return routine


def _check_stored(routine: Routine, low: Lowering) -> None:
    """Raise UnsupportedOpError where a value that is read elsewhere is never written: it must not pass as zeros."""
    written = written_buffers(routine)
    for value in low.stores:
        buffer = low.ports[value].buffer
        kept = of(low.b, buffer)
        if value.type.size and (buffer if kept is None else kept.tile.buffer).id not in written:
            where = value.op.loc if value.op is not None else None
            raise UnsupportedOpError(
                f"the lowering of {low.group.ops[0].name} does not write {value.type}; this is a defect of trnlab",
                code="TRN219",
                where=where,
                remedy="report it, and write the line in another way until it is mended",
            )
