# SPDX-License-Identifier: Apache-2.0
"""What a data set costs a job on the simulated instances: how long a step waits for its samples, and dollars.

Figures and their sources are those of `stores`. A folder is taken for a file system of FSx for Lustre that just holds
the data set. What is read ahead is hidden behind the steps: of a group of blocks the next one is on its way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trnlab.chips.catalog import Target
from trnlab.chips.sources import documented
from trnlab.chips.spec import Figure
from trnlab.datasets.reading import Reader
from trnlab.fleet.reliability.checkpoint_cost import FOLDER
from trnlab.fleet.reliability.stores import STORES, StorageService
from trnlab.fleet.reliability.stores import store as named

_EC2 = "EC2 instance types, network bandwidth"
NETWORK: Mapping[str, Figure] = {  # of instances that reach less than a store gives one
    "trn1.2xlarge": documented(12.5e9 / 8, "byte/s", f"{_EC2}: up to 12.5 Gbit/s"),
    "inf2.xlarge": documented(2.083e9 / 8, "byte/s", f"{_EC2}: baseline of 2.083 Gbit/s"),
    "inf2.8xlarge": documented(16.667e9 / 8, "byte/s", f"{_EC2}: baseline of 16.667 Gbit/s"),
}


@dataclass(frozen=True)
class Reads:
    """How a data set is read."""

    data_bytes: float
    request_bytes: float  # of one
    step_bytes: float  # of a rank's batch
    group_bytes: float  # that a rank has in one group, which the first batch waits for
    prefetch: int  # requests of a rank at once, 0: one, when it is needed
    ranks: int
    epoch_steps: int


def reads_of(reader: Reader, batches: int = 1, ranks: int | None = None) -> Reads:
    """How a reader reads. batches: of a step. ranks: that read at once, the reader's where None."""
    ranks = ranks or reader.ranks
    return Reads(
        reader.shards.nbytes,
        reader.request_bytes,
        reader.batch_bytes * batches,
        reader.group_bytes,
        reader.prefetch,
        ranks,
        len(reader) * reader.ranks // (ranks * batches),
    )


@dataclass(frozen=True)
class DataCost:
    """Simulated."""

    store: str
    rate: float  # byte/s of a rank, held by `bound`
    bound: str
    reading: float  # seconds that a step's samples take to be read
    ahead: bool  # whether it is read ahead
    # wait, first: seconds that each step and the first batch are waited for
    wait: float
    first: float
    requests: float  # of an epoch, all ranks
    # the least that hides all waits, None where none does. usd: dollars of an epoch's requests, of keeping the
    # data a month, and of instances that wait in an epoch, None without a price
    prefetch: int | None
    usd_requests: float
    usd_month: float
    usd_waits: float | None

    def as_json(self) -> dict[str, object]:
        """As the summary of a run has it."""
        return {
            "store": self.store,
            "bytes_per_s": self.rate,
            "bound_by": self.bound,
            "step_wait_s": self.wait,
            "first_s": self.first,
            "epoch_requests": self.requests,
            "prefetch_enough": self.prefetch,
            "epoch_requests_usd": self.usd_requests,
            "month_usd": self.usd_month,
            "epoch_waits_usd": self.usd_waits,
        }


def cost(store: str, reads: Reads, step: float, target: Target, instances: int = 1) -> DataCost:
    """Cost of reading from a store of `STORES` in steps of so many seconds. Raises UsageError (TRN164) for others."""
    where = named(store, 0.0)
    tib, bounds = where.size(reads.data_bytes, 1), _bounds(where, reads, target, instances)
    each, alone = min(bounds.values()), _request_s(where, reads)
    bound = min(bounds, key=lambda name: bounds[name])
    reading = reads.step_bytes / each
    wait = max(0.0, reading - step) if reads.prefetch else reading
    requests = reads.data_bytes / reads.request_bytes
    others = min((rate for name, rate in bounds.items() if name != _AT_ONCE), default=math.inf)
    hides = step > 0 and reads.step_bytes / others <= step
    enough = max(1, math.ceil(reads.step_bytes / step * alone / reads.request_bytes)) if hides else None
    price = target.price
    size = tib * 2.0**40 if tib else reads.data_bytes
    return DataCost(
        store,
        each,
        bound,
        reading,
        reads.prefetch > 0,
        wait,
        max(reads.group_bytes / each, alone),
        requests,
        enough,
        requests * (where.usd_get.value if where.usd_get else 0.0),
        size / 1e9 * (where.usd.value if where.usd else 0.0),
        price.usd_of(wait * reads.epoch_steps, instances) if price else None,
    )


def waited(costs: Sequence[DataCost], step: float) -> float:
    """Seconds that a step of so many seconds waits for all that it reads. What is read ahead shares what bounds it,
    so that the step hides the sum; what is not is waited for as a whole."""
    hidden = sum(each.reading for each in costs if each.ahead)
    return max(0.0, hidden - step) + sum(each.reading for each in costs if not each.ahead)


_AT_ONCE = "requests at once"


def _request_s(where: StorageService, reads: Reads) -> float:
    """Seconds of one request that nothing else holds up."""
    flowing = reads.request_bytes / (where.stream or where.client).value
    return (where.latency.value if where.latency else 0.0) + flowing


def _bounds(where: StorageService, reads: Reads, target: Target, instances: int) -> dict[str, float]:
    """Byte/s that a rank gets at most, by what bounds it."""
    here = -(-reads.ranks // instances)
    network = min(where.client.value, NETWORK[target.name].value if target.name in NETWORK else math.inf)
    found = {
        _AT_ONCE: max(1, reads.prefetch) * reads.request_bytes / _request_s(where, reads),
        "the instance's network": network / here,
    }
    if where.whole is not None:
        found["the store"] = where.whole.value / reads.ranks
    if where.read is not None:
        found["the file system"] = where.size(reads.data_bytes, 1) * where.read.value / reads.ranks
    if where.gets is not None:
        found["requests of a prefix"] = where.gets.value * reads.request_bytes / reads.ranks
    return found


def kind_of(place: str) -> str | None:
    """Which store a place is taken for; None for one that has no figures."""
    if place.startswith(("s3://", "s3a://")):
        return "s3"
    return None if "://" in place.replace("file://", "") else FOLDER


ALL = tuple(name for name in STORES if name != "neighbour")
