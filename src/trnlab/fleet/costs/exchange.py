# SPDX-License-Identifier: Apache-2.0
"""What collectives of a layout take on the network of its cluster: by group and kind, each timed once at all sizes.

Groups that lie on other instances share no link with each other, so that a collective of a large cluster is timed on
as many instances as one of its groups spans. Beyond `FAR` instances its time goes on as a straight line in the number
of instances, through that on half as many and that on `FAR`. Times over bytes are straight lines between knots, which
are where the algorithm changes, or what bounds it.
"""

from __future__ import annotations

import math
from collections.abc import MutableMapping
from dataclasses import dataclass, field

import numpy as np

from trnlab.chips import interconnects
from trnlab.chips.catalog import Target
from trnlab.collectives import Collective, whole_mesh
from trnlab.fabric.choice import window_ends
from trnlab.fabric.cluster import Cluster
from trnlab.fabric.world import world_of
from trnlab.fleet.arrays import Floats, Ints, distinct, rows_of

FAR = 128
BYTES = 1 << 10, 1 << 40  # knots are looked for in between
_DENSE = 24  # sizes that are timed while a buffer doubles
_OFF = 1e-3  # of a time, that a line between two knots may be off

Line = tuple[Floats, Floats]  # bytes, seconds


@dataclass
class Exchange:
    """Collectives over regular groups of ranks. known: knots by what was asked, as bytes and seconds; added to."""

    target: Target
    known: MutableMapping[str, list[list[float]]] = field(default_factory=dict)
    _lines: dict[tuple[str, int, int], Line] = field(default_factory=dict)

    def seconds(self, kind: str, stride: Ints, count: Ints, nbytes: Floats) -> Floats:
        """Seconds of each of many: all groups of `count` ranks, `stride` apart, at the same time.

        nbytes: of a rank's larger buffer.
        """
        found = np.zeros(len(nbytes))
        asked = np.flatnonzero((count > 1) & (nbytes > 0))
        pairs, which = distinct(stride[asked], count[asked])
        for (apart, ranks), some in zip(pairs.tolist(), rows_of(which)):
            rows = asked[some]
            found[rows] = np.interp(nbytes[rows], *self._line(kind, apart, ranks))
        return found

    def send(self, stride: Ints, nbytes: Floats) -> Floats:
        """From each rank to the one `stride` further on; 0 for a stride of 0."""
        return self.seconds("collective_permute", stride, np.where(stride > 0, 2, 1), nbytes)

    def _line(self, kind: str, stride: int, count: int) -> Line:
        """The time of a collective over bytes, as knots."""
        asked = kind, stride, count
        if asked not in self._lines:
            key = f"{kind} {stride} {count}"
            if key not in self.known:
                sizes = self._sizes(*asked)
                self.known[key] = [line.tolist() for line in knots(sizes, self._time(*asked, sizes))]
            sizes, seconds = (np.array(line, np.float64) for line in self.known[key])
            self._lines[asked] = sizes, seconds
        return self._lines[asked]

    def _sizes(self, kind: str, stride: int, count: int) -> Floats:
        """Sizes at which to time it: close together, and either side of where an algorithm's window ends."""
        least, most = BYTES
        dense = np.geomspace(least, most, _DENSE * round(math.log2(most / least)) + 1)
        here = Cluster(self.target, 1).ranks
        per_instance = max(math.lcm(stride * count, here) // here, 1)
        ends = np.array(window_ends(min(per_instance, FAR)))
        return np.unique(np.concatenate([dense, ends, np.nextafter(ends, 0)]))

    def _time(self, kind: str, stride: int, count: int, nbytes: Floats) -> Floats:
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
        return whole + np.maximum(whole - half, 0.0) * (count - far) / (far - far // 2)

    def _timed(self, kind: str, stride: int, count: int, nbytes: Floats, instances: int) -> Floats:
        cluster = Cluster(self.target, instances)
        if kind == "collective_permute":
            pairs = tuple((i, i + stride) for i in range(cluster.ranks - stride))
            asked = Collective(kind, pairs=pairs)
        else:
            asked = Collective(kind, whole_mesh(range(0, stride * count, stride), cluster.ranks))
        return world_of(cluster.name, cluster.ranks).seconds(asked, nbytes)


def knots(sizes: Floats, seconds: Floats) -> Line:
    """The fewest of these points, taken from the left, between which lines are off by at most `_OFF` of a time."""
    kept, at = [0], 0
    while at < len(sizes) - 1:
        kept.append(at := _farthest(sizes, seconds, at))
    return sizes[kept], seconds[kept]


def _farthest(sizes: Floats, seconds: Floats, at: int) -> int:
    """The last point to which a line from point `at` passes near all points between: within a cone that narrows."""
    run, rise = sizes[at + 1 :] - sizes[at], seconds[at + 1 :] - seconds[at]
    room = _OFF * seconds[at + 1 :]
    low, high = (np.maximum.accumulate((rise - room) / run), np.minimum.accumulate((rise + room) / run))
    slope = rise / run
    within = (slope[1:] >= low[:-1]) & (slope[1:] <= high[:-1])
    good = np.flatnonzero(np.concatenate([[True], within]) & (low <= high))
    return at + 1 + int(good[-1])
