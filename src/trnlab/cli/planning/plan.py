# SPDX-License-Identifier: Apache-2.0
"""`trnlab plan`."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from trnlab import documents
from trnlab.chips.catalog import TARGETS
from trnlab.cli import options
from trnlab.cli.planning.executors import helpers
from trnlab.cli.planning.plan_script import STEPS, scripted
from trnlab.errors import UsageError
from trnlab.files import write_atomic
from trnlab.fleet import quantities
from trnlab.fleet.bills.energy import intensity
from trnlab.fleet.comparison import alternatives
from trnlab.fleet.comparison.contenders import PlanAccuracy
from trnlab.fleet.gpus.catalogue import instances
from trnlab.fleet.models.configurations import catalogue, model
from trnlab.fleet.models.transformer import Model
from trnlab.fleet.models.unpartitioned import UnpartitionedModel
from trnlab.fleet.planning import launch_files, settings
from trnlab.fleet.planning.plan import Plan, plan
from trnlab.fleet.planning.question import Question
from trnlab.fleet.report import settings_document
from trnlab.fleet.report.beside_document import beside_document
from trnlab.fleet.report.document import document
from trnlab.fleet.report.table import to_csv
from trnlab.fleet.search.layout import pinned
from trnlab.fleet.search.prefetch import CompilePool
from trnlab.runtime.notices import say
from trnlab.runtime.settings import kept_folder
from trnlab.stacks import OURS
from trnlab.validation import mine, planned


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
    options.stack(command)
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
    options.cache(command)


def main(args: argparse.Namespace) -> int:
    """Search, print, write."""
    if args.models:
        for name in catalogue():
            known = model(name)
            print(f"{name:<16} {known.parameters / 1e9:>8.2f} B parameters   {known.source}")
        return 0
    intensity(args.region)  # what cannot be read is said before a search
    first = question(args)
    asked, *others = (replace(first, stack=stack) for stack in options.stacks_of(args))
    folder = None if args.no_cache else kept_folder(args) / "plans"
    names = tuple(filter(None, args.target.split(",")))
    elsewhere = [name for name in names if name not in TARGETS and name in instances()]
    if len(elsewhere) == len(names):
        return _elsewhere(args, asked, elsewhere)
    if args.compare:
        return _compared(args, asked, folder)
    with helpers(args) as ahead:
        found, *apart = (_searched(args, one, folder, ahead) for one in (asked, *others))
    beside = alternatives.others(asked, elsewhere, found.chosen.bill.days)
    plans = (found, *apart)
    held = [_accuracy(args, one) for one in plans]
    said = document(found, beside, held[0], args.region, list(zip(plans, held)))
    print(said.json() if args.json else documents.text(said))
    _written(args, found, said)
    return 0


def _accuracy(args: argparse.Namespace, found: Plan) -> PlanAccuracy:
    """How far plans like this one are off, in the user's own runs where there are enough."""
    own = mine.kept(None if args.no_cache else kept_folder(args) / mine.FOLDER)
    asked = found.question
    return planned.held(found.chosen.cluster.target.name, asked.precision, asked.stack.name, own)


def _searched(args: argparse.Namespace, asked: Question, folder: Path | None, ahead: CompilePool | None) -> Plan:
    """The plan of a question, by its stack, within the power of the site."""
    if asked.stack.name != OURS:
        say(f"as {asked.stack.title} has it")
    found = plan(asked, folder, say, ahead, _come)
    _held(args, found)
    return found


def _held(args: argparse.Namespace, found: Plan) -> None:
    """Within the power of the site."""
    if args.power:
        alternatives.hold(found, quantities.parse(args.power, quantities.POWER, "--power"))


def _written(args: argparse.Namespace, found: Plan, said: documents.Document) -> None:
    """The files that are asked for."""
    if args.csv:
        write_atomic(args.csv, to_csv(found, len(found)).encode())
    if args.write:
        for file in launch_files.write(found, args.write):
            say(f"wrote {file}")
    if args.page:
        write_atomic(args.page, documents.page(said).encode())


def _compared(args: argparse.Namespace, asked: Question, folder: Path | None) -> int:
    """Settings side by side; files are of the cheapest."""
    axes = settings.axes(args.compare)
    with helpers(args) as ahead:
        found = settings.compare(asked, axes, folder, say, ahead, lambda made: _held(args, made))
    said = settings_document.document(found)
    print(said.json() if args.json else documents.text(said))
    cheapest = found.cheapest[0].found
    _written(args, cheapest, document(cheapest, (), _accuracy(args, cheapest), args.region))
    return 0


