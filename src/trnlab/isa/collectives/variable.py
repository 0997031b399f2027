# SPDX-License-Identifier: Apache-2.0
"""Collectives whose sizes are known only when they run: they lie in a tensor of numbers that each rank passes.

metadata is uint32 [rows, ranks]: row 0 how many elements are sent, row 1 from where in src on, row 2 how many were
received (written unless recv_counts_known), row 3, with has_rdispls, where in dst they go. Without row 3 the elements
of the s-th rank go to the s-th of as many equal parts of dst as there are ranks.

Sources: nki.collectives.all_gather_v and all_to_all_v.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.errors import RunError
from trnlab.isa.base import DMA_MEMORIES, Array, Arrays, Engine, Memory, Operand, OperandSpec
from trnlab.isa.collectives.collective import COMMON, HBM_DST, HBM_SRC, CollectiveInstruction
from trnlab.isa.collectives.meeting import CorePlace

UINT32 = frozenset({"uint32"})
METADATA = OperandSpec("metadata", "dst", DMA_MEMORIES, rw=True, shape=("", ""), dtypes=UINT32)
LAYOUT = "metadata is [3, ranks], with has_rdispls [4, ranks]; in SBUF on one partition"


class Variable(CollectiveInstruction):
    """A collective with metadata. `chunk` says what one rank sends to another."""

    operands: ClassVar[tuple[OperandSpec, ...]] = (HBM_DST, METADATA, HBM_SRC)
    attrs: ClassVar[Mapping[str, Any]] = {**COMMON, "recv_counts_known": False, "has_rdispls": False}

    def column(self, target: int) -> int:
        """The column of the sender's metadata that is for the rank at position `target`."""
        return target

    def sizes_fit(self, dst: int, src: int, ranks: int) -> bool:
        """Whatever the metadata say."""
        return dst % ranks == 0

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """The metadata have a row for each thing, and a column for each rank."""
        self.check_groups(attrs, chip)
        self.check_memories(ops, attrs, chip)
        ranks, metadata, dst = self.group_size(attrs), ops["metadata"], ops["dst"]
        size = metadata.partitions * metadata.free
        if size != (4 if attrs["has_rdispls"] else 3) * ranks or (
            metadata.memory is Memory.SBUF and metadata.partitions > 1
        ):
            self.refuse(
                "metadata of the wrong shape",
                limit=LAYOUT,
                chip=chip,
                code="TRN409",
                got=f"{size} numbers on {metadata.partitions} partitions",
                remedy="one column for each rank of the group",
            )
        if dst.partitions * dst.free % ranks and not attrs["has_rdispls"]:
            self.refuse(
                "dst does not divide among the ranks",
                limit=f"a multiple of {ranks} elements",
                got=dst.partitions * dst.free,
                chip=chip,
                remedy="make dst a little larger",
                code="TRN409",
            )

    def received(
        self, here: CorePlace, sides: Mapping[CorePlace, Arrays], attrs: Mapping[str, Any]
    ) -> dict[str, Any]:
        """As of any collective; the metadata as rows."""
        found = super().received(here, sides, attrs)
        rows = 4 if attrs["has_rdispls"] else 3
        return {**found, "numbers": [side["metadata"].reshape(rows, -1).astype(np.int64) for side in found["sides"]]}

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """What arrived, in dst as it was otherwise, and the counts of it in the metadata."""
        given: Mapping[str, Any] = arrays
        if "sides" not in given:
            return {"dst": arrays["dst"], "metadata": arrays["metadata"]}
        mine, numbers = given["position"], given["numbers"]
        dst, metadata = arrays["dst"].reshape(-1).copy(), numbers[mine].copy()
        part = dst.size // len(numbers)
        for sender, side in enumerate(given["sides"]):
            count, start = numbers[sender][:2, self.column(mine)].tolist()
            to = int(numbers[mine][3, sender]) if attrs["has_rdispls"] else part * sender
            room = dst.size - to if attrs["has_rdispls"] else part
            source = side["src"].reshape(-1)
            if start + count > source.size or count > room:
                raise RunError(
                    f"{self.name}: the metadata point outside of src or dst",
                    limit=f"src of {source.size} elements, room for {room}",
                    got=f"{count} elements from {start} on, from position {sender} of the group to position {mine}",
                    remedy="check rows 0, 1 and 3 of metadata_tensor on both ranks",
                )
            dst[to : to + count] = source[start : start + count]
            if not attrs["recv_counts_known"]:
                metadata[2, sender] = count
        return {"dst": dst, "metadata": metadata.astype(np.uint32)}
