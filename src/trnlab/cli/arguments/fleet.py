# SPDX-License-Identifier: Apache-2.0
"""Arguments of the commands that plan: clusters, dollars, failures, requests."""

from __future__ import annotations

import argparse
from pathlib import Path

from trnlab.cli.arguments.common import allow, cache_options


def goodput(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab goodput`."""
    add = command.add_argument
    add("--chips", metavar="N", required=True, help="of the job, e.g. 500000 or 500k")
    add("--target", metavar="NAME", default="trn2.48xlarge", help="the instance they are in; default: trn2.48xlarge")
    size = command.add_mutually_exclusive_group()
    size.add_argument("--model", metavar="NAME", help="a model by name, or its config.json")
    size.add_argument("--parameters", metavar="N", default="1T", help="of a model; default: 1T")
    add("--above", metavar="SHARE", type=float, default=0.9, help="goodput that is to be kept; default: 0.9")
    add("--step", metavar="TIME", default="10s", help="of one step; default: 10s")
    add("--replica", metavar="N", type=int, help="chips of one copy of the model; default: the fewest that hold it")
    add("--store", metavar="NAME", help="of checkpoints: s3, lustre-125 to lustre-1000, neighbour; default: s3")
    add(
        "--device-hours",
        metavar="H",
        type=float,
        help="between failures of a device; default: that of Llama 3's H100",
    )
    add(
        "--spares",
        metavar="N",
        type=int,
        help="instances that stand by; default: as many as are nearly always enough",
    )
    add("--oversubscription", metavar="X", type=float, default=1.0, help="of the network's halves; default: 1")
    add("--power", metavar="WATTS", help="that there are, e.g. 2GW")
    add("--seed", type=int, default=0, help="of the simulation; default: 0")
    add("--json", action="store_true", help="everything as JSON, see docs/goodput.md")


def plan(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab plan`."""
    add = command.add_argument
    add("model", metavar="MODEL", nargs="?", help="a name, a config.json of Hugging Face, or YAML; see --models")
    add("--script", metavar="FILE", help="plan what this training script trains, in the place of MODEL")
    add("--arguments", metavar="TEXT", default="", help="of the script")
    allow(command)
    add("--models", action="store_true", help="list the models that are known by name")
    add("--tokens", metavar="N", help="to train on, such as 2T; of a script: 1,000 steps unless given")
    add("--samples", metavar="N", help="the same in sequences, images or whatever the model's samples are")
    add("--epochs", metavar="N", type=float, help="the same in passes over the data, see --epoch")
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
    add(
        "--compare",
        metavar="precision=fp32:bf16,recompute,...",
        help="settings side by side, each with its own best layout, and when each repays compiling it",
    )
    add("--jobs", metavar="N", type=int, default=1, help="processes that compile at the same time; default: 1")
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
    cache_options(command)


def serve(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab serve-plan`."""
    add = command.add_argument
    add("model", metavar="MODEL", help="a model by name, or its config.json")
    add("--target", metavar="A,B,...", required=True, help="instances, e.g. inf2.48xlarge,trn2.3xlarge")
    add(
        "--beside",
        metavar="A,B,...",
        default="p5.48xlarge,g6e.xlarge",
        help="other vendors' instances, by a roofline; default: p5.48xlarge,g6e.xlarge",
    )
    add("--prompt", metavar="TOKENS", type=int, default=2000, help="of each request; default: 2000")
    add("--output", metavar="TOKENS", type=int, default=300, help="of each answer; default: 300")
    add("--qps", metavar="RATE", type=float, default=1.0, help="requests a second, at random; default: 1")
    add("--p99", metavar="TIME", default="2s", help="within which 99 of 100 have their first token; default: 2s")
    add("--p99-request", metavar="TIME", help="within which 99 of 100 have their last token; default: whenever")
    add("--policy", metavar="NAME", default="prefill-first", help="prefill-first or turns; default: prefill-first")
    add("--batch", metavar="N", type=int, help="requests that decode together at most; default: chosen")
    add("--ranks", metavar="N", type=int, help="that share a copy of the model; default: all sizes are tried")
    add("--weights", metavar="FORMAT", default="bf16", help="of blocks in memory: bf16, fp8 or int8; default: bf16")
    add("--seed", type=int, default=0, help="of the arrivals; default: 0")
    add("--json", action="store_true", help="everything as JSON, see docs/serving.md")
    cache_options(command)


def bakeoff(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab bakeoff`."""
    add = command.add_argument
    add("what", metavar="SCRIPT_OR_MODEL", help="a training script, a model's name, or a config.json")
    for side, example in (("a", "trn2.48xlarge"), ("b", "p5.48xlarge")):
        add(f"--{side}", required=True, metavar="NAME", help=f"one side, e.g. {example} or 4x{example}")
    add("--days", default="2", metavar="DAYS", help="of the run; default: 2")
    add("--batch", type=int, default=1024, metavar="N", help="sequences or images of a step; default: 1024")
    add("--sequence", type=int, default=0, metavar="N", help="tokens of each; default: the model's")
    add("--epoch", metavar="N", help="tokens or images of one pass over the data; default: ImageNet's images")
    add("--precision", choices=("bf16", "fp8"), default="bf16", help="of the other side's products; default: bf16")
    add(
        "--kind", choices=("decoder", "encoder", "experts", "vision", "convolution"), help="a script's class of model"
    )
    add("--region", default="us-east-1", metavar="NAME", help="whose grid is counted; default: us-east-1")
    add("--json", action="store_true", help="everything as JSON, see docs/bakeoff.md")
    cache_options(command)
    add("--porting", type=float, default=0.0, metavar="DAYS", help="engineer days that moving to side a takes")
    add("--day-rate", default="$1000", metavar="MONEY", help="of one of those days; default: $1000, assumed")
    add("--arguments", default="", metavar="TEXT", help="of the script, as a shell would split them")
