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
from trnlab.bench.ideas.sources import written
from trnlab.bench.ideas.trial import KernelTrial
from trnlab.bench.recording import on_target
from trnlab.cli.kernels.bench import bench_of, problem_arguments
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
    add("kernel", metavar="KERNEL", help="FILE or FILE:FUNCTION")


def main(args: argparse.Namespace) -> int:
    """Propose changes to a kernel that keep its numbers, or make them."""
    wanted = candidate(args.kernel)
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
                _write_source(written(bench, wanted, report.steps), args.out / wanted.path.name)
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


def _write_source(found: tuple[str, int] | None, path: Path) -> None:
    """The changed source, where all changes can be written into it."""
    if found is None:
        say("these changes are described, and not written into the source")
    else:
        write_atomic(path, found[0].encode())
        say(f"{path} has them in its source: {format_time(found[1])}")


def _write(changed: KernelTrial, folder: Path, stem: str) -> None:
    """The changed kernel as a recording, and its timeline; the stand-in for neuron-profile reads both."""
    write_atomic(folder / f"{stem}.neff", changed.kernel.content())
    timelines.save(changed.kernel.profiled(changed.chip), folder / f"{stem}.ntff")
    say(f"{folder / stem}.neff is the changed kernel, {stem}.ntff its timeline")
