# SPDX-License-Identifier: Apache-2.0
"""What collectives of a layout take on the network of its cluster: by group, kind and size, each timed once.

Groups that lie on other instances share no link with each other, so that a collective of a large cluster is timed on
as many instances as one of its groups spans. Beyond `FAR` instances its time goes on as a straight line in the number
of instances, through that on half as many and that on `FAR`. Times between sizes that were timed lie on a straight
line; the fabric's own are piecewise linear in size.
"""

from __future__ import annotations

import math
from collections.abc import MutableMapping
from dataclasses import dataclass, field

import numpy as np

from trnlab.chips import interconnects
from trnlab.chips.catalog import Target
from trnlab.collectives import Collective, whole_mesh
from trnlab.fabric.cluster import Cluster
from trnlab.fabric.world import world_of
from trnlab.fleet.arrays import Floats, Ints, distinct, rows_of

SIZES = tuple(1 << k for k in range(10, 41, 2))  # bytes: 1 KiB to 1 TiB, by fours
FAR = 128
_SIZES = np.array(SIZES, np.float64)


@dataclass
class Exchange:
    """Collectives over regular groups of ranks. known: times by what was asked, which are added to."""

    target: Target
    known: MutableMapping[str, float] = field(default_factory=dict)
    _lines: dict[tuple[str, int, int], Floats] = field(default_factory=dict)  # by SIZES, NaN where nobody asked

    def seconds(self, kind: str, stride: Ints, count: Ints, nbytes: Floats) -> Floats:
        """Seconds of each of many: all groups of `count` ranks, `stride` apart, at the same time.

        nbytes: of a rank's larger buffer.
        """
        found = np.zeros(len(nbytes))
        asked = np.flatnonzero((count > 1) & (nbytes > 0))
        pairs, which = distinct(stride[asked], count[asked])
        for (apart, ranks), some in zip(pairs.tolist(), rows_of(which)):
            rows = asked[some]
            found[rows] = self._interpolated(kind, apart, ranks, nbytes[rows])
        return found

    def send(self, stride: Ints, nbytes: Floats) -> Floats:
        """From each rank to the one `stride` further on; 0 for a stride of 0."""
        return self.seconds("collective_permute", stride, np.where(stride > 0, 2, 1), nbytes)

    def _interpolated(self, kind: str, stride: int, count: int, nbytes: Floats) -> Floats:
        at = np.clip(np.searchsorted(_SIZES, nbytes), 1, len(SIZES) - 1)
        used = np.unique(np.concatenate([at - 1, at]))
        line = self._lines.setdefault((kind, stride, count), np.full(len(SIZES), np.nan))
        for i in used[np.isnan(line[used])].tolist():
            line[i] = self._time(kind, stride, count, SIZES[i])
        return np.asarray(np.interp(nbytes, _SIZES[used], line[used]), np.float64)

    def _time(self, kind: str, stride: int, count: int, nbytes: int) -> float:
        here = Cluster(self.target, 1).ranks
        if stride >= here and stride % here == 0:
            stride = here  # every instance is as far from every other
        instances = math.lcm(stride * count, here) // here
        if kind == "collective_permute":
            alone = not interconnects.of(self.target).cards  # then ranks of other instances cannot be meant
            return self._timed(kind, stride, 2, nbytes, 1 if alone else -(-(stride + here) // here))
        far = FAR * here // stride
        if instances <= FAR or count <= far:
            return self._timed(kind, stride, count, nbytes, instances)
        half, whole = (self._timed(kind, stride, n, nbytes, FAR * n // far) for n in (far // 2, far))
        return whole + max(whole - half, 0.0) * (count - far) / (far - far // 2)

    def _timed(self, kind: str, stride: int, count: int, nbytes: int, instances: int) -> float:
        key = f"{kind} {stride} {count} {nbytes}"
        if key not in self.known:
            cluster = Cluster(self.target, instances)
            if kind == "collective_permute":
                pairs = tuple((i, i + stride) for i in range(cluster.ranks - stride))
                asked = Collective(kind, pairs=pairs)
            else:
                asked = Collective(kind, whole_mesh(range(0, stride * count, stride), cluster.ranks))
            self.known[key] = world_of(cluster.name, cluster.ranks).cost(asked, nbytes).seconds
        return self.known[key]
