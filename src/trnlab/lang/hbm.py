# SPDX-License-Identifier: Apache-2.0
"""The HBM tensors of one rank, as the cores that share its memory name them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from trnlab.lang.formats import Format


@dataclass(frozen=True)
class HbmTensor:
    """One tensor."""

    name: str
    shape: tuple[int, ...]
    format: Format


@dataclass
class HbmTensors:
    """Tensors by number. Those with a key are shared: the same key gives the same tensor on every core."""

    places: list[HbmTensor] = field(default_factory=list)
    keys: dict[Hashable, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.places)

    def add(self, place: HbmTensor, key: Hashable = None) -> int:
        """The number of a new tensor, or of the one that another core made under this key."""
        if key is not None and key in self.keys:
            return self.keys[key]
        self.places.append(place)
        if key is not None:
            self.keys[key] = len(self.places) - 1
        return len(self.places) - 1
