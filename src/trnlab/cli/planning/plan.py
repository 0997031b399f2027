# SPDX-License-Identifier: Apache-2.0
"""`trnlab plan`. The planner is imported only where an answer is not kept."""

from __future__ import annotations

import argparse
from pathlib import Path

from trnlab.cli import options
from trnlab.cli.planning.answers import Answers
from trnlab.runtime.notices import say

KEPT = "as searched for before; --no-cache searches again"
FILES = ("csv", "page", "write")  # options that write files


def arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab plan`."""
    add = command.add_argument
    add("model", metavar="MODEL", nargs="?", help="a name, a config.json of Hugging Face, or YAML; see --models")
    add("--script", metavar="FILE", help="plan what this training script trains, in the place of MODEL")
    add("--arguments", metavar="TEXT", default="", help="of the script")
    options.allow(command)
    add("--models", action="store_true", help="list the models that are known by name")
    add("--tokens", metavar="N", help="to train on, such as 2T; of a script: 1,000 steps unless given")
    add("--samples", metavar="N", help="the same in sequences, images or whatever the model's samples are")
    add(
        "--epochs",
        metavar="N",
        type=options.real(0, 1e9, above=True),
        help="the same in passes over the data, see --epoch",
    )
    add("--epoch", metavar="N", help="tokens (or images) of one pass over the data: what one costs is told, too")
    add("--target", metavar="A,B,C", help="instance types, such as trn2.48xlarge,p5.48xlarge")
    add("--instances", metavar="FEW..MOST", default="1..16", help="of each target; default: 1..16")
    add("--deadline", metavar="TIME", help="such as 30d")
    add("--global-batch", metavar="N", default="1024", help="sequences in a step; default: 1024")
    add("--sequence", metavar="N", help="tokens of a sequence; default: what the model is trained on")
    add("--precision", choices=("bf16", "fp32"), default="bf16", help="of weights and products; default: bf16")
    add(
        "--layout",
        metavar="tp=8,pp=4",
        help="what of the layout is given: tp, pp, dp, mb, vp, zero, recompute, overlap",
    )
    add("--price", metavar="NAME=USD,...", help="dollars an hour of an instance, in the place of what is published")
    options.stack(command)
    add(
        "--compare",
        metavar="precision=fp32:bf16,recompute,...",
        help="settings side by side, each with its own best layout, and when each repays compiling it",
    )
    add(
        "--jobs",
        metavar="N",
        type=options.JOBS,
        default=1,
        help="processes that compile at the same time; default: 1",
    )
    add("--executor", metavar="dask://HOST:PORT", help="machines that compile at the same time: Dask's scheduler")
    add("--power", metavar="WATTS", help="that the site has, such as 2GW: hosts and cooling with it")
    add("--region", metavar="NAME", default="us-east-1", help="whose grid is counted; default: us-east-1")
    add("--json", action="store_true", help="everything as JSON, see docs/plan.md")
    add("--csv", metavar="FILE", type=Path, help="write all candidates that are in time, see docs/plan.md")
    add("--page", metavar="FILE", type=Path, help="write it as a page")
    add(
        "--write",
        metavar="DIR",
        type=Path,
        help="write what starts it on AWS: torchrun, Slurm, EKS, SageMaker, budget",
    )
    options.cache(command)


def main(args: argparse.Namespace) -> int:
    """Search, print, write; what was printed before is printed again."""
    answers = Answers.of(args, "plan", files=(args.model,), passing=(*FILES, "script", "models"))
    if (known := answers.known()) is not None:
        say(KEPT)
        print(known["json" if args.json else "text"])
        return 0
    from trnlab import documents
    from trnlab.cli.planning.plan_answer import answer, print_models

    if args.models:
        print_models()
        return 0
    said, write = answer(args)
    known = answers.keep(text=documents.text(said), json=said.json())
    print(known["json" if args.json else "text"])
    write()
    return 0
