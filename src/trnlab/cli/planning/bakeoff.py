# SPDX-License-Identifier: Apache-2.0
"""`trnlab bakeoff`."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from pathlib import Path

from trnlab import documents
from trnlab.chips.catalog import TARGETS
from trnlab.cli import options
from trnlab.errors import UsageError
from trnlab.estimate.job import JobStep
from trnlab.fleet.bills import energy
from trnlab.fleet.comparison.bakeoff import Bakeoff
from trnlab.fleet.comparison.contenders import (
    Contender,
    Workload,
    gpu_contender,
    neuron_contender,
    of_neuron,
    spelled,
    work_of,
)
from trnlab.fleet.costs.timed import SharedRoutines
from trnlab.fleet.models.configurations import model
from trnlab.fleet.models.residual import IMAGENET
from trnlab.fleet.models.unpartitioned import UnpartitionedModel
from trnlab.fleet.quantities import COUNT, MONEY, TIME, parse
from trnlab.fleet.reliability.goodput import Reliability
from trnlab.fleet.report.bakeoff_document import document
from trnlab.precision import MODES
from trnlab.runtime.settings import kept_folder
from trnlab.stacks import Stack
from trnlab.units import SECONDS_PER_DAY
from trnlab.validation import mine

FORM = "bf16"  # of the Neuron side
PROGRAMS = "plans"  # in the cache, as of trnlab plan


def arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab bakeoff`."""
    add = command.add_argument
    add("what", metavar="SCRIPT_OR_MODEL", help="a training script, a model's name, or a config.json")
    for side, example in (("a", "trn2.48xlarge"), ("b", "p5.48xlarge")):
        add(f"--{side}", required=True, metavar="NAME", help=f"one side, e.g. {example} or 4x{example}")
    add("--days", default="2", metavar="DAYS", help="of the run; default: 2")
    add("--batch", type=options.COUNT, default=1024, metavar="N", help="sequences or images of a step; default: 1024")
    add("--sequence", type=options.whole(0), default=0, metavar="N", help="tokens of each; default: the model's")
    add("--epoch", metavar="N", help="tokens or images of one pass over the data; default: ImageNet's images")
    add("--precision", choices=("bf16", "fp8"), default="bf16", help="of the other side's products; default: bf16")
    add(
        "--kind", choices=("decoder", "encoder", "experts", "vision", "convolution"), help="a script's class of model"
    )
    add("--region", default="us-east-1", metavar="NAME", help="whose grid is counted; default: us-east-1")
    add("--json", action="store_true", help="everything as JSON, see docs/bakeoff.md")
    options.stack(command)
    options.cache(command)
    add("--porting", metavar="DAYS", help="engineer days that moving to side a takes")
    add("--day-rate", default="$1000", metavar="MONEY", help="of one of those days; default: $1000, assumed")
    add("--arguments", default="", metavar="TEXT", help="of the script, as a shell would split them")


def main(args: argparse.Namespace) -> int:
    """Compare two sides of the same training."""
    said = answer(args)
    print(said.json() if args.json else documents.text(said))
    return 0


def answer(args: argparse.Namespace) -> documents.Document:
    """The comparison."""
    for text in (args.a, args.b):  # what cannot be read is said before a search
        spelled(text)
    energy.intensity(args.region)
    days = _days(args.days)
    asked = parse(args.epoch, COUNT, "--epoch") if args.epoch else 0.0
    port = (_days(args.porting, "--porting"), parse(args.day_rate, MONEY, "--day-rate")) if args.porting else None
    stacks = options.stacks_of(args)
    neuron = any(spelled(text)[1] in TARGETS for text in (args.a, args.b))
    found, routines = [], SharedRoutines()
    for stack in stacks if neuron else stacks[:1]:
        if args.what.endswith(".py"):
            work, sides = _of_script(args, stack)
        else:
            work = work_of(model(args.what), args.batch, args.sequence)
            sides = [_side(args, work, text, stack, routines) for text in (args.a, args.b)]
        between = Reliability().between(sides[0].accelerators)
        found.append(
            Bakeoff(work, sides[0], sides[1], days, asked or _epoch(work), args.region, between, port, stack)
        )
    return document(found[0], found if neuron else ())


