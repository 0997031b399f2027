# SPDX-License-Identifier: Apache-2.0
"""Where checkpoints and data sets lie, and how long their bytes take to get there and back.

What one instance can send is bounded, and what a store takes from all together: for a file system by its size, for an
object store by the requests to a prefix, which are also paid for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from trnlab.chips.sources import assumed, derived, documented
from trnlab.chips.spec import Figure
from trnlab.errors import UsageError, did_you_mean

TIB = 2.0**40
_FSX = "Amazon FSx for Lustre user guide, aggregate file system performance"
_S3 = "Amazon S3 user guide, optimizing-performance"
_CLIENT = assumed(12.5e9, "byte/s", "100 Gbit/s, what one instance is commonly seen to reach; recalled, not verified")
_S3_CLIENT = documented(12.5e9, "byte/s", f"{_S3}: up to 100 Gb/s on a single instance")
_BUCKETS = assumed(1e12, "byte/s", "of one account from one region: prefixes multiply, and no bound is published")
_PRICES = "price list of 2025, recalled"
HOST_LINK = assumed(
    16e9, "byte/s", "from a chip to its host: not published; eight lanes of PCIe Gen4 as for other cards"
)


@dataclass(frozen=True)
class StorageService:
    """A place for checkpoints and data."""

    name: str
    client: Figure  # byte/s of one instance
    whole: Figure | None = None  # byte/s of all together
    # write, read: byte/s of each TiB of a file system
    write: Figure | None = None
    read: Figure | None = None
    usd: Figure | None = None  # dollars for a GB and month
    # gets, puts: requests a second to a prefix
    gets: Figure | None = None
    puts: Figure | None = None
    # usd_get, usd_put: dollars for one
    usd_get: Figure | None = None
    usd_put: Figure | None = None
    latency: Figure | None = None  # seconds to the first byte
    # byte/s of one request. None: no such bound, nothing beyond the instances.
    stream: Figure | None = None

    def seconds(
        self, nbytes: float, instances: int, tib: float, reading: bool = False, requests: float = 0.0
    ) -> float:
        """To write (or read) a state of so many bytes from so many instances at once, to a file system of `tib`, in
        so many requests to one prefix."""
        each = self.read if reading else self.write
        rates = [instances * self.client.value, *([tib * each.value] if each is not None else [])]
        flowing = nbytes / min([*rates, *([self.whole.value] if self.whole is not None else [])])
        limit = self.gets if reading else self.puts
        return max(flowing, requests / limit.value) if limit is not None else flowing

    def size(self, nbytes: float, kept: int) -> float:
        """TiB of a file system that holds so many checkpoints, in steps of 2.4, which is how they are sold."""
        return math.ceil(kept * nbytes / TIB / 2.4) * 2.4 if self.write is not None else 0.0


def _lustre(throughput: int, write: float, read: float, usd: float) -> StorageService:
    return StorageService(
        f"lustre-{throughput}",
        _CLIENT,
        None,
        documented(write * 1e6, "byte/s per TiB", f"{_FSX}: PERSISTENT-{throughput}, disk"),
        documented(read * 1e6, "byte/s per TiB", f"{_FSX}: PERSISTENT-{throughput}, network baseline"),
        assumed(usd, "USD per GB and month", _PRICES),
        latency=assumed(1e-3, "s", "Amazon FSx for Lustre user guide: below a millisecond; the most that says"),
    )


STORES = {
    store.name: store
    for store in (
        StorageService(
            "s3",
            _S3_CLIENT,
            _BUCKETS,
            usd=assumed(0.023, "USD per GB and month", _PRICES),
            gets=documented(5500, "requests/s", f"{_S3}: at least 5,500 GET/HEAD per second per partitioned prefix"),
            puts=documented(3500, "requests/s", f"{_S3}: at least 3,500 PUT/POST per second per partitioned prefix"),
            usd_get=assumed(0.0004e-3, "USD", f"$0.0004 for 1,000 GET; {_PRICES}"),
            usd_put=assumed(0.005e-3, "USD", f"$0.005 for 1,000 PUT; {_PRICES}"),
            latency=derived(0.15, "s", f"{_S3}: first bytes after roughly 100 to 200 ms; their middle"),
            stream=assumed(
                85e6, "byte/s", "one request for each 85 to 90 MB/s that are wanted; S3's guide, recalled"
            ),
        ),
        _lustre(125, 125, 320, 0.145),
        _lustre(250, 250, 640, 0.21),
        _lustre(500, 500, 1300, 0.34),
        _lustre(1000, 1000, 2600, 0.60),
        StorageService(
            "neighbour", derived(0.0, "byte/s", "the network cards of the instance: a copy in another host's memory")
        ),
    )
}


def store(name: str, network: float) -> StorageService:
    """The store of this name; network: byte/s of an instance's cards, which set the pace to a neighbour's memory.

    Raises UsageError (TRN164) for another name, and for a neighbour where there are no cards.
    """
    if name not in STORES:
        raise UsageError(
            f"unknown store of checkpoints {name!r}",
            code="TRN164",
            limit=", ".join(STORES),
            got=name,
            remedy=did_you_mean(name, STORES, "choose one of those above"),
        )
    found = STORES[name]
    if name != "neighbour":
        return found
    if network <= 0:
        raise UsageError(
            "instances without network cards have no neighbour to keep a checkpoint",
            code="TRN164",
            limit="s3 or a class of lustre",
            got=name,
            remedy="choose another store, or instances with network cards",
        )
    return StorageService(name, found.client._replace(value=network))
