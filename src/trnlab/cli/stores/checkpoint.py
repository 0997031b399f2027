# SPDX-License-Identifier: Apache-2.0
"""`trnlab checkpoint`."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from pathlib import Path
from typing import Any

from trnlab.cli import options
from trnlab.documents import Document, Note, Table, text
from trnlab.errors import RunError, UsageError
from trnlab.storage import open_store
from trnlab.storage.checkpoints import Checkpoint, Checkpoints
from trnlab.storage.finished_checkpoint import OLDER
from trnlab.storage.store_errors import reason
from trnlab.units import format_bytes


def arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab checkpoint`."""
    actions = command.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, about in (
        ("ls", "list them, newest first"),
        ("verify", "read every file of every rank, and compare its digest"),
        ("diff", "which tensors and values differ between two checkpoints"),
    ):
        action = actions.add_parser(name, help=about)
        action.add_argument("url", metavar="URL", help="a folder, or such as s3://team/run7")
        if name == "diff":
            action.add_argument("other", metavar="OTHER", nargs="?", help="another run; default: the same")
            action.add_argument("--steps", metavar="A,B", help="which of each; default: the newest")
            action.add_argument("--rank", type=options.whole(0), default=0, help="whose files; default: 0")
    _conversion_arguments(actions)


def _conversion_arguments(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    for name, about in (
        ("show", "the tensors of a checkpoint of any kind: shapes, formats, slices"),
        ("reshard", "write a checkpoint of any kind in another layout"),
        ("to-hf", "write the model as safetensors, as Hugging Face has them"),
        ("from-hf", "make a checkpoint of a folder of safetensors"),
    ):
        action = actions.add_parser(name, help=about)
        add = action.add_argument
        add("url", metavar="SRC", help="trnlab's checkpoints, a DCP folder, the vendor's layout, or safetensors")
        add("--step", type=options.whole(0, 1 << 62), metavar="N", help="which one; default: the newest")
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


def main(args: argparse.Namespace) -> int:
    """List, verify or compare; returns 1 where something is damaged, or differs."""
    kept = Checkpoints(open_store(args.url))
    try:
        if args.action in ("show", "reshard", "to-hf", "from-hf"):
            # PyTorch takes a while.
            return int(importlib.import_module("trnlab.cli.stores.checkpoint_conversions").main(args))
        if args.action == "ls":
            print(text(listing(kept)))
            return 0
        return _verify(kept) if args.action == "verify" else _diff(args, kept)
    except OSError as error:
        raise RunError(
            f"the checkpoints cannot be read: {reason(error)}",
            code="TRN531",
            got=args.url,
            remedy="check the place and the permissions",
        ) from error


def listing(kept: Checkpoints) -> Document:
    """All that there are, newest first. Raises UsageError (TRN576) where there are none."""
    found = _present(kept)
    rows = [
        (
            f"step {c.step}",
            format_bytes(c.size),
            time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(c.created)),
            "done" if c.done else "not finished",
        )
        for c in found
    ]
    done = sum(c.done for c in found)
    total = f"{done} {'checkpoint' if done == 1 else 'checkpoints'} in {kept.store.url}"
    return Document(kept.store.url, [Table(rows, numbers=[1]), Note(total)], over="trnlab checkpoint")


def _present(kept: Checkpoints) -> list[Checkpoint]:
    """What there is, finished or not. Raises UsageError (TRN576) where there is nothing: a place that is misspelled
    looks the same as one that nobody has written to."""
    found = kept.all()
    if not found:
        raise UsageError(
            "there are no checkpoints in this place",
            code="TRN576",
            got=kept.store.url,
            limit="the folder or URL that --checkpoint, or trnlab.checkpoint, wrote to",
            remedy="check how it is spelled; a run writes them with trnlab run --checkpoint DIR_OR_URL --every STEPS",
        )
    return found


def _verify(kept: Checkpoints) -> int:
    found, damaged = _present(kept), 0
    done = [c for c in found if c.done]
    if not done:
        raise UsageError(
            "no checkpoint was finished, so there is nothing to verify",
            code="TRN534",
            got=kept.store.url,
            limit=f"{len(found)} that were begun",
            remedy="what was not finished is never read: go on, or begin anew",
        )
    for c in found:
        problems = kept.problems(c.step) if c.done else []
        damaged += bool(problems)
        print(f"step {c.step:<10} {problems[0] if problems else _state_of(kept, c)}")
        for problem in problems[1:]:
            print(f"{'':16}{problem}")
    astray = kept.astray()
    if astray:
        print(f"{'':16}{astray}")
    print(f"{len(done) - damaged} of {len(done)} are whole in {kept.store.url}")
    return 1 if damaged or astray else 0


def _state_of(kept: Checkpoints, found: Checkpoint) -> str:
    if not found.done:
        return "not finished; it is never read"
    return "whole" if kept.finished(found.step).covered else f"whole, as far as it can be told: {OLDER}"


def _diff(args: argparse.Namespace, kept: Checkpoints) -> int:
    other = Checkpoints(open_store(args.other)) if args.other else kept
    first, second = _chosen(args, kept, other)
    a, b = _state(kept, first, args.rank), _state(other, second, args.rank)
    from trnlab.frontends.torch.saving.training_state import differences  # PyTorch takes a while

    found = differences(a, b)
    for line in found:
        print(line)
    print(f"{len(found)} differences between step {first} of {kept.store.url} and step {second} of {other.store.url}")
    return 1 if found else 0


def _chosen(args: argparse.Namespace, kept: Checkpoints, other: Checkpoints) -> tuple[int, int]:
    """The steps to compare: those that are named, else the newest of two runs, else the last two of one."""
    if args.steps:
        names = args.steps.split(",")
        if len(names) == 2 and all(n.isdecimal() for n in names):
            return int(names[0]), int(names[1])
        raise UsageError("--steps names two steps", code="TRN534", got=args.steps, remedy="such as --steps 200,400")
    ours, theirs = _done(kept), _done(other)
    if other is not kept and ours and theirs:
        return ours[0].step, theirs[0].step
    if other is kept and len(ours) > 1:
        return ours[1].step, ours[0].step
    raise UsageError(
        "there are no two checkpoints to compare",
        code="TRN534",
        got=kept.store.url,
        remedy="name two runs, or two steps with --steps 200,400",
    )


def _done(kept: Checkpoints) -> list[Checkpoint]:
    return [c for c in kept.all() if c.done]


def _state(kept: Checkpoints, step: int, rank: int) -> Any:
    try:
        found = kept.finished(step)
    except FileNotFoundError as error:
        raise UsageError(
            f"there is no finished checkpoint of step {step}",
            code="TRN534",
            got=kept.store.url,
            remedy="see `trnlab checkpoint ls`",
        ) from error
    if not 0 <= rank < found.ranks:
        raise UsageError(
            f"the checkpoint of step {step} has no rank {rank}",
            code="TRN534",
            got=rank,
            limit=f"0 to {found.ranks - 1}",
            remedy="name one that wrote it with --rank",
        )
    found.require_whole()
    if not found.covered:
        print(f"trnlab: step {step} was {OLDER}", file=sys.stderr)
    from trnlab.frontends.torch.saving import state_files

    return state_files.unpacked(found.files(rank))
