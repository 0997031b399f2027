# SPDX-License-Identifier: Apache-2.0
"""Arguments of the commands that look into caches and checkpoints."""

from __future__ import annotations

import argparse
from pathlib import Path

from trnlab.cli.arguments.common import cache_options, whole


def cache(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab cache`."""
    actions = command.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, text in (
        ("ls", "list the entries"),
        ("verify", "check every entry to its last byte"),
        ("clear", "remove everything"),
        ("explain", "what made an entry differ from its nearest neighbour"),
        ("prune", "remove what is damaged, old, or was used least recently"),
        ("push", "copy entries of the cache to another one"),
        ("pull", "copy entries of another cache into this one"),
    ):
        action = actions.add_parser(name, help=text)
        if name == "explain":
            action.add_argument("subject", metavar="KEY_OR_SCRIPT", help="start of a key, or the path of a script")
        elif name in ("push", "pull"):
            action.add_argument("other", metavar="URL", help="the other cache: a folder, or such as s3://team/cache")
            action.add_argument("keys", metavar="KEY", nargs="*", help="starts of keys; default: all that is sound")
        else:
            action.add_argument("url", metavar="URL", nargs="?", help="a folder, or such as s3://team/cache")
        if name == "prune":
            action.add_argument("--size", metavar="BYTES", help="how much may stay, such as 20GiB")
            action.add_argument(
                "--age", metavar="TIME", help="how long something may stay unused, such as 30d or 12h"
            )
            action.add_argument("--dry-run", action="store_true", help="only say what would go")
        cache_options(action, "")


def checkpoint(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab checkpoint`."""
    actions = command.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, text in (
        ("ls", "list them, newest first"),
        ("verify", "read every file of every rank, and compare its digest"),
        ("diff", "which tensors and values differ between two checkpoints"),
    ):
        action = actions.add_parser(name, help=text)
        action.add_argument("url", metavar="URL", help="a folder, or such as s3://team/run7")
        if name == "diff":
            action.add_argument("other", metavar="OTHER", nargs="?", help="another run; default: the same")
            action.add_argument("--steps", metavar="A,B", help="which of each; default: the newest")
            action.add_argument("--rank", type=whole(0), default=0, help="whose files; default: 0")
    _conversions(actions)


def data(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab data`."""
    actions = command.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, text in (
        ("show", "what is in it: fields, formats, rows, shards"),
        ("verify", "read every file, and compare its checksums"),
        ("index", "read every file once, and write an index with checksums"),
        ("cost", "how long steps wait for it in each store, and what reading and keeping it costs"),
    ):
        action = actions.add_parser(name, help=text)
        add = action.add_argument
        add("url", metavar="URL", help="a folder, or such as s3://team/tokens")
        add("--dtype", metavar="FORMAT", help="of the numbers in .bin files, such as uint16")
        if name != "cost":
            continue
        add("--target", required=True, metavar="NAME", help="instances, such as 4xtrn2.48xlarge")
        add("--step", required=True, metavar="TIME", help="of the training, such as 250ms: see trnlab estimate")
        add("--batch", required=True, type=int, metavar="N", help="samples of a rank in a step")
        add("--sequence", type=int, metavar="N", help="tokens of a sample, where rows are tokens")
        add("--ranks", type=int, metavar="N", help="that read; default: all of the instances")
        add("--prefetch", type=int, metavar="N", default=8, help="requests of a rank at once; default: 8")
        add("--together", type=int, metavar="N", default=8, help="blocks whose samples are mixed; default: 8")
        add("--block", type=int, metavar="MIB", default=8, help="of a read; default: 8")
        add("--store", action="append", metavar="NAME", help="s3, lustre-125 to lustre-1000; default: all")
        add("--json", action="store_true", help="for programs")


def _conversions(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    for name, text in (
        ("show", "the tensors of a checkpoint of any kind: shapes, formats, slices"),
        ("reshard", "write a checkpoint of any kind in another layout"),
        ("to-hf", "write the model as safetensors, as Hugging Face has them"),
        ("from-hf", "make a checkpoint of a folder of safetensors"),
    ):
        action = actions.add_parser(name, help=text)
        add = action.add_argument
        add("url", metavar="SRC", help="trnlab's checkpoints, a DCP folder, the vendor's layout, or safetensors")
        add("--step", type=int, metavar="N", help="which one; default: the newest")
        add("--cut", action="append", default=[], metavar="PATTERN=DIM", help="how tensor parallelism cuts tensors")
        if name == "show":
            continue
        add("dst", metavar="DST", help="a folder or URL")
        if name == "to-hf":
            add("--dtype", choices=("bf16", "fp16", "fp32"), help="of the weights; default: as they are")
            add("--shard-size", metavar="BYTES", default="1GiB", help="of a file at most; default: 1GiB")
            add("--config", type=Path, metavar="FILE", help="a config.json to put beside them")
        else:
            add("--to", metavar="LAYOUT", default="dp1", help="such as dp2,tp4,pp1", required=name == "reshard")
            add("--format", choices=("dcp", "vendor"), default="dcp", help="dcp, which trnlab reads, or the vendor's")
