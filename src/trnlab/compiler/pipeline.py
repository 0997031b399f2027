# SPDX-License-Identifier: Apache-2.0
"""The compiler from end to end, and its passes over the graph in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import replace
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

from trnlab import stacks
from trnlab.chips.spec import Chip
from trnlab.compiler import loops
from trnlab.compiler.analysis.selection import SelectionRule
from trnlab.compiler.analysis.strided import compute_roots, is_filled, resolve_views
from trnlab.compiler.communication import ExecutionWorld, filled, shifted, world_of
from trnlab.compiler.fusing.fusion import Partition
from trnlab.compiler.fusing.groups import FusionGroup, GroupKind, ValueClass
from trnlab.compiler.fusing.packing import Unit, label, pack
from trnlab.compiler.fusing.recompute import recompute
from trnlab.compiler.fusing.signature import Signature, ports_of, signature
from trnlab.compiler.fusing.tiles import exact_converts
from trnlab.compiler.fusing.updates import join_updates
from trnlab.compiler.in_place import _read, _reads_in_step
from trnlab.compiler.loops import prepare_loops
from trnlab.compiler.lowerings.attention import (
    fits_fused,
    lower_attention,
    lower_attention_by_blocks,
    lower_attention_by_segments,
)
from trnlab.compiler.lowerings.collective import lower_collective
from trnlab.compiler.lowerings.context import Lowering, SbufTurns
from trnlab.compiler.lowerings.convolution import lower_convolution
from trnlab.compiler.lowerings.dot import lower_dot
from trnlab.compiler.lowerings.move import lower_move
from trnlab.compiler.lowerings.pool import lower_pool
from trnlab.compiler.lowerings.rows import CHUNKS, lower_rows
from trnlab.compiler.lowerings.scatter import lower_scatter
from trnlab.compiler.placement import lifetimes_of, place
from trnlab.compiler.progress import counted
from trnlab.compiler.rewriting.canonical import canonicalize, compute_outputs, own_operands, updates_of
from trnlab.compiler.rewriting.channels import channels_first
from trnlab.compiler.rewriting.collectives import bucket_reductions, canonical_collectives
from trnlab.compiler.rewriting.composites import attention_of_stack, expand_composites
from trnlab.compiler.rewriting.legalize import legalize
from trnlab.compiler.rewriting.moments import join_moments
from trnlab.compiler.rewriting.precision import cast_loads, cast_matmuls
from trnlab.compiler.rewriting.products import sum_beside_products, sum_products
from trnlab.compiler.rewriting.recognize import recognize
from trnlab.compiler.rewriting.rounding import round_last
from trnlab.compiler.supported import select_rules
from trnlab.errors import CapacityError, UnsupportedOpError
from trnlab.graph.collectives import has_collectives
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.loops import Body
from trnlab.graph.passes import simplify
from trnlab.graph.purposes import name_purposes
from trnlab.kernels.blocks import casts_freely
from trnlab.program import Buffer, Builder, Call, Program, ProgramTensor, Routine
from trnlab.program.callee import KernelCallee
from trnlab.program.communication import collective_of
from trnlab.program.digest import written_params

Array = np.ndarray[Any, Any]
Known = dict[Any, Any]  # routines by what they do, and groups by the options that they depend on
LONG = 1 << 23  # elements that a call reads


Pass = tuple[str, Callable[[Graph, Mapping[str, Any]], object]]

# Each changes the graph in place and keeps its meaning. The first bring it into the forms that the others know; a
# loop's round goes through these, too, before what all rounds share is moved out of it.
FORMS: tuple[Pass, ...] = (
    ("purposes", lambda graph, options: name_purposes(graph)),
    ("channels-first", lambda graph, options: channels_first(graph)),
    ("expand", lambda graph, options: expand_composites(graph)),
    ("collectives", lambda graph, options: canonical_collectives(graph)),
    ("simplify", lambda graph, options: simplify(graph)),
    ("recognize", lambda graph, options: recognize(graph)),
    ("attention", lambda graph, options: attention_of_stack(graph, options)),
    ("mixed-precision", lambda graph, options: cast_matmuls(graph, to_bf16=options.get("precision") == "bf16")),
    ("canonicalize", lambda graph, options: canonicalize(graph)),
    ("simplify-again", lambda graph, options: simplify(graph)),
)
FINISH: tuple[Pass, ...] = (
    ("legalize", lambda graph, options: legalize(graph)),
    ("round-last", lambda graph, options: round_last(graph)),
    ("moments", lambda graph, options: join_moments(graph)),
    ("recompute", lambda graph, options: recompute(graph)),
    ("sum-products", lambda graph, options: sum_products(graph)),
    ("sum-beside-products", lambda graph, options: sum_beside_products(graph)),
    ("cast-loads", lambda graph, options: cast_loads(graph, bool(options.get("casting_loads")))),
    ("buckets", lambda graph, options: bucket_reductions(graph, options)),
    ("own-operands", lambda graph, options: own_operands(graph)),
    ("compute-outputs", lambda graph, options: compute_outputs(graph)),
    ("compute-roots", lambda graph, options: compute_roots(graph)),
)
PASSES: tuple[Pass, ...] = (("loops", lambda graph, options: bring_in_loops(graph, options)), *FORMS, *FINISH)

# The forms of each kind of group, the fastest first, and what a group must be like for a form.
LOWERINGS: dict[GroupKind, tuple[tuple[Callable[[Lowering], None], Callable[[FusionGroup], bool]], ...]] = {
    GroupKind.ROWS: ((lower_rows, lambda group: True),),
    GroupKind.DOT: ((lower_dot, lambda group: True),),
    GroupKind.ATTENTION: (
        (lower_attention, fits_fused),
        (lower_attention_by_segments, fits_fused),
        (lower_attention_by_blocks, lambda group: True),
    ),
    GroupKind.CONVOLUTION: ((lower_convolution, lambda group: True),),
    GroupKind.POOL: ((lower_pool, lambda group: True),),
    GroupKind.SCATTER: ((lower_scatter, lambda group: True),),
    GroupKind.MOVE: ((lower_move, lambda group: True),),
    GroupKind.COLLECTIVE: ((lower_collective, lambda group: True),),
}


def compile(graph: Graph, chip: Chip, options: Mapping[str, Any], known: Known | None = None) -> Program:
    """The program that computes `graph` on one core of `chip`.

    options: "precision": "fp32" (as the framework says) or "bf16" (see `precision`). Of a graph with collectives:
    "cluster" and "ranks" that execute it; "overlap", see `communication`; "bucket_mib", see `collectives`.
    "fusion" and "attention": as another compiler has them, see `stacks.Stack`.
    known: routines of this graph, on this chip and in this precision, that were made with other options of
    communication, and its groups where they differ in overlap alone; what is missing is added.
    Raises CapacityError for what does not fit on chip, UnsupportedOpError for what has no lowering.
    """
    return assembled(graph, chip, options, {} if known is None else known).program()


def assembled(
    graph: Graph,
    chip: Chip,
    options: Mapping[str, Any],
    known: Known,
    kind: type[Assembly] | None = None,
) -> Assembly:
    """What becomes the program of `compile`, of another `kind` where one is given."""
    key = "groups", graph, repr(sorted((name, value) for name, value in options.items() if name != "overlap"))
    if key not in known:
        copied, options = graph.copy(), with_chip(options, chip)
        run_passes(copied, options, PASSES)
        operators = options.get("fusion") == stacks.OPERATORS
        known[key] = (kind or Assembly)(copied, chip, select_rules(copied, chip), operators=operators)
    pristine: Assembly = known[key]
    assembly = pristine.afresh()
    assembly.world = world_of(options) if has_collectives(assembly.graph) else ExecutionWorld()
    assembly.known = known
    return assembly


def bring_in_loops(graph: Graph, options: Mapping[str, Any]) -> None:
    """The rounds of loops in the forms of `FORMS`, and of the loops within them."""

    def forms(body: Graph) -> None:
        run_passes(body, options, (PASSES[0], *FORMS))

    prepare_loops(graph, forms)


def run_passes(graph: Graph, options: Mapping[str, Any], passes: Iterable[Pass]) -> None:
    """Run some of the passes in order."""
    for _, run in passes:
        run(graph, options)


def with_chip(options: Mapping[str, Any], chip: Chip) -> dict[str, Any]:
    """The options of a compilation, and what passes ask about the chip: whether loads that cast run ahead of others.
    Where GpSimdE has to trigger them, they would wait behind stores."""
    return {**options, "casting_loads": casts_freely(chip)}


class Assembly:
    """A canonical graph on its way to a program. around: of a loop's round, the assembly of the loop; they share
    their routines. operators: see `Partition`."""

    def __init__(
        self,
        graph: Graph,
        chip: Chip,
        rules: Mapping[Op, SelectionRule],
        tapped: Iterable[Value] = (),
        around: Assembly | None = None,
        operators: bool = False,
    ) -> None:
        self.graph, self.chip, self.operators = graph, chip, operators
        looks, copies = resolve_views(graph)
        self.part = Partition(graph, looks, copies, rules, operators)
        self.part.form()
        join_updates(self.part)
        self.groups = self.part.ordered()
        self.probed = {root for v in tapped if self._storable(root := self.part.root(v))}
        self.stores = self._stored_values() | self.probed
        self.stores_of: dict[FusionGroup, set[Value]] = {group: set() for group in self.groups}
        for value in self.stores:
            self.stores_of[self.part.owner[value]].add(value)
        for group in self.groups:
            if group.kind is GroupKind.ROWS:
                group.exact = exact_converts(group, self.stores)
        self.tensors: list[ProgramTensor] = []
        self.tensor_of: dict[Value, int] = {}
        self.constants: dict[int, np.ndarray[Any, Any]] = {}
        self.routines: dict[Signature | str, int] = {} if around is None else around.routines
        self.code: list[Routine] = [] if around is None else around.code
        self.world = ExecutionWorld()
        self.known: Known = {} if around is None else around.known

    def afresh(self) -> Assembly:
        """The same groups, of which nothing is assembled yet."""
        other = copy(self)
        other.tensors, other.tensor_of, other.constants, other.routines, other.code = [], {}, {}, {}, []
        return other

    def program(self) -> Program:
        """All calls in order, and all tensors in their places."""
        calls = self.calls()
        half = self.chip.sbuf.usable_bytes_per_partition // 2 // 64 * 64
        computing = [i for i, call in enumerate(calls) if collective_of(self.code[call.routine]) is None]
        turns = accumulate(not calls[i].concurrent for i in computing)  # those beside each other are one
        for i, turn in zip(computing, turns):
            if turn % 2 == 0 and self.code[calls[i].routine].sbuf_bytes <= half:
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

    def calls(self) -> list[Call]:
        """All calls in order."""
        units = filled(shifted(pack(self.groups, self.part), self.part, self.world), self.part, self.world)
        self._name_tensors(units)
        return [call for unit in counted(units) for call in self._calls(unit)]

    # -- routines -----------------------------------------------------------------------------------------------
    def _calls(self, unit: Unit) -> Iterable[Call]:
        of: dict[GroupKind, Callable[[Op], Iterable[Call]]] = {
            GroupKind.LOOP: self._calls_of_loop,
            GroupKind.CALL: self._calls_of_kernel,
        }
        kind = unit[0].kind
        return of[kind](unit[0].anchor) if kind in of else [self._call(unit)]

    def _calls_of_loop(self, op: Op) -> Iterable[Call]:
        """Those of all rounds; a round is an assembly of its own."""
        body: Body = op.attrs["body"]
        body = replace(body, graph=body.graph.copy(), _memo={})
        run_passes(body.graph, {}, FINISH)
        inner = Assembly(
            body.graph, self.chip, select_rules(body.graph, self.chip), around=self, operators=self.operators
        )
        round_ = loops.Round(inner.calls(), inner.tensors, inner.tensor_of)
        operands = [loops.ByteRange(self.tensor_of.get(self.part.root(v), -1)) for v in op.operands]
        results = [loops.ByteRange(self.tensor_of[v]) for v in op.results]

        def own(tensor: int) -> int:
            return self._own_memory(inner.tensors[tensor], inner.constants.get(tensor))

        def spare(index: int) -> int:
            return self._own_memory(self.tensors[results[index].tensor], None)

        return loops.calls_of(body, round_, operands, results, own, spare)

    def _call(self, unit: Unit) -> Call:
        stores = [self.stores_of[g] for g in unit]
        key = tuple(signature(g, self.part, s) for g, s in zip(unit, stores))
        if key not in self.routines:
            self.routines[key] = len(self.code)
            if key not in self.known:
                self.known[key] = self._lower(unit, stores)
            self.code.append(self.known[key])
        args = [self.tensor_of[v] for g, s in zip(unit, stores) for v in ports_of(g, self.part, s)]
        purpose = str(unit[0].anchor.attrs["purpose"]) if unit[0].kind is GroupKind.COLLECTIVE else ""
        return Call(self.routines[key], tuple(args), 0, label(unit), unit[0].ops[0].loc, purpose=purpose)

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

    def _own_memory(self, buffer: Buffer | ProgramTensor, data: Array | None) -> int:
        """A tensor that only one call knows: a constant of its own, or scratch."""
        index = len(self.tensors)
        kind = "temp" if data is None else "constant"
        self.tensors.append(ProgramTensor(index, buffer.name, buffer.shape, buffer.dtype, buffer.nbytes, kind))
        if data is not None:
            self.constants[index] = data
        return index

    def _lower(self, unit: Unit, stores: list[set[Value]]) -> Routine:
        """The first form that fits, within half of SBUF if possible, so that neighbouring calls overlap.

        Convolutions, and loops over very long rows, gain more by having all of it.

        Raises CapacityError, with the user's line, when none does.
        """
        usable = self.chip.sbuf.usable_bytes_per_partition
        first = unit[0]
        alone = first.kind in (GroupKind.CONVOLUTION, GroupKind.POOL) or (
            first.kind is GroupKind.ROWS and (first.cols or 0) > CHUNKS[0]
        )
        long = len(unit) == 1 and alone and sum(v.type.size for v in _read(first)) >= LONG
        forms = [form for form, applies in LOWERINGS[unit[0].kind] if applies(unit[0])]
        for form in forms:
            for limit in (usable,) if long else (usable // 2 // 64 * 64, usable):
                try:
                    return self._build(unit, stores, limit, form)
                except CapacityError as error:
                    failure = error
        failure.where = failure.where or unit[0].ops[0].loc
        failure.remedy = (
            "make the tensors of this line smaller: fewer rows at once, shorter rows, or a narrower format"
        )
        raise failure

    def _build(self, unit: Unit, stores: list[set[Value]], limit: int, form: Callable[[Lowering], None]) -> Routine:
        b = Builder(label(unit), self.chip, sbuf_limit=limit)
        lowerings = []
        for group, stored in zip(unit, stores):
            ports = {}
            for value in ports_of(group, self.part, stored):
                shape = _memory_shape(value)
                ports[value] = b.param(value.name or f"t{self.tensor_of[value]}", shape, value.dtype)
            lowerings.append(Lowering(b, group, self.part, ports, stored))
        with SbufTurns(b) as turns:
            for low in lowerings:
                b.location = low.group.ops[0].loc
                if len(unit) > 1:
                    lower_rows(low, turns)
                else:
                    form(low)
        routine = b.build()
        for low in lowerings:
            _check_stored(routine, low)
        return routine

    # -- tensors ------------------------------------------------------------------------------------------------
    def _storable(self, value: Value) -> bool:
        """Whether a group computes the value in a form that it can write out: not one element among many."""
        group = self.part.owner.get(value)
        return group is not None and (
            value.type.size == group.size or group.classes.get(value) is not ValueClass.SCALAR
        )

    def _stored_values(self) -> set[Value]:
        """Values that must be in memory: read by another group, or by the user."""
        stored = {v for v in self.graph.outputs if v in self.part.owner}
        whole = (GroupKind.CALL, GroupKind.LOOP, GroupKind.COLLECTIVE)
        stored.update(v for g in self.groups if g.kind in whole for v in g.anchor.results)
        for group in self.groups:
            for op in group.ops:
                for value in op.operands:
                    root = self.part.root(value)
                    owner = self.part.owner.get(root)
                    if owner is not None and owner is not group:
                        stored.add(root)
        return stored

    def _name_tensors(self, units: list[Unit]) -> None:
        for value in self.graph.inputs:
            self._tensor(value, "input")
        in_place = self._in_place(units)
        for value in self.graph.outputs:
            if value in self.tensor_of:
                continue
            if value in in_place:
                self.tensor_of[value] = self.tensor_of[in_place[value]]
            else:
                self._tensor(value, "output")
        for group in self.groups:
            if group.kind in (GroupKind.CALL, GroupKind.LOOP):
                self._share_overwritten(group.anchor)
        for unit in units:
            for group in unit:
                for value in ports_of(group, self.part, self.stores_of[group]):
                    if value not in self.tensor_of:
                        self._constant(value) if value.op and value.op.name in ("constant", "iota") else self._tensor(
                            value, "output" if value in self.probed else "temp"
                        )

    def _share_overwritten(self, op: Op) -> None:
        """A result that starts as an operand is that operand's memory: of a copy, which nobody else reads."""
        for result, operand in updates_of(op).items():
            value = op.results[result]
            if value not in self.tensor_of:
                self._tensor(value, "temp")
            self.tensor_of[self.part.root(op.operands[operand])] = self.tensor_of[value]

    def _tensor(self, value: Value, kind: str) -> int:
        index = len(self.tensors)
        shape = _memory_shape(value)
        nbytes = prod(shape) * value.dtype.itemsize
        self.tensors.append(ProgramTensor(index, value.name or f"t{index}", shape, value.dtype, nbytes, kind))
        self.tensor_of[value] = index
        return index

    def _constant(self, value: Value) -> None:
        assert value.op is not None
        attrs = value.op.attrs
        if value.op.name == "iota":
            data = np.arange(value.shape[attrs["iota_dimension"]]).astype(value.dtype.numpy)
            index = len(self.tensors)
            self.tensors.append(ProgramTensor(index, "iota", data.shape, value.dtype, data.nbytes, "constant"))
            self.tensor_of[value] = index
        else:
            data = np.ascontiguousarray(attrs["value"]).astype(value.dtype.numpy).reshape(_memory_shape(value))
            index = self._tensor(value, "constant")
        self.constants[index] = data

    def _in_place(self, units: list[Unit]) -> dict[Value, Value]:
        """Outputs that may be written straight into the input they replace: nobody reads the old value afterwards."""
        position = {g: i for i, unit in enumerate(units) for g in unit}
        last_read: dict[Value, int] = {}
        readers: dict[Value, set[FusionGroup]] = {}
        for group in self.groups:
            for op in group.ops:
                for value in op.operands:
                    root = self.part.root(value)
                    last_read[root] = max(last_read.get(root, -1), position[group])
                    readers.setdefault(root, set()).add(group)
        found = {}
        for out, source in self.graph.aliases.items():
            value, old = self.graph.outputs[out], self.graph.inputs[source]
            writer = self.part.owner.get(value)
            if writer is None or value.type != old.type:
                continue
            before = all(position[g] < position[writer] or g is writer for g in readers.get(old, ()))
            apart = writer not in readers.get(old, ())
            if before and (apart or _reads_in_step(writer, value, old, self.part)):
                found[value] = old
        return found

    def _place(self, calls: list[Call]) -> int:
        offsets, peak = place(lifetimes_of([t for t in self.tensors if t.kind == "temp"], calls, self.code))
        self.tensors = [replace(t, address=offsets[t.id]) if t.id in offsets else t for t in self.tensors]
        return peak


def _check_stored(routine: Routine, low: Lowering) -> None:
    """Raise UnsupportedOpError where a value that is read elsewhere is never written: it must not pass as zeros."""
    written = {routine.params[position] for position in written_params(routine)}
    for value in low.stores:
        if value.type.size and low.ports[value].buffer.id not in written:
            where = value.op.loc if value.op is not None else None
            raise UnsupportedOpError(
                f"the lowering of {low.group.ops[0].name} does not write {value.type}; this is a defect of trnlab",
                code="TRN219",
                where=where,
                remedy="report it, and write the line in another way until it is mended",
            )


def _memory_shape(value: Value) -> tuple[int, ...]:
    if value.op is not None and value.op.name == "iota":
        return (value.shape[value.op.attrs["iota_dimension"]],)
    return (1,) if is_filled(value) and value.type.size else value.shape or (1,)
