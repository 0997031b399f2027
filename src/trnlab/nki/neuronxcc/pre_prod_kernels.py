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
