# SPDX-License-Identifier: Apache-2.0
"""`trnlab data`."""

from __future__ import annotations

import argparse
import json

from trnlab.cli import options
from trnlab.datasets import Reader, Shards, index
from trnlab.datasets.writing import damaged
from trnlab.documents import Document, Note, Table, text
from trnlab.fabric.cluster import parse as cluster
from trnlab.fleet.quantities import TIME, parse
from trnlab.fleet.reliability import data_cost
from trnlab.profile.summary import from_store
from trnlab.storage import open_store
from trnlab.units import format_bytes


def arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab data`."""
    actions = command.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, about in (
        ("show", "what is in it: fields, formats, rows, shards"),
        ("verify", "read every file, and compare its checksums"),
        ("index", "read every file once, and write an index with checksums"),
        ("cost", "how long steps wait for it in each store, and what reading and keeping it costs"),
    ):
        action = actions.add_parser(name, help=about)
        add = action.add_argument
        add("url", metavar="URL", help="a folder, or such as s3://team/tokens")
        add("--dtype", metavar="FORMAT", help="of the numbers in .bin files, such as uint16")
        if name != "cost":
            continue
        add("--target", required=True, metavar="NAME", help="instances, such as 4xtrn2.48xlarge")
        add("--step", required=True, metavar="TIME", help="of the training, such as 250ms: see trnlab estimate")
        add("--batch", required=True, type=options.COUNT, metavar="N", help="samples of a rank in a step")
        add("--sequence", type=options.COUNT, metavar="N", help="tokens of a sample, where rows are tokens")
        add("--ranks", type=options.RANKS, metavar="N", help="that read; default: all of the instances")
        add(
            "--prefetch",
            type=options.whole(1, 1 << 16),
            metavar="N",
            default=8,
            help="requests of a rank at once; default: 8",
        )
        add(
            "--together",
            type=options.whole(1, 1 << 16),
            metavar="N",
            default=8,
            help="blocks whose samples are mixed; default: 8",
        )
        add("--block", type=options.whole(1, 1 << 16), metavar="MIB", default=8, help="of a read; default: 8")
        add("--store", action="append", metavar="NAME", help="s3, lustre-125 to lustre-1000; default: all")
        add("--json", action="store_true", help="for programs")


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
    if args.action == "cost":
        return _cost(args, shards)
    problems = damaged(shards)
    for problem in problems:
        print(problem)
    known = "with their checksums" if _summed(shards) else "to their ends; there are no checksums: trnlab data index"
    print(f"{len(shards.shards) - len(problems)} of {len(shards.shards)} shards are whole, read {known}")
    return 1 if problems else 0


def _cost(args: argparse.Namespace, shards: Shards) -> int:
    """What a job's steps wait for this data set in each store, and what that costs."""
    name = args.target if args.target[:1].isdigit() else f"1x{args.target}"
    job, step = cluster(name), parse(args.step, TIME, "--step")
    ranks = args.ranks or job.ranks
    reader = Reader(
        shards,
        args.batch,
        ranks=ranks,
        sequence=args.sequence,
        prefetch=args.prefetch,
        together=args.together,
        block=args.block << 20,
    )
    reads = data_cost.reads_of(reader)
    stores = args.store or data_cost.ALL
    found = [data_cost.cost(each, reads, step, job.target, job.instances) for each in stores]
    if args.json:
        print(json.dumps([each.as_json() for each in found], indent=2))
        return 0
    size = format_bytes(reads.request_bytes)
    asked = [
        f"{len(reader):,} batches of {args.batch:,} samples for {ranks} ranks an epoch, {args.prefetch} requests of",
        f"{size} at once, in steps of {args.step}; {reader.unused:,} samples are left out",
    ]
    lines = [*asked, *(line for each in found for line in from_store(each.as_json()))]
    print(text(Document(shards.store.url, [Note(line) for line in lines])))
    return 0


def _show(shards: Shards) -> None:
    rows = [
        (field.name, f"{field.dtype} {list(field.shape)}, {format_bytes(field.row_bytes)} a row")
        for field in shards.fields
    ]
    sums = "with checksums" if _summed(shards) else "without checksums"
    count = len(shards.shards)
    total = f"{shards.rows:,} rows in {count:,} shards of {shards.store.url}: {format_bytes(shards.nbytes)}, {sums}"
    print(text(Document(shards.store.url, [Table(rows), Note(total)])))


def _summed(shards: Shards) -> bool:
    return all(file.crc32 is not None for shard in shards.shards for file in shard.files.values())
