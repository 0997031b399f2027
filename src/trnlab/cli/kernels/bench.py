# SPDX-License-Identifier: Apache-2.0
"""`trnlab bench`."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import secrets
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from trnlab import documents
from trnlab.bench import contained, hostile, ladder
from trnlab.bench.away import CandidateExecutor
from trnlab.bench.candidate import candidates
from trnlab.bench.document import BenchReport, document
from trnlab.bench.judging import REFUSED, WRONG, ProblemSpec
from trnlab.bench.recording import on_target
from trnlab.cli import options
from trnlab.cli.executors import dask
from trnlab.errors import UsageError
from trnlab.files import write_atomic
from trnlab.nki.target import default_chip
from trnlab.runtime.notices import say

USUAL_ONLY = "usual"


def problem_arguments(command: argparse.ArgumentParser) -> None:
    """Add what says what kernels are to compute, where, and within which limits."""
    add = command.add_argument
    add("--reference", metavar="FILE[:NAME]", help="what is right: reference(...) or forward(...), and inputs(rng)")
    add(
        "--input",
        metavar="SHAPE",
        action="append",
        default=[],
        help="an argument, such as 'float32[512,512]' or 1e-5",
    )
    add("--inputs", metavar="A,B,...", help=f"hostile kinds beside usual ones; default: {','.join(hostile.FAMILIES)}")
    add(
        "--tolerance",
        metavar="X",
        type=options.real(0, 1e6, above=True),
        help="relative to the largest result; default: what formats explain",
    )
    add("--target", metavar="NAME", help="the chip, e.g. trn2; default: that of kernels")
    add("--cores", metavar="N", type=options.whole(1), default=1, help="that a kernel runs on; default: 1")
    add("--flags", metavar="TEXT", default="", help="of the hardware's compiler, such as --disable-dge")
    add("--jobs", metavar="N", type=options.whole(1), help="candidates at once; default: the processors here")
    add("--executor", metavar="dask://HOST:PORT", help="machines that take candidates, too: Dask's scheduler")
    add(
        "--seconds",
        metavar="N",
        type=options.real(0, 1e6, above=True),
        default=120.0,
        help="that recording one may take; default: 120",
    )
    add(
        "--memory",
        metavar="GIB",
        type=options.real(0, 1e6, above=True),
        default=4.0,
        help="that recording one may take; default: 4",
    )
    add("--seed", metavar="N", type=options.SEED, help="of the inputs; default: one that no candidate can know")
    add("--json", action="store_true", help="everything as JSON")
    add("--out", metavar="DIR", type=Path, help="write bench.html and bench.json there")


def arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab bench`."""
    problem_arguments(command)
    add = command.add_argument
    add("--no-band", action="store_true", help="time only what the compiler is most likely to make of them")
    add("kernels", metavar="KERNEL", nargs="+", help="FILE, FILE:FUNCTION, or a folder of files")


def main(args: argparse.Namespace) -> int:
    """Judge kernels; returns 1 where one is wrong or refused."""
    report = judged(args)
    said = document(report)
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        write_atomic(args.out / "bench.html", documents.page(said).encode())
        write_atomic(args.out / "bench.json", said.json().encode())
    print(said.json() if args.json else documents.text(said))
    return int(any(e.judgement.verdict in (WRONG, REFUSED) for e in report.entries))


def judged(args: argparse.Namespace) -> BenchReport:
    """The ladder. Raises UsageError (TRN840) where there is no kernel."""
    found = candidates(args.kernels)
    if not found:
        raise UsageError("there is no kernel in the folder", code="TRN840", got=", ".join(args.kernels))
    with on_target(args.target or ""), workers(args, len(found)) as executor:
        bench = bench_of(args, not args.no_band)
        entries = ladder.run(bench, found, executor, _progress)
        cases = tuple(o.name for o in entries[0].judgement.cases)
        return BenchReport(default_chip().name, args.reference or "", cases, bench.spec.seed, entries)


def bench_of(args: argparse.Namespace, band: bool) -> ladder.KernelBench:
    """How candidates are judged, as a command line says."""
    seed = secrets.randbits(31) if args.seed is None else args.seed
    spec = ProblemSpec(args.reference, tuple(args.input), seed, families(args.inputs), (), args.tolerance)
    memory = int(args.memory * (1 << 30))
    limits = replace(contained.LIMITS, seconds=args.seconds, processor_s=args.seconds, memory=memory)
    return ladder.KernelBench(spec, args.target or "", args.cores if args.cores > 1 else 0, args.flags, band, limits)


def families(text: str | None) -> tuple[str, ...]:
    """The kinds of hostile inputs that a text names. Raises UsageError (TRN844)."""
    names = tuple(hostile.FAMILIES) if text is None else tuple(t for t in text.split(",") if t and t != USUAL_ONLY)
    unknown = [name for name in names if name not in hostile.FAMILIES]
    if unknown:
        limit = ", ".join((USUAL_ONLY, *hostile.FAMILIES))
        raise UsageError("there are no inputs of this kind", code="TRN844", got=", ".join(unknown), limit=limit)
    return names


@contextmanager
def workers(args: argparse.Namespace, work: int) -> Iterator[Executor | None]:
    """Processes that judge, here or on other machines; None where one is enough, or none can be copied."""
    if args.executor:
        with dask(args.executor) as (client, _):
            yield _there(client)
        return
    count = min(args.jobs or os.cpu_count() or 1, work)
    if count == 1 or "fork" not in multiprocessing.get_all_start_methods():
        yield None
        return
    contained.imported()  # once, for all that are copied
    with ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("fork")) as pool:
        yield pool


def _there(client: Any) -> CandidateExecutor:
    """Dask's workers; files are sent to them once by content."""
    from distributed.scheduler import KilledWorker

    gone = (KilledWorker, BrokenExecutor)
    pool = client.get_executor(pure=False)
    return CandidateExecutor(
        pool, lambda files: client.scatter([files], hash=True, broadcast=True)[0], lambda e: isinstance(e, gone)
    )


def _progress(what: str, number: int, of: int) -> None:
    if of > 1:
        say(f"{number} of {of}: {what}")
