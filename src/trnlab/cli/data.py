# SPDX-License-Identifier: Apache-2.0
"""`trnlab data`."""

from __future__ import annotations

import argparse

from trnlab.datasets import Shards, index
from trnlab.datasets.writing import damaged
from trnlab.storage import open_store
from trnlab.units import format_bytes


def main(args: argparse.Namespace) -> int:
    """Show, verify or index a data set; returns 1 where something is damaged."""
    store = open_store(args.url)
    if args.action == "index":
        _show(index(store, args.dtype))
        return 0
    shards = Shards.opened(store, args.dtype)
    if args.action == "show":
        _show(shards)
        return 0
    problems = damaged(shards)
    for problem in problems:
        print(problem)
    known = "with their checksums" if _summed(shards) else "to their ends; there are no checksums: trnlab data index"
    print(f"{len(shards.shards) - len(problems)} of {len(shards.shards)} shards are whole, read {known}")
    return 1 if problems else 0


def _show(shards: Shards) -> None:
    for field in shards.fields:
        print(f"{field.name:<12} {field.dtype} {list(field.shape)}, {format_bytes(field.row_bytes)} a row")
    sums = "with checksums" if _summed(shards) else "without checksums"
    count = len(shards.shards)
    print(f"{shards.rows:,} rows in {count:,} shards of {shards.store.url}: {format_bytes(shards.nbytes)}, {sums}")


def _summed(shards: Shards) -> bool:
    return all(file.crc32 is not None for shard in shards.shards for file in shard.files.values())
