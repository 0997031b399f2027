# SPDX-License-Identifier: Apache-2.0
"""The vendor's nccom-test for a cluster one does not have: the same sizes, columns and JSON.

Sizes are those of the larger of input and output; GB are GiB, as there (tools/neuron-sys-tools/nccom-test.rst).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import numpy.typing as npt

from trnlab.collectives import Collective
from trnlab.errors import UsageError
from trnlab.fabric import values
from trnlab.fabric.network import Network
from trnlab.fabric.schedule import Ints, Schedule
from trnlab.fabric.selection import cost_of, schedule_of
from trnlab.fabric.timing import CollectiveCost
from trnlab.units import GIB

OPERATIONS = {
    "allr": "all_reduce",
    "allg": "all_gather",
    "redsct": "reduce_scatter",
    "alltoall": "all_to_all",
    "sendrecv": "sendrecv",
    "permute": "permute",
}
DTYPES: Mapping[str, npt.DTypeLike] = {
    "uint8": np.uint8,
    "int8": np.int8,
    "uint16": np.uint16,
    "int16": np.int16,
    "uint32": np.uint32,
    "int32": np.int32,
    "fp32": np.float32,
    "fp16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "fp8": ml_dtypes.float8_e4m3,
}
EXACT_SUM = 7  # sums of so many ones are exact in the narrowest format
CHECKED_UP_TO = 1 << 26  # bytes of all ranks' buffers together: larger ones are checked at that size


@dataclass(frozen=True)
class NccomRow:
    """One line of the table. Bandwidths in GiB/s."""

    size: int
    count: int
    dtype: str
    cost: CollectiveCost
    factor: float  # bus bandwidth per algorithm bandwidth
    algorithm: str
    input_size: int
    output_size: int

    @property
    def microseconds(self) -> float:
        """Time of one operation."""
        return self.cost.seconds * 1e6

    @property
    def algbw(self) -> float:
        """Bytes over time."""
        return self.size / self.cost.seconds / GIB if self.cost.seconds else 0.0

    @property
    def busbw(self) -> float:
        """The same per line, whatever the number of ranks."""
        return self.algbw * self.factor

    def as_json(self) -> dict[str, object]:
        """As the vendor's tool writes it."""
        return {
            "size(B)": self.size,
            "count(elems)": self.count,
            "type": self.dtype,
            "algbw(GB/s)": self.algbw,
            "busbw(GB/s)": self.busbw,
            "time:avg(us)": round(self.microseconds, 2),
            "algorithm": self.algorithm,
            "total_input_size(B)": self.input_size,
            "total_output_size(B)": self.output_size,
        }


@dataclass(frozen=True)
class Bench:
    """One collective on groups of ranks of a network."""

    operation: str
    network: Network
    placed: Ints
    groups: Sequence[Sequence[int]]
    dtype: str = "uint8"
    pairs: Sequence[tuple[int, int]] = ()

    def row(self, size: int) -> NccomRow:
        """The prediction for one size in bytes."""
        count = -(-size // np.dtype(DTYPES[self.dtype]).itemsize)
        nbytes = count * np.dtype(DTYPES[self.dtype]).itemsize
        schedule = self.schedule(nbytes)
        ranks = max(len(group) for group in self.groups)
        parts = schedule.begin.shape[1], schedule.end.shape[1]
        sizes = [nbytes * part // max(parts) for part in parts]
        return NccomRow(
            nbytes,
            count,
            self.dtype,
            cost_of(self.asked, self.network, self.placed, nbytes),
            _factor(self.operation, ranks),
            schedule.algorithm,
            *sizes,
        )

    def schedule(self, nbytes: int, **forced: str) -> Schedule:
        """The schedule that the runtime would take for this size; `forced`: as of `choice.algorithm`."""
        return schedule_of(self.asked, self.network, self.placed, nbytes, **forced)

    @property
    def asked(self) -> Collective:
        """What all ranks are asked to do."""
        if self.operation in ("permute", "sendrecv"):
            return Collective("collective_permute", pairs=tuple((a, b) for a, b in self.pairs))
        return Collective(self.operation, tuple(tuple(group) for group in self.groups))

    def check(self, size: int, ones: bool = False, seed: int = 0) -> bool:
        """Run the schedule on data and compare with NumPy's sum, concatenation or transposition."""
        dtype = np.dtype(DTYPES[self.dtype])
        schedule = self.schedule(size)
        share = schedule.begin.shape[1] / max(schedule.begin.shape[1], schedule.end.shape[1])
        room = CHECKED_UP_TO // (len(self.placed) * dtype.itemsize)
        count = max(int(min(size // dtype.itemsize, room) * share), 1)
        first = np.random.default_rng(seed).integers(0, schedule.ranks, count)
        ranks = range(schedule.ranks)  # an element is one on a few ranks, so that its sum is exact in every format
        inputs = [
            np.ones(count, dtype) if ones else ((rank + first) % len(ranks) < EXACT_SUM).astype(dtype)
            for rank in ranks
        ]
        if schedule.operation in ("all_to_all", "reduce_scatter"):
            parts = schedule.begin.shape[1]
            inputs = [np.resize(values_, -(-count // parts) * parts) for values_ in inputs]
        return _agrees(schedule, self.groups, self.pairs, inputs, values.run(schedule, inputs))


def sizes(first: int, last: int, step: int | None = None, factor: int | None = None) -> Iterator[int]:
    """From `first` to `last` bytes, times `factor` or plus `step` (by default a tenth of the way).

    Raises UsageError (TRN185) for steps that lead nowhere.
    """
    if first < 1 or last < first or (factor is not None and factor < 2) or (step is not None and step < 1):
        raise UsageError(
            "these sizes lead nowhere",
            code="TRN185",
            got=f"{first} to {last}",
            remedy="such as -b 1K -e 1G -f 4",
            limit="1 <= minbytes <= maxbytes, stepfactor >= 2, stepbytes >= 1",
        )
    size, by = first, step or max((last - first) // 10, 1)
    while size <= last:
        yield size
        size = size * factor if factor else size + by


def _factor(operation: str, ranks: int) -> float:
    """Bus bandwidth per algorithm bandwidth (nccom-test.rst, bus bandwidth calculation)."""
    share = (ranks - 1) / ranks
    return {"all_reduce": 2 * share, "permute": 1.0, "sendrecv": 1.0}.get(operation, share)


def _agrees(
    schedule: Schedule,
    groups: Sequence[Sequence[int]],
    pairs: Sequence[tuple[int, int]],
    inputs: list[npt.NDArray[np.generic]],
    results: list[npt.NDArray[np.generic]],
) -> bool:
    """Whether each rank has what the operation means, bit for bit."""
    if schedule.operation == "permute":
        return all(np.array_equal(results[b], inputs[a]) for a, b in pairs)
    return all(
        np.array_equal(results[rank], _meant(schedule.operation, place, [inputs[r] for r in group]))
        for group in groups
        for place, rank in enumerate(group)
    )


def _meant(operation: str, place: int, inputs: list[npt.NDArray[np.generic]]) -> npt.NDArray[np.generic]:
    if operation == "all_gather":
        return np.concatenate(inputs)
    if operation == "all_to_all":
        return np.concatenate([np.split(values_, len(inputs))[place] for values_ in inputs])
    total = np.sum([values_.astype(np.float64) for values_ in inputs], axis=0).astype(inputs[0].dtype)
    return np.split(total, len(inputs))[place] if operation == "reduce_scatter" else total
