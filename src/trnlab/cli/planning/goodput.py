# SPDX-License-Identifier: Apache-2.0
"""`trnlab goodput`: what failures leave of a job of many chips, and what keeps it above a target."""

from __future__ import annotations

import argparse

from trnlab import chips, documents
from trnlab.cli import options
from trnlab.cli.planning.goodput_document import document
from trnlab.errors import UsageError
from trnlab.fleet.models import configurations
from trnlab.fleet.quantities import COUNT, POWER, TIME, parse
from trnlab.fleet.reliability.goodput import Reliability
from trnlab.fleet.reliability.measures import Job, ReliabilityStudy, examine, simulate

BELOW = 1


def arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab goodput`."""
    add = command.add_argument
    add("--chips", metavar="N", required=True, help="of the job, e.g. 500000 or 500k")
    add("--target", metavar="NAME", default="trn2.48xlarge", help="the instance they are in; default: trn2.48xlarge")
    size = command.add_mutually_exclusive_group()
    size.add_argument("--model", metavar="NAME", help="a model by name, or its config.json")
    size.add_argument("--parameters", metavar="N", default="1T", help="of a model; default: 1T")
    add(
        "--above",
        metavar="SHARE",
        type=options.real(0, 1, above=True),
        default=0.9,
        help="goodput that is to be kept; default: 0.9",
    )
    add("--step", metavar="TIME", default="10s", help="of one step; default: 10s")
    add(
        "--replica",
        metavar="N",
        type=options.COUNT,
        help="chips of one copy of the model; default: the fewest that hold it",
    )
    add("--store", metavar="NAME", help="of checkpoints: s3, lustre-125 to lustre-1000, neighbour; default: s3")
    add(
        "--device-hours",
        metavar="H",
        type=options.real(0, 1e12, above=True),
        help="between failures of a device; default: that of Llama 3's H100",
    )
    add(
        "--spares",
        metavar="N",
        type=options.whole(0),
        help="instances that stand by; default: as many as are nearly always enough",
    )
    add(
        "--oversubscription",
        metavar="X",
        type=options.real(1, 1e6),
        default=1.0,
        help="of the network's halves; default: 1",
    )
    add("--power", metavar="WATTS", help="that there are, e.g. 2GW")
    add("--seed", type=options.SEED, default=0, help="of the simulation; default: 0")
    add("--json", action="store_true", help="everything as JSON, see docs/goodput.md")


def main(args: argparse.Namespace) -> int:
    """Print what keeps a job's goodput above the target; returns 1 where nothing that is known does."""
    found, said = answer(args)
    print(said.json() if args.json else documents.text(said))
    return 0 if found.enough is not None else BELOW


def answer(args: argparse.Namespace) -> tuple[ReliabilityStudy, documents.Document]:
    """What was found, and how it is told."""
    job, how = _job(args), _how(args)
    found = examine(job, how, args.above, args.oversubscription)
    seen = simulate(job, found.enough or found.measures[-1], args.seed)
    watts = parse(args.power, POWER, "--power") if args.power else None
    return found, document(found, seen, watts)


def _job(args: argparse.Namespace) -> Job:
    parameters = (
        configurations.model(args.model).parameters if args.model else parse(args.parameters, COUNT, "--parameters")
    )
    return Job(
        chips.target(args.target),
        int(parse(args.chips, COUNT, "--chips")),
        parameters,
        parse(args.step, TIME, "--step"),
        args.replica or 0,
    )


def _how(args: argparse.Namespace) -> Reliability:
    changes: dict[str, object] = {
        "device_hours": args.device_hours,
        "store": args.store,
        "spares": args.spares,
        "blast": args.replica,
    }
    if args.replica is not None and args.replica < 1:
        raise UsageError(
            "no copy of a model is on so few chips",
            code="TRN165",
            limit="at least 1",
            got=args.replica,
            remedy="leave --replica out for the fewest that hold it",
        )
    return Reliability(**{name: value for name, value in changes.items() if value is not None})  # type: ignore[arg-type]
