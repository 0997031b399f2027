# SPDX-License-Identifier: Apache-2.0
"""`trnlab serve-plan`: which instances serve a model at a rate and in time, and for how much."""

from __future__ import annotations

import argparse

from trnlab import documents
from trnlab.cli import options
from trnlab.cli.planning.serving_document import document
from trnlab.errors import UsageError
from trnlab.fleet.models import configurations
from trnlab.fleet.quantities import TIME, parse
from trnlab.fleet.serving.offers import GenerationRequest, ReplicaSettings
from trnlab.fleet.serving.plan import ServingPlan, ServingQuestion, of_stacks
from trnlab.runtime.notices import say
from trnlab.runtime.settings import kept_folder


def arguments(command: argparse.ArgumentParser) -> None:
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
    add("--prompt", metavar="TOKENS", type=options.COUNT, default=2000, help="of each request; default: 2000")
    add("--output", metavar="TOKENS", type=options.COUNT, default=300, help="of each answer; default: 300")
    add(
        "--qps",
        metavar="RATE",
        type=options.real(0, 1e9, above=True),
        default=1.0,
        help="requests a second, at random; default: 1",
    )
    add("--p99", metavar="TIME", default="2s", help="within which 99 of 100 have their first token; default: 2s")
    add("--p99-request", metavar="TIME", help="within which 99 of 100 have their last token; default: whenever")
    add("--policy", metavar="NAME", default="prefill-first", help="prefill-first or turns; default: prefill-first")
    add(
        "--batch",
        metavar="N",
        type=options.whole(1, 1024),
        help="requests that decode together at most; default: chosen",
    )
    add(
        "--ranks",
        metavar="N",
        type=options.whole(1, 4096),
        help="that share a copy of the model; default: all sizes are tried",
    )
    add("--weights", metavar="FORMAT", default="bf16", help="of blocks in memory: bf16, fp8 or int8; default: bf16")
    options.stack(command)
    add("--seed", type=options.SEED, default=0, help="of the arrivals; default: 0")
    add("--json", action="store_true", help="everything as JSON, see docs/serving.md")
    options.cache(command)


def main(args: argparse.Namespace) -> int:
    """Print the plan. 1 where a target that was asked for, and not only named beside, cannot serve."""
    found, said = answer(args)
    print(said.json() if args.json else documents.text(said))
    missed = [name for name in dict.fromkeys(args.target.split(",")) if name and name not in found.best]
    if missed:
        say(f"{' and '.join(missed)} cannot serve this")
    return 1 if missed else 0


def answer(args: argparse.Namespace) -> tuple[ServingPlan, documents.Document]:
    """The plan under the first stack, and how all of them are told."""
    folder = None if args.no_cache else kept_folder(args) / "serving"
    stacked = of_stacks(_question(args), options.stacks_of(args), folder, say)
    return stacked[0], document(stacked)


def _question(args: argparse.Namespace) -> ServingQuestion:
    targets = tuple(name for name in dict.fromkeys(f"{args.target},{args.beside}".split(",")) if name)
    if not targets:
        raise UsageError(
            "no target", code="TRN168", limit="at least one instance", got="", remedy="--target inf2.48xlarge"
        )
    return ServingQuestion(
        configurations.model(args.model),
        GenerationRequest(args.prompt, args.output),
        args.qps,
        targets,
        parse(args.p99, TIME, "--p99"),
        parse(args.p99_request, TIME, "--p99-request") if args.p99_request else None,
        args.policy,
        ReplicaSettings(args.batch, args.ranks, args.weights),
        seed=args.seed,
    )