def _epoch(work: Workload) -> float:
    """Units of the usual data set; 0 where there is none."""
    if isinstance(work.model, UnpartitionedModel):
        return float(work.model.epoch)
    return IMAGENET if work.unit == "images" else 0.0


def _days(text: str, option: str = "--days") -> float:
    """A number of days alone, or an amount of time. Raises UsageError (TRN173)."""
    return parse(f"{text}d" if text.replace(".", "", 1).isdecimal() else text, TIME, option) / SECONDS_PER_DAY


def _side(args: argparse.Namespace, work: Workload, text: str, stack: Stack, routines: SharedRoutines) -> Contender:
    count, name = spelled(text)
    if name not in TARGETS:
        return gpu_contender(work, name, count, args.precision)
    cache = None if args.no_cache else kept_folder(args)
    folder = None if cache is None else cache / PROGRAMS
    held = mine.held(name, FORM, stack.name, cache)
    found = of_neuron(work, name, count, held, folder, stack, routines)
    if found.measure is None:
        return found
    return replace(found, measure=replace(found.measure, model=args.what))


def _of_script(args: argparse.Namespace, stack: Stack) -> tuple[Workload, list[Contender]]:
    """A script's step, as `trnlab estimate` has it for the Neuron side; its operations are those of the other."""
    from trnlab.cli.check import examined

    texts = (args.a, args.b)
    neuron = [text for text in texts if spelled(text)[1] in TARGETS]
    if not neuron:
        raise UsageError(
            "a script is compared by what one side's programs are",
            code="TRN157",
            got=f"{args.a} and {args.b}",
            limit="one side of Neuron",
            remedy="give a model's name to compare others among themselves",
        )
    found = {text: examined(_estimate(args, text, stack)) for text in neuron}
    first = found[neuron[0]]
    target = next(iter(first.targets), None)
    if target is None or target.step_s is None or target.mfu is None or not first.per_step:
        raise UsageError(
            f"{args.what} has no time that could be compared",
            code="TRN157",
            got=(target.why if target else "") or "no step that counts what it trains on",
            limit="a script that `trnlab estimate` times",
            remedy="run `trnlab estimate` on it",
        )
    flops = target.mfu * target.step_s * TARGETS[target.name].chip.peak_flops(MODES[first.precision])
    unit = first.counted or "tokens"
    kind = args.kind or ("decoder" if unit == "tokens" else "vision")
    work = Workload(Path(args.what).name, kind, unit, flops / first.per_step, first.parameters)
    sides = []
    for text in texts:
        count, name = spelled(text)
        if text in found:
            result = found[text].targets[0]
            job = result.job
            rate = job.per_s if job is not None else (result.per_s or 0.0) * count
            waits = _waits(job)
            held = mine.held(name, first.precision, stack.name, None if args.no_cache else kept_folder(args))
            sides.append(neuron_contender(name, count, rate, result.mfu or 0.0, held, "as the script has it", waits))
        else:
            sides.append(gpu_contender(work, name, count, args.precision))
    return work, sides


def _waits(job: JobStep | None) -> float | None:
    """The share of a job's step in which its ranks wait for the network; None where that is not known."""
    if job is None or job.communication is None or not job.step_s:
        return None
    return float(sum(kind["exposed_s"] for kind in job.communication["kinds"].values()) / job.step_s)


def _estimate(args: argparse.Namespace, target: str, stack: Stack) -> argparse.Namespace:
    """What `trnlab estimate` would be called with."""
    return argparse.Namespace(
        script=Path(args.what),
        arguments=shlex.split(args.arguments),
        target=target,
        precision=None,
        precision_rules=None,
        cache=args.cache,
        no_cache=args.no_cache,
        ranks=None,
        rank=0,
        batches=0,
        comm_threshold=None,
        fault=None,
        stack=stack.text,
    )
