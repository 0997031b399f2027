# SPDX-License-Identifier: Apache-2.0
"""`trnlab ideas`."""

from __future__ import annotations

import argparse
from pathlib import Path

from trnlab import documents
from trnlab import timeline as timelines
from trnlab.bench.candidate import candidate
from trnlab.bench.explanation import explained
from trnlab.bench.ideas import search
from trnlab.bench.ideas.candidates import trial_of
from trnlab.bench.ideas.document import IdeasReport, document
from trnlab.bench.ideas.sources import WrittenSource, written
from trnlab.bench.ideas.trial import NO_CHANGE, KernelTrial
from trnlab.bench.recording import on_target
from trnlab.cli.kernels.bench import bench_of, problem_arguments
from trnlab.errors import UsageError
from trnlab.files import write_atomic
from trnlab.runtime.notices import say
from trnlab.units import format_time

ALL = "all"


def arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab ideas`."""
    problem_arguments(command)
    add = command.add_argument
    add(
        "--apply",
        metavar="NAME,...",
        help=f"make these changes, one after the other; {ALL}: the best, then the best after it, until none gains",
    )
    add("--write", metavar="FILE", type=Path, help="write the source with these changes there: a file that is new")
    add("kernel", metavar="KERNEL", help="FILE or FILE:FUNCTION")


def main(args: argparse.Namespace) -> int:
    """Propose changes to a kernel that keep its numbers, or make them."""
    wanted = candidate(args.kernel)
    _allowed(args)
    with on_target(args.target or ""):
        bench = bench_of(args, band=False)
        trial = trial_of(bench, wanted)
        report, changed = _made(args, trial, wanted.name) if args.apply else (_proposed(trial, wanted.name), None)
        said = document(report)
        if args.out is not None:
            args.out.mkdir(parents=True, exist_ok=True)
            write_atomic(args.out / "ideas.html", documents.page(said).encode())
            write_atomic(args.out / "ideas.json", said.json().encode())
            if changed is not None:
                _write(changed, args.out, wanted.path.stem)
                _beside(written(bench, wanted, report.steps), args.out / wanted.path.name, wanted.path)
        if args.write is not None:
            _write_source(written(bench, wanted, report.steps), args.write, report)
    print(said.json() if args.json else documents.text(said))
    return 0


def _proposed(trial: KernelTrial, name: str) -> IdeasReport:
    found, tried = search.proposed(trial, progress=say)
    words = explained(trial.kernel, trial.chip)["changes"]
    return IdeasReport(name, trial.chip.name, trial.total, found, (), tried, words)


def _made(args: argparse.Namespace, trial: KernelTrial, name: str) -> tuple[IdeasReport, KernelTrial]:
    if args.apply == ALL:
        changed, steps = search.climbed(trial, progress=say)
    else:
        changed, steps = search.applied(trial, args.apply.split(","))
    return IdeasReport(name, trial.chip.name, trial.total, (), steps, len(steps)), changed


def _allowed(args: argparse.Namespace) -> None:
    """Raises UsageError (TRN849) for a source that cannot be written as it is asked for."""
    if args.write is None:
        return
    if not args.apply:
        raise _refused("nothing says which changes are to be written", "--write", "--apply NAME,... or --apply all")
    if args.write.exists():
        raise _refused("the source is written to a new file alone", str(args.write), "name a file that is not there")


def _refused(what: str, got: str, remedy: str) -> UsageError:
    return UsageError(what, code=NO_CHANGE, got=got, remedy=remedy)


def _write_source(found: WrittenSource | None, path: Path, report: IdeasReport) -> None:
    """Raises UsageError (TRN849) where the changes are none of the source, or it does not keep what they promise."""
    if found is None:
        others = [s.tried.change.name for s in report.steps if s.tried.change.edit is None]
        raise _refused(
            "these changes are made on the recorded instructions, and are no argument of a call in the source",
            ", ".join(others) or ", ".join(s.tried.change.name for s in report.steps),
            "apply those that are `in the source` by themselves, or write the others as they are described",
        )
    if not found.holds:
        raise _refused(
            "the source with these changes does not keep what they promise",
            "; ".join(found.broken) or f"{format_time(found.total)} instead of {format_time(found.promised)}",
            "apply fewer of them",
        )
    write_atomic(path, found.text.encode())
    say(f"{path} has them in its source: {format_time(found.total)}, the same bits")


def _beside(found: WrittenSource | None, path: Path, own: Path) -> None:
    """The changed source beside the recording, where all changes can be written into it."""
    if found is None or not found.holds:
        say("these changes are described, and not written into the source")
    elif path.exists() and path.samefile(own):
        say(f"{path} is the kernel itself: --write NEW.py writes its source with these changes")
    else:
        write_atomic(path, found.text.encode())
        say(f"{path} has them in its source: {format_time(found.total)}")


def _write(changed: KernelTrial, folder: Path, stem: str) -> None:
    """The changed kernel as a recording, and its timeline; the stand-in for neuron-profile reads both."""
    write_atomic(folder / f"{stem}.neff", changed.kernel.content())
    timelines.save(changed.kernel.profiled(changed.chip), folder / f"{stem}.ntff")
    say(f"{folder / stem}.neff is the changed kernel, {stem}.ntff its timeline")
