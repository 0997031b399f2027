# SPDX-License-Identifier: Apache-2.0
"""The answer of `trnlab plan`: searched for, and written where files are asked for."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from trnlab import chips, documents
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
from trnlab.fleet.costs.timed import SharedRoutines
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
from trnlab.validation import mine

Answer = tuple[documents.Document, Callable[[], None]]  # and what writes the files that are asked for


def answer(args: argparse.Namespace, search: Callable[..., Plan] = plan) -> Answer:
    """Search. search: `plan`, or what remembers plans. Raises UsageError as `question` and `Plan.chosen`."""
    intensity(args.region)  # what cannot be read is said before a search
    first = question(args)
    asked, *others = (replace(first, stack=stack) for stack in options.stacks_of(args))
    folder = None if args.no_cache else kept_folder(args) / "plans"
    names = tuple(filter(None, args.target.split(",")))
    elsewhere = [name for name in names if name not in TARGETS and name in instances()]
    if len(elsewhere) == len(names):  # nothing to compile: only what was published of others
        return beside_document(alternatives.others(asked, elsewhere), args.region), lambda: None
    if args.compare:
        return _compared(args, asked, folder)
    routines = SharedRoutines()
    with helpers(args) as ahead:
        found, *apart = (_searched(args, one, folder, ahead, routines, search) for one in (asked, *others))
    beside = alternatives.others(asked, elsewhere, found.chosen.bill.days)
    plans = (found, *apart)
    held = [_accuracy(args, one) for one in plans]
    said = document(found, beside, held[0], args.region, list(zip(plans, held)))
    return said, lambda: _written(args, found, said)


def print_models() -> None:
    """Print the models that are known by name."""
    for name in catalogue():
        known = model(name)
        print(f"{name:<16} {known.parameters / 1e9:>8.2f} B parameters   {known.source}")


def _accuracy(args: argparse.Namespace, found: Plan) -> PlanAccuracy:
    """How far plans like this one are off, in the user's own runs where there are enough."""
    asked, cache = found.question, None if args.no_cache else kept_folder(args)
    return mine.held(found.chosen.cluster.target.name, asked.precision, asked.stack.name, cache)


def _searched(
    args: argparse.Namespace,
    asked: Question,
    folder: Path | None,
    ahead: CompilePool | None,
    routines: SharedRoutines,
    search: Callable[..., Plan],
) -> Plan:
    """The plan of a question, by its stack, within the power of the site."""
    if asked.stack.name != OURS:
        say(f"as {asked.stack.title} has it")
    found = search(asked, folder, say, ahead, _come, routines)
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


def _compared(args: argparse.Namespace, asked: Question, folder: Path | None) -> Answer:
    """Settings side by side; files are of the cheapest."""
    axes = settings.axes(args.compare)
    with helpers(args) as ahead:
        found = settings.compare(asked, axes, folder, say, ahead, lambda made: _held(args, made))
    cheapest = found.cheapest[0].found
    written = document(cheapest, (), _accuracy(args, cheapest), args.region)
    return settings_document.document(found), lambda: _written(args, cheapest, written)


def _come(found: Plan) -> None:
    """Say what is the best so far."""
    for best in found.best(1):
        cost = (
            f"${best.bill.usd:,.0f}" if best.bill.usd is not None else f"{best.bill.device_hours:,.0f} device hours"
        )
        say(f"cheapest so far: {best.cluster.name}, {best.step.layout}: {best.bill.days:.3g} days, {cost}")


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
        prices=_prices(args.price or ""),
    )


def _prices(text: str) -> dict[str, float]:
    """`trn2.48xlarge=25.5,...`: dollars an hour by instance. Raises UsageError (TRN101, TRN173)."""
    found = {}
    for part in filter(None, text.split(",")):
        name, _, usd = part.partition("=")
        found[chips.target(name.strip()).name] = quantities.parse(usd.strip(), quantities.MONEY, "--price")
    return found


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
