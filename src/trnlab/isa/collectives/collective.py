# SPDX-License-Identifier: Apache-2.0
"""What collectives have in common: groups of ranks, operands as flat runs of elements, the amount of work.

An engine triggers a collective and goes on; the chip's collective-communication cores and DMA engines do the rest. On
tensors in shared HBM (`joint`) both cores of a logical core take part and wait for each other; otherwise each core
meets the same core of the other ranks. Ranks that no group names pass by.

Elements count in row-major order of [P, F...], so that dimension 0 of a tensor in HBM and the partitions of a tile
concatenate and split alike; `dim` 1 is the free dimension of a tile. Sums are made in float32 in the order of the
group and rounded once (assumed: nothing is published about the order).

Sources: nki.collectives of aws-neuron/aws-neuron-sdk; neuron-runtime/explore/intranode-collective-comm.rst and
compute-comm-overlap.rst:16-20, 110-120 (who does the work).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa.alu import alu_op
from trnlab.isa.base import DMA_MEMORIES, MOVABLE, Array, Arrays, Engine, Memory, Operand, OperandSpec, Work
from trnlab.isa.collectives.meeting import CorePlace, Meeting, MeetingSide

REDUCTIONS = ("add", "min", "max")
CORES = 2  # of a logical core
DST = OperandSpec("dst", "dst", DMA_MEMORIES, rw=True, shape=("", ""), dtypes=MOVABLE)
SRC = OperandSpec("src", "src", DMA_MEMORIES, shape=("", ""), dtypes=MOVABLE)
HBM_ONLY = frozenset({Memory.HBM})
HBM_DST = OperandSpec("dst", "dst", HBM_ONLY, rw=True, shape=("", ""), dtypes=MOVABLE)
HBM_SRC = OperandSpec("src", "src", HBM_ONLY, shape=("", ""), dtypes=MOVABLE)
COMMON: Mapping[str, Any] = {"groups": ((0,),), "joint": False, "priority": None}
SAME_GROUPS = "groups: lists of ranks, as many in each, no rank twice; priority is 0..3 on chips with dma_priority"
SAME_MEMORY = "dst and src lie both in HBM or both in SBUF; joint only in HBM"


class CollectiveInstruction(Meeting):
    """A collective over groups of ranks. `grows`: elements of dst for each of src, times the ranks of a group."""

    # Triggered by SYNC in kernels (assumed; it computes nothing itself, so that what it triggers holds up nobody); in
    # compiled programs the CC cores have streams of their own (compute-comm-overlap.rst:16-20).
    engines = (Engine.SYNC, Engine.CC)
    operands: ClassVar[tuple[OperandSpec, ...]] = (DST, SRC)
    attrs: ClassVar[Mapping[str, Any]] = COMMON
    same_dtype: ClassVar[tuple[str, ...]] = ("dst", "src")
    asynchronous = True

    def sizes_fit(self, dst: int, src: int, ranks: int) -> bool:
        """Whether dst has as many elements as src and the number of ranks ask for."""
        return dst == src

    def combine(self, mine: int, sources: list[Array], arrays: Arrays, attrs: Mapping[str, Any]) -> Array:
        """What position `mine` of the group receives of the sources of all, in the order of the group."""
        raise NotImplementedError

    # -- the meeting ----------------------------------------------------------------------------------------------
    def ranks(self, attrs: Mapping[str, Any], rank: int) -> tuple[int, ...]:
        """The ranks that `rank` meets, in order; none when nobody names it."""
        found: tuple[int, ...] = next((tuple(group) for group in attrs["groups"] if rank in group), ())
        return found

    def places(self, attrs: Mapping[str, Any], here: CorePlace) -> frozenset[CorePlace]:
        """The same core of every rank of the group, or all of their cores."""
        cores = range(CORES) if attrs["joint"] else (here.core,)
        return frozenset(CorePlace(rank, core) for rank in self.ranks(attrs, here.rank) for core in cores)

    def disagreement(self, sides: Mapping[CorePlace, MeetingSide]) -> tuple[CorePlace, CorePlace, str, str] | None:
        """All bring the same shapes and formats."""
        first, *others = sides
        for place in others:
            for name in sides[first].operands:
                mine, theirs = sides[first], sides[place]
                if mine.operands[name] != theirs.operands.get(name):
                    return first, place, f"has {mine.describe(name)}", f"has {theirs.describe(name)}"
        return None

    def received(
        self, here: CorePlace, sides: Mapping[CorePlace, Arrays], attrs: Mapping[str, Any]
    ) -> dict[str, Any]:
        """All sides of this core's group, in order, and which of them is this one."""
        ranks = self.ranks(attrs, here.rank)
        return {"sides": [sides[CorePlace(rank, here.core)] for rank in ranks], "position": ranks.index(here.rank)}

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """What the group makes of all sides; dst as it was where no group names the rank."""
        given: Mapping[str, Any] = arrays
        if "sides" not in given:
            return {"dst": arrays["dst"]}
        sources = [self.brought(side, attrs) for side in given["sides"]]
        return {"dst": self.combine(given["position"], sources, arrays, attrs).reshape(arrays["dst"].shape)}

    def brought(self, side: Arrays, attrs: Mapping[str, Any]) -> Array:
        """What one side brings: its elements in order."""
        return side["src"].reshape(-1)

    # -- rules ------------------------------------------------------------------------------------------------------
    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """Groups are groups, memories and sizes agree."""
        self.check_groups(attrs, chip)
        self.check_memories(ops, attrs, chip)
        dst, src = (ops[name].partitions * ops[name].free for name in ("dst", self.operands[1].name))
        ranks = self.group_size(attrs)
        if not self.sizes_fit(dst, src, ranks):
            self.refuse(
                "dst does not have the size of the result",
                limit=self.limits[-1],
                got=f"dst of {dst} elements, src of {src}, {ranks} ranks",
                chip=chip,
                remedy="make dst as large as what all ranks give",
                code="TRN409",
            )

    def group_size(self, attrs: Mapping[str, Any]) -> int:
        """Ranks of a group."""
        return len(attrs["groups"][0])

    def span(self, attrs: Mapping[str, Any]) -> int:
        """Ranks from the first of a group to its last, at most."""
        return max(int(max(group) - min(group)) + 1 for group in attrs["groups"])

    def check_groups(self, attrs: Mapping[str, Any], chip: Chip) -> None:
        """The groups are of one size and share no rank; the class of service exists."""
        groups = attrs["groups"]
        ranks = [rank for group in groups for rank in group]
        if not ranks or len(set(ranks)) < len(ranks) or len({len(group) for group in groups}) > 1 or min(ranks) < 0:
            self.refuse(
                "no replica groups",
                limit=SAME_GROUPS,
                got=groups,
                chip=chip,
                remedy="name each rank in one group of ReplicaGroup",
                code="TRN411",
            )
        priority = attrs["priority"]
        if priority is not None and not (chip.has("dma_priority") and priority in range(4)):
            self.refuse(
                "no such class of service",
                limit="0..3 on chips with dma_priority",
                got=priority,
                chip=chip,
                remedy="leave priority out",
                code="TRN414",
            )

    def check_memories(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], chip: Chip) -> None:
        """One kind of memory, HBM where both cores take part."""
        memories = {ops[s.name].memory for s in self.operands if s.name in ops and s.name != "metadata"}
        if len(memories) > 1 or (attrs["joint"] and memories != {Memory.HBM}):
            self.refuse(
                "operands lie in different memories",
                limit=SAME_MEMORY,
                got=", ".join(sorted(m.name for m in memories)),
                chip=chip,
                remedy="copy one of them to the memory of the other first",
                code="TRN403",
            )

    # -- work -------------------------------------------------------------------------------------------------------
    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """nbytes: of the whole message. n: of it, what one core moves. m: ranks. k: cores that the group spans."""
        dst, src = ops["dst"], ops[self.operands[1].name]
        nbytes = max(op.partitions * op.free for op in (dst, src)) * src.dtype.itemsize
        cores = CORES if attrs["joint"] else 1
        span = self.span(attrs) * CORES
        return Work(
            f"collective.{self.name}",
            n=-(-nbytes // cores),
            m=self.group_size(attrs),
            k=span,
            itemsize=src.dtype.itemsize,
            dtype=src.dtype.name,
            nbytes=nbytes,
            groups=self.moving(attrs),
        )

    def moving(self, attrs: Mapping[str, Any]) -> tuple[tuple[int, ...], ...]:
        """The groups, of a permutation its pairs."""
        return tuple(tuple(int(rank) for rank in group) for group in attrs.get("pairs") or attrs["groups"])


class ReductionInstruction(CollectiveInstruction):
    """A collective that combines elements with `op`."""

    attrs: ClassVar[Mapping[str, Any]] = {**COMMON, "op": "add"}
    operands: ClassVar[tuple[OperandSpec, ...]] = (
        OperandSpec("dst", "dst", DMA_MEMORIES, rw=True, shape=("", "")),
        OperandSpec("src", "src", DMA_MEMORIES, shape=("", "")),
    )
    moves_bits = False

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """The operator is one of three."""
        check_reduction(self, attrs["op"], chip)
        super().check(ops, attrs, engine, chip)


def check_reduction(instr: CollectiveInstruction, op: str, chip: Chip) -> None:
    """Raise ConstraintError for an operator that collectives do not have."""
    if op not in REDUCTIONS:
        instr.refuse(
            "no such reduction",
            limit=", ".join(REDUCTIONS),
            got=op,
            chip=chip,
            remedy="use nl.add, nl.minimum or nl.maximum",
            code="TRN412",
        )


def reduced(sources: list[Array], op: str) -> Array:
    """All sources combined, the first with the second and so on; integers as they are, floats in float32."""
    combine = {"add": np.add, "min": np.minimum, "max": np.maximum}[alu_op(op).name]
    result = sources[0]
    for source in sources[1:]:
        result = combine(result, source)
    return result
