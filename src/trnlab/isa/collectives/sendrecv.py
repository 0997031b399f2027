# SPDX-License-Identifier: Apache-2.0
"""Exchange of tiles between the two cores of a logical core."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from trnlab.chips.spec import Chip
from trnlab.errors import RunError
from trnlab.isa import register
from trnlab.isa.base import MOVABLE, SBUF_ONLY, Array, Arrays, Dataflow, Engine, Operand, OperandSpec, Work
from trnlab.isa.collectives.meeting import CorePlace, Meeting, MeetingSide

RANKS = (0, 1)
GPSIMD_ELEMENTS = 256  # per partition: 1024 bytes of 32-bit formats, 512 of 16-bit ones


@register
class Sendrecv(Meeting):
    """dst = what core recv_from_rank sends here; src goes to core send_to_rank. Bits move as they are.

    Both cores of the pair run the instruction with the same pipe_id; all of one pipe_id complete before any goes on.
    dma_engine "dma" uses the shared DMA engines, "gpsimd_dma" the one inside GpSimd.

    What arrives is no operand of this core: whoever executes the pair hands it to `meaning` as `received`.
    """

    name = "sendrecv"
    opcode = 42
    dataflow = Dataflow.POINTWISE
    engines = (Engine.GPSIMD, Engine.SYNC, Engine.SCALAR, Engine.VECTOR, Engine.TENSOR)
    feature = "logical_cores"
    operands = (
        OperandSpec("dst", "dst", SBUF_ONLY, dtypes=MOVABLE),
        OperandSpec("src", "src", SBUF_ONLY, dtypes=MOVABLE),
    )
    attrs: ClassVar[Mapping[str, Any]] = {
        "send_to_rank": 1,
        "recv_from_rank": 1,
        "pipe_id": 0,
        "dma_engine": "dma",
    }
    same_dtype = ("dst", "src")
    is_dma = True
    cost_kinds = ("dma.sendrecv",)
    limits = (
        "send_to_rank and recv_from_rank are 0 or 1; pipe_id is whole",
        "dma_engine is dma or gpsimd_dma; the latter on gpsimd, at most 256 elements per partition",
    )
    source = "nki.isa.sendrecv"
    example = """
        mine, theirs = nl.ones((128, 512), nl.float32), nl.ndarray((128, 512), nl.float32)
        other = 1 - nl.program_id(0)
        nisa.sendrecv(src=mine, dst=theirs, send_to_rank=other, recv_from_rank=other, pipe_id=0)
    """
    example_on = (2, 1)

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """Ranks, pipe and DMA engine exist."""
        ranks = attrs["send_to_rank"], attrs["recv_from_rank"]
        if any(rank not in RANKS for rank in ranks) or not isinstance(attrs["pipe_id"], int):
            self.refuse(
                "no such core",
                limit=self.limits[0],
                got=(*ranks, attrs["pipe_id"]),
                chip=chip,
                remedy="name a core of the pair",
                code="TRN411",
            )
        if attrs["dma_engine"] not in ("dma", "gpsimd_dma"):
            self.refuse(
                "no such DMA engine",
                limit="dma, gpsimd_dma",
                got=attrs["dma_engine"],
                chip=chip,
                remedy="use one of these",
                code="TRN411",
            )
        if attrs["dma_engine"] == "gpsimd_dma" and (engine is not Engine.GPSIMD or ops["src"].free > GPSIMD_ELEMENTS):
            self.refuse(
                "more than GpSimd's own DMA exchanges",
                limit=self.limits[1],
                got=f"{ops['src'].free} elements per partition on {engine.name.lower()}",
                chip=chip,
                remedy="issue it on gpsimd in smaller pieces, or use dma_engine dma",
                code="TRN406",
            )

    def places(self, attrs: Mapping[str, Any], here: CorePlace) -> frozenset[CorePlace]:
        """This core, the one it sends to and the one it receives from."""
        return frozenset(CorePlace(here.rank, c) for c in (here.core, attrs["send_to_rank"], attrs["recv_from_rank"]))

    def key(self, attrs: Mapping[str, Any]) -> object:
        """The pipe."""
        return attrs["pipe_id"]

    def disagreement(self, sides: Mapping[CorePlace, MeetingSide]) -> tuple[CorePlace, CorePlace, str, str] | None:
        """Each receives from a core that sends to it, as many bytes of the same format as it has room for."""
        for here, mine in sides.items():
            sender = CorePlace(here.rank, mine.attrs["recv_from_rank"])
            other = sides[sender]
            if other.attrs["send_to_rank"] != here.core:
                return here, sender, f"receives from {sender}", f"sends to core {other.attrs['send_to_rank']}"
            if mine.operands["dst"] != other.operands["src"]:
                return here, sender, f"has room for {mine.describe('dst')}", f"sends {other.describe('src')}"
            if mine.attrs["dma_engine"] != other.attrs["dma_engine"]:
                return here, sender, f"uses {mine.attrs['dma_engine']}", f"uses {other.attrs['dma_engine']}"
        return None

    def received(
        self, here: CorePlace, sides: Mapping[CorePlace, Arrays], attrs: Mapping[str, Any]
    ) -> dict[str, Array]:
        """What the other side sends."""
        return {"received": sides[CorePlace(here.rank, attrs["recv_from_rank"])]["src"]}

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """What was received. Raises RunError where there is no other core."""
        if "received" not in arrays:
            raise RunError(
                "sendrecv: there is no other core to receive from",
                limit="both cores of a pair",
                got="one core",
                remedy="run the kernel on a logical core of two",
            )
        return {"dst": arrays["received"].reshape(arrays["dst"].shape)}

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """A descriptor for each partition."""
        src = ops["src"]
        size = src.free * src.dtype.itemsize
        return Work(
            "dma.sendrecv",
            n=size,
            m=src.partitions,
            k=src.partitions,
            itemsize=src.dtype.itemsize,
            dtype=src.dtype.name,
            nbytes=size * src.partitions,
        )
