# SPDX-License-Identifier: Apache-2.0
"""What checkpoints of a run would cost on the simulated instances, in simulated seconds and dollars: the planner's
figures.

Figures and their sources are those of `stores` and `reliability`. A folder is taken for a file system of FSx for
Lustre: which class it is nobody says. Requests count where a store limits them or has a price for them.
"""

from __future__ import annotations

import math

from trnlab.fleet.reliability.goodput import KEPT, Reliability
from trnlab.fleet.reliability.stores import STORES
from trnlab.units import SECONDS_PER_HOUR, SECONDS_PER_MINUTE

FOLDER = "lustre-250"
PART = 50 << 20  # bytes of a part of an upload, as s3fs cuts what is twice as large
OF_A_RANK = 2  # objects beside its tensors: state.pt and the sizes and digests
OF_ALL = 4  # objects of all ranks together: two markers, the index, `newest`


def puts(nbytes: float, ranks: int) -> int:
    """Requests that write a checkpoint of so many bytes, in equal parts from so many ranks."""
    each = nbytes / ranks
    tensors = 1 if each < 2 * PART else math.ceil(each / PART) + 2
    return ranks * (tensors + OF_A_RANK) + OF_ALL


def sentence(place: str, nbytes: int, chips: int, per_instance: int, ranks: int = 1, keep: int = 3) -> str:
    """One line of a checkpoint of so many bytes on so many chips, of which `keep` stay.

    Raises UsageError (TRN165) for what cannot be.
    """
    kind = "s3" if place.startswith(("s3://", "s3a://")) else FOLDER
    requests = puts(nbytes, ranks)
    found = Reliability(store=kind, requests=requests).goodput(chips, nbytes, per_instance)
    reading = found.phases["reading the checkpoint"]
    return (
        f"simulated: on {chips} chips and {kind} a checkpoint holds training up for {found.stall:.3g} s and counts "
        f"{found.upload:.3g} s later; going on reads it for {reading:.3g} s; least is lost with one every "
        f"{found.interval / SECONDS_PER_MINUTE:.3g} min, "
        f"at one failure in {found.between / SECONDS_PER_HOUR:.3g} h; {_price(kind, nbytes, keep)}"
        + _requests(kind, requests)
    )


def _price(kind: str, nbytes: int, keep: int) -> str:
    """Price of storage: of an object store what lies there is paid for, of a file system what was bought."""
    where = STORES[kind]
    tib = where.size(nbytes, KEPT)
    size = tib * 2.0**40 if tib else keep * nbytes
    usd = size / 1e9 * (where.usd.value if where.usd is not None else 0.0)
    what = f"a file system of {tib:g} TiB costs" if tib else f"{keep} of them cost"
    return f"{what} ${usd:.3g} a month"


def _requests(kind: str, requests: int) -> str:
    price = STORES[kind].usd_put
    return "" if price is None else f", one is {requests:,} PUT requests for ${requests * price.value:.3g}"
