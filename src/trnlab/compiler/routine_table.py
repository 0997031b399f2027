# SPDX-License-Identifier: Apache-2.0
"""The routines of a program that is being assembled: by what they are known, how each is recorded, and the calls of
them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from trnlab import stacks
from trnlab.chips.spec import Chip
from trnlab.compiler.ahead import SecondRecorder
from trnlab.compiler.fusing.groups import GroupKind
from trnlab.compiler.fusing.packing import Unit, label
from trnlab.compiler.fusing.signature import Signature, is_awaited, ports_of, signature, sources
from trnlab.compiler.in_place import _read
from trnlab.compiler.lowerings.context import Lowering
from trnlab.compiler.lowerings.forms import LOWERINGS
from trnlab.compiler.lowerings.row_epilogue import needs_rows
from trnlab.compiler.lowerings.rows import CHUNKS
from trnlab.compiler.lowerings.units import record
from trnlab.compiler.memory_table import MemoryTable, memory_shape
from trnlab.compiler.ordering import LEAST, in_sooner_order
from trnlab.compiler.siblings import need_all_of_sbuf
from trnlab.errors import CapacityError, UnsupportedOpError
from trnlab.graph.ir import Value
from trnlab.kernels.residence import Home, keep, of
from trnlab.program import AP, Builder, Call, Routine
from trnlab.program.digest import written_buffers
from trnlab.program.transforms import moved, renamed

Known = dict[Any, Any]  # routines by what they do, and groups by the options that they depend on
OF_PRODUCTS = ("few_rows", "blockings")  # options that decide how groups of PRODUCTS are recorded
PRODUCTS = (GroupKind.DOT, GroupKind.SCATTER, GroupKind.GROUPED)
LONG = 1 << 23  # elements that a call reads


class PlannedRoutine(NamedTuple):
    """A routine that a unit needs, and how it is recorded where nobody has it. kept: by what it is found among
    those that other programs of the graph have."""

    key: Signature
    kept: Signature
    make: Callable[[], Routine]
    addresses: tuple[int, ...]  # of what stays in SBUF beside it
    room: int  # bytes of SBUF for it and others


class RoutineTable(MemoryTable):
    """Groups of a partitioned graph and the routines that compute them. chosen: values of `choices.CHOICES`."""

    chip: Chip
    chosen: Mapping[str, str]
    known: Known
    second: SecondRecorder
    routines: dict[Signature | str, int]
    kept: dict[Signature, Signature]

    def _stores(self, unit: Unit) -> list[set[Value]]:
        """What each group of a unit stores."""
        return [self.stores_of[g] for g in unit]

    def _names(self, unit: Unit) -> list[str]:
        """What the parameters of a unit's routine are called."""
        ports = (v for g in unit for v in ports_of(g, self.part, self.stores_of[g]))
        return [self._name(v) for v in ports if self._home(v) is None]

    def _name(self, value: Value) -> str:
        return value.name or f"t{self.tensor_of[value]}"

    def _half(self, taken: int) -> int:
        """Half of SBUF less what is taken of it."""
        return (self.chip.sbuf.usable_bytes_per_partition - taken) // 2 // 64 * 64

    def _signatures(self, unit: Unit, stores: Sequence[set[Value]]) -> Signature:
        """What a unit's routine does, and the choices that decide how."""
        decides = (*OF_PRODUCTS, "order") if unit[0].kind is GroupKind.ATTENTION else OF_PRODUCTS
        how = tuple(self.chosen[name] for name in decides)
        return (*(signature(g, self.part, s) for g, s in zip(unit, stores)), how)

    def _know(self, key: Signature, make: Callable[[], Routine]) -> None:
        """Have the routine of a key."""
        if key not in self.known:
            self.known[key] = self.second.take(key) or make()

    def _alone(self, unit: Unit) -> PlannedRoutine:
        """How a unit is recorded that has SBUF for itself."""
        stores = self._stores(unit)
        key, make = self._signatures(unit, stores), partial(self._lower, unit, stores)
        # of other programs, what is recorded of the same ops of the graph: it has the same lines, too
        kept = key if any(g.kind in PRODUCTS for g in unit) else (*key[:-1], *map(sources, unit))
        kept = self.kept.setdefault(key, kept)  # those of the first unit of a kind
        return PlannedRoutine(key, kept, make, (), self.chip.sbuf.usable_bytes_per_partition)

    def _beside_residents(self, unit: Unit, banks: int | None = None) -> list[PlannedRoutine]:
        """What a unit needs beside what stays in SBUF: within half of what that leaves, or all.
        `banks`: as `_lower` has it."""
        usable = self.chip.sbuf.usable_bytes_per_partition
        stores, room = self._stores(unit), self.residence.first if self.residence is not None else usable
        signatures = self._signatures(unit, stores)
        ports = [v for g, s in zip(unit, stores) for v in ports_of(g, self.part, s)]
        homes = {v: home for v in ports if (home := self._home(v)) is not None}
        places = tuple(replace(homes[v], address=0) if v in homes else None for v in ports)
        addresses = tuple(h.address for h in homes.values())
        found = []
        halves = () if need_all_of_sbuf(unit, self.part, self.chip) else (self._half(usable - room),)
        for limit in (*halves, room):
            make = partial(self._lower, unit, stores, (limit,), homes, banks, limit < room)
            key = (*signatures, limit, banks, places)
            found.append(PlannedRoutine(key, key, make, addresses, room))
        return found

    def _at_home(self, planned: PlannedRoutine) -> Routine | None:
        """A routine whose tiles begin at the first byte of SBUF, with what stays there where it does; None where it
        has too little room."""
        try:
            self._know(planned.kept, planned.make)
        except CapacityError:
            return None
        routine: Routine = self.known[planned.kept]
        residents = [b.id for b in routine.buffers if b.kind == "resident"]
        places = dict(zip(residents, planned.addresses, strict=True))
        return moved(routine, places, self.chip) if places else routine

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
            routine = self._ordered(key, routine)
            self.routines[key] = len(self.code)
            self.code.append(routine if places else renamed(routine, self._names(unit)))
        return self.routines[key]

    def _ordered(self, key: Signature, routine: Routine) -> Routine:
        """A routine of some key in the order in which it is executed."""
        if self.chosen["order"] == stacks.RECORDED or len(routine) < LEAST:
            return routine
        known = "ordered", *key
        if known not in self.known:
            self.known[known] = in_sooner_order(routine, self.chip)
        found: Routine = self.known[known]
        return found

    def _call_of(self, unit: Unit, routine: int, base: int) -> Call:
        ports = (v for g in unit for v in ports_of(g, self.part, self.stores_of[g]))
        args = [self.tensor_of[v] for v in ports if self._home(v) is None]
        purpose = str(unit[0].anchor.attrs["purpose"]) if unit[0].kind is GroupKind.COLLECTIVE else ""
        return Call(routine, tuple(args), base, label(unit), unit[0].ops[0].loc, purpose=purpose)

    def _lower(
        self,
        unit: Unit,
        stores: list[set[Value]],
        limits: Sequence[int] = (),
        homes: Mapping[Value, Home] = MappingProxyType({}),
        banks: int | None = None,
        may_have_more: bool = False,
    ) -> Routine:
        """The first form that fits, within half of SBUF if possible, so that neighbouring calls overlap.

        Convolutions, and loops over very long rows, gain more by having all of it. limits: bytes of SBUF that it may
        have instead, the best first. homes: of the tensors that stay in SBUF beside them. banks: of
        PSUM that it may have, all by default. may_have_more: there is an attempt with more of SBUF after this one,
        for which another form is no match.

        Raises CapacityError, with the user's line, when none does.
        """
        usable = self.chip.sbuf.usable_bytes_per_partition
        first = unit[0]
        alone = first.kind in (GroupKind.CONVOLUTION, GroupKind.POOL) or (
            first.kind is GroupKind.ROWS and (first.cols or 0) > CHUNKS[0]
        )
        long = len(unit) == 1 and alone and sum(v.type.size for v in _read(first)) >= LONG
        long = long or need_all_of_sbuf(unit, self.part, self.chip) or needs_rows(first)
        forms = [form for form, applies in LOWERINGS[unit[0].kind] if applies(unit[0], self.chosen)]
        limits = limits or ((usable,) if long else (self._half(0), usable))
        tries = self.chosen["order"] == stacks.SCHEDULED  # or takes what is first
        for form in forms[:1] if may_have_more and tries else forms:
            for limit in limits:
                more = tries and (may_have_more or limit < limits[-1])
                try:
                    return self._build(unit, stores, limit, form, homes, banks, more)
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
        banks: int | None,
        may_have_more: bool,
    ) -> Routine:
        b = Builder(label(unit), self.chip, sbuf_limit=limit, banks=banks)
        b.may_have_more = may_have_more
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
