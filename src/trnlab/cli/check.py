# SPDX-License-Identifier: Apache-2.0
"""`trnlab check` and what `trnlab estimate` shares with it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trnlab import chips, documents, profile, stacks
from trnlab.chips import Target
from trnlab.cli import options
from trnlab.cli.views import allowed, in_view, lend, report_of, with_effects
from trnlab.errors import UsageError
from trnlab.estimate import document
from trnlab.estimate.job import RANKS_WANTED, NullCommunicator
from trnlab.estimate.report_cache import Noted, ReportCache
from trnlab.estimate.result import Report, from_json, to_json
from trnlab.fabric.cluster import Cluster, parse
from trnlab.runtime.script import Script
from trnlab.runtime.session import Session, from_settings
from trnlab.runtime.settings import Settings, kept_folder, said
from trnlab.stacks import OWN, Stack
from trnlab.view.followed import ScriptExitedError

FAILED = 1


def arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab check`."""
    arguments_of_estimates(command, page=True)


def arguments_of_estimates(command: argparse.ArgumentParser, page: bool = False) -> None:
    """Add what `trnlab check` and `trnlab estimate` take. page: --page, in the place of what a rank is asked for."""
    add = command.add_argument
    options.setting(
        command,
        "target",
        metavar="A,B,C",
        help="one target or several, e.g. trn1.2xlarge,trn2.3xlarge; default: $TRNLAB_TARGET",
    )
    options.settings(command, "precision", "precision_rules")
    add("--json", action="store_true", help="everything as JSON, see docs/check.md")
    if page:
        add("--page", metavar="FILE", type=Path, help="write it as a page, too")
    else:
        add(
            "--ranks",
            type=options.RANKS,
            metavar="N",
            help="of a cluster such as 4xtrn2.48xlarge; default: all that it holds",
        )
        add("--rank", type=options.RANK, default=0, metavar="R", help="the rank to follow; default: 0")
        add(
            "--batches",
            type=options.whole(0),
            default=0,
            metavar="N",
            help="batches of all ranks; default: as the script says",
        )
        options.settings(command, "comm_threshold", "fault", "optimize")
    options.stack(command)
    options.allow(command)
    options.cache(command, "look anew, compile all, keep nothing")
    add("script", metavar="SCRIPT", type=Path)
    add("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="arguments of the script")


def main(args: argparse.Namespace) -> int:
    """Check a script; returns 0 where it runs and fits, 1 where something is refused or does not fit."""
    report = examined(args)
    said = document.check(report, held(report))
    if args.page:
        args.page.parent.mkdir(parents=True, exist_ok=True)
        profile.write(args.page, documents.page(said).encode())
    print(said.json() if args.json else documents.text(said))
    if args.page and not args.json:
        print(f"\npage    {args.page}")
    return FAILED if report.failed else 0


def held(report: Report) -> Callable[[str, str], str]:
    """A function that says of a target and the text of a stack how far plans like a training step's estimate were off
    in published runs, or forward passes like this one."""
    from trnlab.validation import inference, planned  # which bring the planner

    def of(target: str, stack: str) -> str:
        name = stacks.parse(stack).name
        return str(planned.held(target, report.precision, name) if report.learns else inference.held(False, name))

    return of


def examined(args: argparse.Namespace) -> Report:
    """The report on a script: of the last time, where nothing that it depends on has changed."""
    script = Script(args.script, args.arguments)
    file = script.file
    targets, session, _ = targets_of(args)
    request = [
        str(file),
        *script.arguments,
        *(t.name for t in targets),
        session.precision,
        repr(session.rules),
        repr(_stacks(args)),
        str(session.rounds_stochastically),
        str(Path.cwd()),
        *_ranks(session, getattr(args, "rank", 0)),
        "effects",
        *sorted(allowed(args)),
    ]
    kept = ReportCache(checks_folder(args), request) if not args.no_cache else None
    if kept is not None and (record := kept.get()) is not None:
        report = from_json(record)
        report.cached = True
        _told(report, session, args)
        return report
    try:
        (record, noted), effects = in_view("trnlab.cli.check:in_process", args, session)
    except ScriptExitedError as ended:
        return report_of(ended, args, session)
    report = with_effects(from_json(record), effects)
    report.script = str(args.script)
    _told(report, session, args)
    if kept is not None:
        kept.put(to_json(report), noted)
    return report


def in_process(args: argparse.Namespace) -> tuple[dict[str, Any], Noted]:
    """Within a view: the report on a script, and what was read for it."""
    targets, session, cluster = targets_of(args)
    lend(session)
    with ReportCache(checks_folder(args), []) as kept:
        report = _followed(Script(args.script, args.arguments), targets, session, kept, cluster, args)
        return to_json(report), kept.noted()


def checks_folder(args: argparse.Namespace) -> Path:
    """Where reports are kept."""
    return kept_folder(args) / "checks"


def _job(args: argparse.Namespace, session: Session, name: str) -> Cluster | None:
    """The cluster whose ranks are asked for, by its name or by --ranks; the session is then of one of its ranks."""
    if session.rehearsed:
        raise UsageError(
            "failures of ranks are rehearsed by running",
            code="TRN554",
            got=session.rehearsed[0].text,
            remedy="trnlab run --ranks N; what failures cost a long job: trnlab goodput",
        )
    ranks = getattr(args, "ranks", None)
    if not name[:1].isdigit() and ranks is None:
        session.check_faults(1)
        return None
    cluster = parse(name)
    size = cluster.ranks if ranks is None else ranks
    cluster.placed(size)
    _become(session, cluster, size, args.rank)
    return cluster


def _become(session: Session, cluster: Cluster, size: int, rank: int) -> None:
    """Make the session that of a rank of a job. Raises UsageError for a rank that there is not, and faults."""
    if not 0 <= rank < size:
        raise UsageError(
            f"there is no rank {rank}",
            code="TRN191",
            limit=f"0 to {size - 1}",
            got=rank,
            remedy="choose --rank among the ranks of the job",
        )
    session.instances, session.communicator = cluster.instances, NullCommunicator(rank, size)
    session.check_faults(size)


def _told(report: Report, session: Session, args: argparse.Namespace) -> None:
    """What the command line says of a job, whatever was found or kept."""
    for target in report.results:
        if target.job is not None:
            target.job.judge(session.comm_threshold)
            target.job.rate(getattr(args, "batches", 0) or target.job.batches, report.per_step)


def _followed(
    script: Script,
    targets: list[Target],
    session: Session,
    kept: ReportCache | None,
    cluster: Cluster | None,
    args: argparse.Namespace,
) -> Report:
    prepared(kept)
    from trnlab.frontends.torch.check.report import examine  # PyTorch takes a while

    with as_one_of(cluster, session):
        report = examine(script, targets, session, _stacks(args))
    whole = whole_instance(targets, session, (found.code for found in report.findings), args)
    if whole is None:
        return report
    with as_one_of(whole, session):
        report = examine(script, targets, session, _stacks(args))
    report.notes.append(
        f"the script is of several ranks, and gets all {whole.ranks} of {whole.name}; --ranks N says another number"
    )
    return report


def whole_instance(
    targets: list[Target], session: Session, codes: Iterable[str], args: argparse.Namespace
) -> Cluster | None:
    """The instance of a script that turned out to be of several ranks, where the command names one target: the
    session is then of a rank of it. None for other scripts. codes: of what was found when it was followed alone."""
    if RANKS_WANTED not in codes or len(targets) > 1:
        return None
    cluster = Cluster(targets[0], 1)
    _become(session, cluster, cluster.ranks, getattr(args, "rank", 0))
    return cluster


def prepared(kept: ReportCache | None = None) -> None:
    """Make this process one in which a script can be followed; `kept` notes what is read from now on."""
    from trnlab.frontends import vendor_imports
    from trnlab.nki.imports import install_imports

    install_imports()
    vendor_imports.install()
    if kept is not None:
        kept.watch()
    import torch

    torch.empty(0, device="neuron")


def waiting() -> None:
    """Make this process one that is copied for each script that is followed: all is imported, and nothing has run."""
    prepared()
    import trnlab.frontends.torch.check.report  # noqa: F401  (a second and a half, once instead of in each copy)


@contextmanager
def as_one_of(cluster: Cluster | None, session: Session) -> Iterator[None]:
    """Within the block the process is the session's rank of the cluster, where it is one."""
    if cluster is None or session.communicator is None:
        yield
        return
    from trnlab.frontends.torch.check.ranks import one_of

    with one_of(cluster, session.communicator.rank, session.communicator.size):
        yield


def _session(targets: list[Target], args: argparse.Namespace) -> Session:
    """The session in which the script is followed: for the first target that has the precision's formats.

    Scales of FP8 lead to an E4M3 that ends at 240 where a target has no other one: that one exists on all chips.
    Raises UsageError (TRN245) where no target has the formats.
    """
    refused: UsageError | None = None
    for target in targets:
        try:
            session = from_settings(Settings.resolved(os.environ, args, target=target.name))
        except UsageError as error:
            if error.code != "TRN245":
                raise
            refused = refused or error
            continue
        if session.rules.needs("fp8", session.precision):
            session.target = min(targets, key=lambda t: t.chip.has("fp8_e4m3fn"))
            session.check_formats()
        session.stack = _stacks(args)[0]
        return session
    assert refused is not None
    raise refused


def _stacks(args: argparse.Namespace) -> list[Stack]:
    """Whose software the step is timed under; ours in commands that do not ask."""
    return options.stacks_of(args) if hasattr(args, "stack") else [OWN]


def _ranks(session: Session, rank: int) -> list[str]:
    """What a report of a job depends on besides; the rank alone where the script says whether there is a job."""
    others = session.communicator
    if others is None:
        return [str(rank)]
    return [str(session.instances), str(others.size), str(others.rank), *session.faults]


def targets_of(args: argparse.Namespace) -> tuple[list[Target], Session, Cluster | None]:
    """The targets that a command names, the session in which a script is followed, and the cluster of its ranks."""
    names = [name for name in said("target", os.environ, args).split(",") if name]
    if not names:
        raise UsageError(
            "no target is chosen, and none is guessed",
            code="TRN120",
            limit=", ".join(chips.TARGETS),
            remedy="name one or several: --target trn1.2xlarge,trn2.3xlarge",
        )
    many = [name for name in names if name[0].isdigit()]
    if many and (len(names) > 1 or not hasattr(args, "ranks")):
        raise UsageError(
            f"{many[0]} is a cluster, whose ranks are followed for it alone",
            code="TRN191",
            got=", ".join(names),
            limit="one cluster, and `trnlab estimate`",
            remedy=f"trnlab estimate --target {many[0]} SCRIPT",
        )
    targets = [parse(name).target if name in many else chips.target(name) for name in names]
    session = _session(targets, args)
    return targets, session, _job(args, session, names[0])