def _come(found: Plan) -> None:
    """Say what is the best so far."""
    for best in found.best(1):
        cost = (
            f"${best.bill.usd:,.0f}" if best.bill.usd is not None else f"{best.bill.device_hours:,.0f} device hours"
        )
        say(f"cheapest so far: {best.cluster.name}, {best.step.layout}: {best.bill.days:.3g} days, {cost}")


def _elsewhere(args: argparse.Namespace, asked: Question, names: list[str]) -> int:
    """Nothing to compile: only what was published of others."""
    beside = alternatives.others(asked, names)
    said = beside_document(beside, args.region)
    print(said.json() if args.json else documents.text(said))
    return 0


def _planned(args: argparse.Namespace) -> tuple[str, ...]:
    """Targets of Neuron; where there is none, all that were named."""
    names = tuple(filter(None, args.target.split(",")))
    return tuple(name for name in names if name in TARGETS or name not in instances()) or names


def question(args: argparse.Namespace) -> Question:
    """What the arguments ask. Raises UsageError for what cannot be read or is missing."""
    _complete(args)
    targets = _planned(args)
    batch = int(quantities.parse(args.global_batch, quantities.COUNT, "--global-batch"))
    sequence = int(quantities.parse(args.sequence, quantities.COUNT, "--sequence")) if args.sequence else 0
    own = scripted(args, next((name for name in targets if name in TARGETS), "")) if args.script else None
    known = own.model if own is not None else model(args.model)
    epoch = _epoch(args, known, sequence)
    step = batch * (sequence or known.sequence)
    return Question(
        known,
        _tokens(args, known, sequence, epoch, step),
        targets,
        quantities.parse_range(args.instances, "--instances"),
        quantities.parse(args.deadline, quantities.TIME, "--deadline") if args.deadline else None,
        batch,
        sequence,
        args.precision,
        pinned(args.layout or ""),
        captured=own.captured if own is not None else None,
        spelled=own.spelled if own is not None else (args.model,),
        epoch=epoch,
    )


def _tokens(args: argparse.Namespace, known: Model, sequence: int, epoch: float, step: int) -> float:
    """To train on, however they were said. Raises UsageError (TRN178) for epochs of an unknown size."""
    if args.tokens:
        return quantities.parse(args.tokens, quantities.TOKENS, "--tokens")
    if args.samples:
        return quantities.parse(args.samples, quantities.TOKENS, "--samples") * (sequence or known.sequence)
    if args.epochs:
        if not epoch:
            raise UsageError(
                f"nothing says how large an epoch of {known.name} is",
                code="TRN178",
                limit="--epochs with --epoch",
                got=f"--epochs {args.epochs:g} alone",
                remedy="add --epoch N, or give --tokens",
            )
        return float(args.epochs * epoch)
    say(f"--tokens is not given: {STEPS:,} steps are planned")
    return float(STEPS * step)


def _epoch(args: argparse.Namespace, known: Model, sequence: int) -> float:
    """In tokens, as plans count: of images, all patches of each."""
    if not args.epoch:
        return float(known.epoch) if isinstance(known, UnpartitionedModel) else 0.0
    units = quantities.parse(args.epoch, quantities.TOKENS, "--epoch")
    return units * (sequence or known.sequence) if known.patch else units


def _complete(args: argparse.Namespace) -> None:
    """Raises UsageError (TRN178) where something is missing, or there is too much."""
    if args.model and args.script:
        raise UsageError(
            "a plan is of a model or of a script",
            code="TRN178",
            limit="one of MODEL and --script",
            got=f"{args.model} and {args.script}",
            remedy="leave one of them out",
        )
    said = [f"--{name}" for name in ("tokens", "samples", "epochs") if getattr(args, name)]
    if len(said) > 1:
        raise UsageError(
            "a plan has one end",
            code="TRN178",
            limit="one of --tokens, --samples and --epochs",
            got=" and ".join(said),
            remedy="leave all but one out",
        )
    for option, value in (
        ("MODEL", args.model or args.script),
        ("--tokens", said or args.script),
        ("--target", args.target),
    ):
        if not value:
            raise UsageError(
                f"{option} is missing",
                code="TRN178",
                limit="a model, --tokens and --target",
                got="none",
                remedy="trnlab plan llama3-8b --tokens 1T --target trn2.48xlarge --instances 4..64",
            )
