# SPDX-License-Identifier: Apache-2.0
"""A point that both cores of a logical core reach before either goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.base import MOVABLE, Array, Arrays, Dataflow, Engine, Memory, Operand, OperandSpec, Work
from trnlab.isa.collectives.meeting import CorePlace, Meeting

CORES = (0, 1)
ALONE = (0,)
DATA = frozenset({Memory.HBM, Memory.SBUF})  # shared HBM, says nki.isa; nki-library also names tiles of each core


@register
class CoreBarrier(Meeting):
    """The engine waits until the other core's has come here too; `data` in shared HBM is then complete for both.

    On one core nothing happens to data: it is an operand so that what wrote it comes before, and what reads it after.
    Whoever executes the pair stops each core here until both have come.
    """

    name = "core_barrier"
    opcode = 38
    dataflow = Dataflow.PARTITION
    moves_data = False
    engines = (Engine.GPSIMD, Engine.VECTOR, Engine.SCALAR, Engine.TENSOR, Engine.SYNC)
    feature = "logical_cores"
    operands = (OperandSpec("data", "dst", DATA, rw=True, shape=("", ""), dtypes=MOVABLE),)
    attrs: ClassVar[Mapping[str, Any]] = {"cores": CORES}
    cost_kinds = ("sequencer.barrier",)
    limits = ("cores is (0, 1), or (0,) in a kernel that runs on one core, where it waits for nobody",)
    source = "nki.isa.core_barrier"
    example = """
        both = nl.ndarray((2, 128, 512), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=both[nl.program_id(0)], src=nl.ones((128, 512), nl.float32))
        nisa.core_barrier(data=both, cores=(0, 1))  # from here on each core sees what the other wrote
    """
    example_on = (2, 1)

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """Both cores of the pair, or the only core there is."""
        if tuple(attrs["cores"]) not in (CORES, ALONE):
            self.refuse(
                "a barrier is between the two cores of a pair",
                limit=CORES,
                got=attrs["cores"],
                chip=chip,
                remedy="pass cores=(0, 1)",
                code="TRN411",
            )

    def places(self, attrs: Mapping[str, Any], here: CorePlace) -> frozenset[CorePlace]:
        """The cores of this rank that are named."""
        return frozenset(CorePlace(here.rank, core) for core in attrs["cores"])

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """data as it is."""
        return {"data": arrays["data"]}

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """One semaphore each way."""
        return Work("sequencer.barrier", 1, 0, 1)
