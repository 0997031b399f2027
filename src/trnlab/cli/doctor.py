# SPDX-License-Identifier: Apache-2.0
"""`trnlab doctor`."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from trnlab.cli import options
from trnlab.cli.check import FAILED, examined
from trnlab.cli.views import effect_lines
from trnlab.errors import UsageError
from trnlab.fabric.cluster import parse
from trnlab.operations import doctor
from trnlab.runtime.checkpoint_plan import USUAL_KEEP
from trnlab.runtime.settings import CHECKPOINT, said


def arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab doctor`."""
    add = command.add_argument
    options.setting(
        command,
        "target",
        metavar="NAME",
        help="of the job, e.g. trn1.32xlarge or 16xtrn2.48xlarge; default: $TRNLAB_TARGET",
    )
    add(
        "--ranks",
        type=options.whole(1),
        metavar="N",
        help="of the job; default: 1, and of a cluster all that it holds",
    )
    add("--rank", type=options.whole(0), default=0, metavar="R", help="the rank to follow; default: 0")
    add("--batches", type=options.whole(0), default=0, metavar="N", help=argparse.SUPPRESS)
    options.setting(command, "checkpoint", help="where checkpoints will go; default: $TRNLAB_CHECKPOINT")
    options.setting(command, "keep", type=options.whole(1))
    add("--json", action="store_true", help="everything as JSON, see docs/doctor.md")
    options.settings(command, "precision", "precision_rules")
    options.setting(command, "comm_threshold")
    options.allow(command)
    options.cache(command, "look at the script anew")
    add("script", metavar="SCRIPT", type=Path, nargs="?", help="what will run: memory, and room for its checkpoints")
    add("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="arguments of the script")


def main(args: argparse.Namespace) -> int:
    """Say on one page whether this host is fit for a job; returns 0 where it is, 1 where it is not."""
    name = said("target", os.environ, args)
    if not name:
        raise UsageError(
            "no target is chosen, and none is guessed", code="TRN120", remedy="such as --target 16xtrn2.48xlarge"
        )
    cluster = parse(name)
    report = examined(args) if args.script is not None else None
    job = next((target.job for target in report.targets), None) if report is not None else None
    ranks = args.ranks or (cluster.ranks if cluster.instances > 1 else job.ranks if job is not None else 1)
    cache = said("cache", os.environ, args)
    place = args.checkpoint or os.environ.get(CHECKPOINT)
    site = doctor.this_host(cluster, ranks, cache, place, args.keep or USUAL_KEEP)
    if report is not None:
        site = doctor.with_report(site, report)
    found = doctor.examine(site)
    effects = report.effects if report is not None else None
    if args.json:
        print(json.dumps({**doctor.as_json(site, found), "effects": effects and effects.as_json()}, indent=2))
    else:
        print("\n\n".join(part for part in (doctor.text(site, found), "\n".join(effect_lines(effects))) if part))
    return FAILED if doctor.failed(found) else 0
