# SPDX-License-Identifier: Apache-2.0
"""Addresses that a kernel chooses itself: (first partition, byte within each partition).

Source: nki.language.ndarray (address), and for PSUM nki/migration/index.rst, "Improved allocation API", in
aws-neuron/aws-neuron-sdk.
"""

from __future__ import annotations

from math import prod
from typing import Any

from trnlab.chips.spec import Chip
from trnlab.errors import CapacityError
from trnlab.lang.formats import Format
from trnlab.lang.source import user_line
from trnlab.lang.storage import MemorySpace, refuse


def checked(
    address: Any, shape: tuple[int, ...], fmt: Format, region: MemorySpace, chip: Chip, sbuf_limit: int
) -> tuple[int, int]:
    """The address of a tile. Raises ConstraintError for what is none, CapacityError for one beyond the memory."""
    pair = tuple(address) if isinstance(address, (tuple, list)) else ()
    if (
        region not in (MemorySpace.sbuf, MemorySpace.psum)
        or len(pair) != 2
        or not all(hasattr(n, "__index__") for n in pair)
    ):
        refuse(
            "an address is a partition and a byte within it, on chip",
            limit="(partition, byte), SBUF or PSUM",
            got=f"{address!r} in {region.value}",
            remedy="pass address=(0, byte), or leave it out",
            code="TRN411",
        )
    partition, byte = int(pair[0]), int(pair[1])
    if partition < 0 or byte < 0 or byte % fmt.itemsize or partition + shape[0] > chip.num_partitions:
        refuse(
            "a tile cannot lie there",
            got=f"{list(shape)} of {fmt} at {(partition, byte)}",
            limit=f"{chip.num_partitions} partitions, bytes in multiples of {fmt.itemsize}",
            remedy="move the tile",
            code="TRN411",
        )
    limit = chip.psum.num_banks * chip.psum.bank_bytes_per_partition if region is MemorySpace.psum else sbuf_limit
    size = prod(shape[1:]) * fmt.itemsize
    if byte + size > limit:
        raise CapacityError(
            f"a tile reaches beyond {region.value.upper()}",
            code="TRN502" if region is MemorySpace.psum else "TRN501",
            where=user_line(),
            limit=f"{limit} bytes per partition",
            got=f"{size} bytes from byte {byte} on",
            chip=chip.name,
            remedy="choose a lower address, or make the tile smaller",
        )
    bank = chip.psum.bank_bytes_per_partition
    if region is MemorySpace.psum and byte % bank:
        refuse(
            "a PSUM tile starts at the beginning of a bank",
            limit=f"multiples of {bank} bytes",
            got=f"byte {byte}, {byte % bank} into bank {byte // bank}",
            code="TRN411",
            remedy=f"use byte {byte // bank * bank}, or slice a tile of the whole bank",
        )
    return partition, byte
