# SPDX-License-Identifier: Apache-2.0
"""Of the unpublished `neuronxcc.nki._pre_prod_kernels`: how its collectives are told who takes part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class CollectivesConfig:
    """The groups of ranks of a kernel's collectives, which the vendor's library makes before any kernel is called."""

    replica_groups: Sequence[Sequence[int]] | Any = ()

    @property
    def rank_src_tgt_pairs(self) -> dict[int, list[list[int]]]:
        """For each rank the pairs (source, target) of its group's ring: to the next, from the last to the first.

        The library keeps them for ring attention, whose kernels nobody has published.
        """
        rings = [(group, [[a, b] for a, b in zip(group, [*group[1:], group[0]])]) for group in self.replica_groups]
        return {rank: pairs for group, pairs in rings for rank in group}
