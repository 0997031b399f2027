# SPDX-License-Identifier: Apache-2.0
"""`trnlab tune`."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from trnlab import documents
from trnlab.bench import tuning, variants
from trnlab.bench.candidate import candidate
from trnlab.bench.recording import on_target
from trnlab.bench.tune_document import document, said
from trnlab.bench.tuning import Trial, TuneResult, TuneTask
from trnlab.cli import options
from trnlab.cli.kernels.bench import bench_of, problem_arguments, workers
from trnlab.files import write_atomic
from trnlab.nki.target import default_chip
from trnlab.runtime.notices import say
from trnlab.runtime.settings import kept_folder
from trnlab.storage.content import ContentStore
from trnlab.units import format_time
from trnlab.validation.sources.versions import MODEL, version

BUDGET = 1000
_EVERY_S = 2.0  # between two lines of progress


def arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab tune`."""
    problem_arguments(command)
    add = command.add_argument
    add("--param", metavar="NAME=V1,V2", action="append", default=[], help="values to try; default: TUNE of the file")
    add("--budget", metavar="N", type=options.whole(1), default=BUDGET, help=f"points at most; default: {BUDGET}")
    add("--no-cache", action="store_true", help="forget what earlier searches tried")
    add("--winner", metavar="FILE", type=Path, help="write the source with the best values there")
    add("kernel", metavar="KERNEL", help="FILE or FILE:FUNCTION")


def main(args: argparse.Namespace) -> int:
    """Search a kernel's parameters; returns 1 where no point is right."""
    result, found = searched(args)
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        write_atomic(args.out / "tune.html", documents.page(found).encode())
        write_atomic(args.out / "tune.json", found.json().encode())
    print(found.json() if args.json else documents.text(found))
    if result.best is None:
        return 1
    if args.winner is not None:
        wanted = candidate(args.kernel)
        source = wanted.path.read_text(encoding="utf-8")
        write_atomic(args.winner, variants.edited(source, wanted.function, result.best[0].values).encode())
        say(f"{args.winner} has {said(result.best[0])}")
    return 0


def searched(args: argparse.Namespace) -> tuple[TuneResult, documents.Document]:
    """What the search found, and how it is told."""
    wanted = candidate(args.kernel)
    source = wanted.path.read_text(encoding="utf-8")
    space = variants.space(source, args.param)
    variants.edited(source, wanted.function, next(iter(space)))  # says at once which names there are not
    count = max(1, min(len(space), args.budget) // tuning.BATCH)
    with on_target(args.target or ""), workers(args, count) as executor:
        bench = bench_of(args, band=False)
        arguments = bench.arguments()
        job = bench.job(wanted, arguments)
        made_from = [version(MODEL), wanted.digest(), wanted.function, default_chip().name, args.flags, args.cores]
        made_from += [[str(getattr(a, "shape", a)), str(getattr(a, "dtype", ""))] for a in arguments]
        task = TuneTask(job, space, bench.spec, bench.limits, made_from)
        store = ContentStore(None if args.no_cache else kept_folder() / "tune")
        result = tuning.run(task, args.budget, executor, store, _Progress())
    return result, document(task, result)


class _Progress:
    """A line now and then, with the best so far."""

    def __init__(self) -> None:
        self._best: Trial | None = None
        self._next = time.monotonic()

    def __call__(self, trial: Trial, number: int, of: int) -> None:
        if trial.total and (self._best is None or trial.total < self._best.total):
            self._best = trial
        if time.monotonic() >= self._next or number == of:
            self._next = time.monotonic() + _EVERY_S
            best = (
                "none runs yet" if self._best is None else f"{format_time(self._best.total)} with {said(self._best)}"
            )
            say(f"{number} of {of} points, the best so far: {best}")
