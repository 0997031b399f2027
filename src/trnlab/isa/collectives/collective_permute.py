# SPDX-License-Identifier: Apache-2.0
"""Ranks send tensors to each other, as pairs of ranks say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.base import Array, Arrays, Dataflow
from trnlab.isa.collectives.collective import SAME_MEMORY, CollectiveInstruction

PAIRS = "pairs: (source, target) ranks, no source twice and no target twice"


@register
class CollectivePermute(CollectiveInstruction):
    """dst on the target of each pair = src on its source. A rank that no pair sends to keeps its dst (assumed).

    channel: transfers of different channels do not wait for each other.
    """

    name = "collective_permute"
    opcode = 64
    dataflow = Dataflow.PARTITION
    attrs: ClassVar[Mapping[str, Any]] = {"pairs": ((0, 0),), "joint": False, "priority": None, "channel": 0}
    cost_kinds = ("collective.collective_permute",)
    limits: ClassVar[tuple[str, ...]] = (PAIRS, SAME_MEMORY, "dst has as many elements as src")
    source = "nki.collectives.collective_permute, collective_permute_implicit"
    example = """
        x = nl.ndarray((128, 512), nl.float32, buffer=nl.shared_hbm)
        y = nl.ndarray((128, 512), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=x, src=nl.ones((128, 512), nl.float32))
        ncc.collective_permute([x], [y], source_target_pairs=[(0, 1), (1, 0)])
    """
    example_on = (1, 2)

    def ranks(self, attrs: Mapping[str, Any], rank: int) -> tuple[int, ...]:
        """All that a pair names; none when no pair names `rank`."""
        named = tuple(sorted({r for pair in attrs["pairs"] for r in pair}))
        return named if rank in named else ()

    def group_size(self, attrs: Mapping[str, Any]) -> int:
        """Ranks that take part."""
        return len({r for pair in attrs["pairs"] for r in pair})

    def span(self, attrs: Mapping[str, Any]) -> int:
        """Ranks from the first to the last."""
        named = {r for pair in attrs["pairs"] for r in pair}
        return int(max(named) - min(named)) + 1

    def check_groups(self, attrs: Mapping[str, Any], chip: Chip) -> None:
        """Pairs of ranks, each at most once at each end."""
        pairs = attrs["pairs"]
        sources, targets = [p[0] for p in pairs], [p[1] for p in pairs]
        if (
            not pairs
            or len(set(sources)) < len(pairs)
            or len(set(targets)) < len(pairs)
            or min(*sources, *targets) < 0
        ):
            self.refuse(
                "no permutation of ranks",
                limit=PAIRS,
                got=pairs,
                chip=chip,
                remedy="let each rank send to one other at most",
                code="TRN411",
            )
        super().check_groups({**attrs, "groups": ((0,),)}, chip)

    def combine(self, mine: int, sources: list[Array], arrays: Arrays, attrs: Mapping[str, Any]) -> Array:
        """What the source of the pair that ends here sends."""
        named = sorted({r for pair in attrs["pairs"] for r in pair})
        source = next((s for s, t in attrs["pairs"] if t == named[mine]), None)
        return arrays["dst"] if source is None else sources[named.index(source)]
