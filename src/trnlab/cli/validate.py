# SPDX-License-Identifier: Apache-2.0
"""`trnlab validate`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path

from trnlab import policy
from trnlab.cli import options
from trnlab.documents import Document, text
from trnlab.errors import UsageError
from trnlab.runtime.notices import say as notice
from trnlab.runtime.settings import kept_folder
from trnlab.validation import anchors, collectives, gpus, inference, mine, planned, sources, training
from trnlab.validation.sources import readings

FOLDER = mine.FOLDER
MOST_NAMES = 6


def arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab validate`."""
    command.add_argument("--json", action="store_true", help="the same as JSON, times in seconds")
    command.add_argument(
        "--mine", metavar="FILE", type=Path, help="runs that you measured (TOML): how far plans are off for them"
    )
    command.add_argument("--only", metavar="TEXT", help="only measurements whose name contains this")
    command.add_argument("--sources", metavar="DIR", type=Path, help="time kernels now, from their sources in DIR")
    command.add_argument(
        "--fetch-list", metavar="DIR", type=Path, help="print the git commands that put these sources into DIR"
    )
    command.add_argument(
        "--readings", action="store_true", help="what profiles say of the figures of trn2 that were read off them"
    )
    command.add_argument(
        "--record",
        action="store_true",
        help="with --sources or --readings: keep it as what the package shows",
    )
    command.add_argument("--schedule", metavar="NAME", help="what the compiler decides, as for trnlab run")
    command.add_argument("--band", action="store_true", help="with --sources: under the policy's alternatives, too")
    options.cache(command, "record and time everything anew")


def main(args: argparse.Namespace) -> int:
    """Compare predictions with all measurements, or with some of them."""
    wanted = args.only or ""
    if args.schedule:
        policy.configure(args.schedule)
    if args.fetch_list is not None:
        print("\n".join(sources.fetch_list(_kernels(wanted), args.fetch_list)))
        return 0
    if args.mine is not None:
        return _mine(args)
    if args.readings:
        return _readings(args)
    if args.sources is not None:
        return _from_sources(args, wanted)
    if args.record:
        raise UsageError(
            "nothing is timed that could be recorded",
            code="TRN170",
            got="--record without --sources",
            remedy="give --sources DIR; `trnlab validate --fetch-list DIR` prints how to get them",
        )
    return _all(args, wanted)


def _all(args: argparse.Namespace, wanted: str) -> int:
    """What was recorded last of kernels, jobs and steps, collectives timed now, and what is not covered."""
    kernels = [k for k in sources.load() if _named(k, wanted)]
    uncovered = [m for m in anchors.load() if wanted.lower() in m.name.lower()]
    runs = [run for run in collectives.load() if wanted.lower() in run.name.lower() or wanted == "collectives"]
    plans = [row for row in planned.load() if wanted.lower() in row.name.lower() or wanted == "training"]
    passes = [row for row in inference.load() if wanted.lower() in row.name.lower() or wanted == "inference"]
    jobs = [row for row in training.load() if wanted.lower() in row.name.lower() or wanted == "training"]
    steps = [row for row in gpus.load() if wanted.lower() in f"{row.table} {row.name}".lower() or wanted == "gpus"]
    if not kernels and not uncovered and not runs and not plans and not passes and not jobs and not steps:
        raise _unknown(wanted)
    rows, network = sources.recorded(kernels), collectives.validate(runs)
    sections = [
        *planned.sections(plans),
        *inference.sections(passes),
        *sources.sections(rows),
        *collectives.sections(network),
        *training.sections(jobs),
        *gpus.sections(steps),
        *anchors.sections(uncovered),
    ]
    record = {
        "planned": planned.to_json(plans),
        "inference": inference.to_json(passes),
        "from_sources": sources.to_json(rows),
        "not_covered": anchors.to_json(uncovered),
        "collectives": collectives.to_json(network),
        "training": training.to_json(jobs),
        "gpus": gpus.to_json(steps),
    }
    _told(args, Document("Predictions and measurements", sections, over="trnlab validate", record=lambda: record))
    return 0


def _told(args: argparse.Namespace, found: Document) -> None:
    print(found.json() if args.json else text(found))


def _from_sources(args: argparse.Namespace, wanted: str) -> int:
    """Kernels from clones of public repositories; 1 when some are refused."""
    chosen, folder = _kernels(wanted), args.sources
    absent = sources.missing(chosen, folder)
    if absent:
        raise UsageError(
            f"{str(folder)!r} lacks the sources of {len(absent)} of {len(chosen)} kernels",
            code="TRN129",
            got=", ".join(dict.fromkeys(k.repository for k in absent)),
            remedy="; ".join(sources.fetch_list(absent, folder)),
        )
    kept = sources.RecordingCache(None if args.no_cache else kept_folder(args) / FOLDER)
    rows = sources.time_all(chosen, folder, _progress(), kept, band=args.band)
    if args.record:
        sources.record(rows)
    _told(args, sources.document(rows))
    return int(any(row.timed.predicted is None for row in rows))


def _mine(args: argparse.Namespace) -> int:
    """A user's own runs beside plans of both stacks; they are kept for the bands of later plans."""
    place = None if args.no_cache else kept_folder(args)
    rows = mine.compared(mine.read(args.mine), place and place / "plans", notice)
    if place is not None:
        mine.keep(rows, place / FOLDER)
    found = [*planned.sections(rows, "your runs, and as planned")]
    _told(
        args, Document("Your runs", found, over="trnlab validate", record=lambda: {"planned": planned.to_json(rows)})
    )
    return 0


def _readings(args: argparse.Namespace) -> int:
    """What the calibration profiles say of the figures that cite them, now or as it was recorded."""
    found = readings.recorded() if args.sources is None else readings.read(readings.dumps(args.sources))
    if args.record:
        readings.record(found)
    print(json.dumps([asdict(r) for r in found], indent=2) if args.json else text(readings.document(found)))
    return 0


def _progress() -> Callable[[sources.SourceKernel, int, int], None]:
    """Says which kernel is under way: on one line of a terminal, else a line each."""
    begin, end = ("\r\x1b[K", "") if sys.stderr.isatty() else ("", "\n")

    def say(kernel: sources.SourceKernel, number: int, of: int) -> None:
        last = "\n" if number == of else end
        print(f"{begin}{number} of {of}: {kernel.id} {kernel.name}", end=last, file=sys.stderr, flush=True)

    return say


def _kernels(wanted: str) -> list[sources.SourceKernel]:
    found = [k for k in sources.load() if _named(k, wanted)]
    if not found:
        raise _unknown(wanted)
    return found


def _named(kernel: sources.SourceKernel, wanted: str) -> bool:
    return wanted.lower() in kernel.name.lower() or wanted == kernel.id


def _all_names() -> list[str]:
    return [entry.name for entries in (sources.load(), anchors.load(), collectives.load()) for entry in entries]


def _unknown(wanted: str) -> UsageError:
    names = {name.lower(): name for name in _all_names()}
    near = [names[name] for name in get_close_matches(wanted.lower(), names, n=MOST_NAMES, cutoff=0.3)]
    return UsageError(
        f"no measurement is called {wanted!r}",
        code="TRN126",
        limit="; ".join(near) if near else None,
        remedy="give a part of one of these names; without --only all are listed",
    )
