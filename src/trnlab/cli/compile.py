# SPDX-License-Identifier: Apache-2.0
"""`trnlab compile`."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trnlab.chips import Target
from trnlab.cli import options
from trnlab.cli.check import as_one_of, prepared, targets_of, whole_instance
from trnlab.cli.views import effect_lines, in_view, lend
from trnlab.errors import UsageError
from trnlab.estimate.text import vendor_words
from trnlab.graph.ir import Graph
from trnlab.runtime import precompile
from trnlab.runtime.cache import compile_cost
from trnlab.runtime.notices import say
from trnlab.runtime.precompile import PrecompiledProgram
from trnlab.runtime.script import Script
from trnlab.runtime.session import Session
from trnlab.units import format_bytes
from trnlab.view.effects import Effects
from trnlab.view.followed import ScriptExitedError


def arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab compile`."""
    add = command.add_argument
    options.setting(
        command,
        "target",
        metavar="NAME",
        help="one target, such as trn2.3xlarge or 4xtrn2.48xlarge; default: $TRNLAB_TARGET",
    )
    options.settings(command, "precision", "precision_rules")
    add("--jobs", type=options.JOBS, default=1, metavar="N", help="processes that compile; default: 1")
    add("--dry-run", action="store_true", help="compile nothing; say what that would take")
    add("--json", action="store_true", help="everything as JSON")
    add(
        "--ranks",
        type=options.RANKS,
        metavar="N",
        help="of a cluster such as 4xtrn2.48xlarge; default: all that it holds",
    )
    add("--rank", type=options.RANK, default=0, metavar="R", help="the rank to follow; default: 0")
    options.settings(command, "fault", "optimize")
    options.allow(command)
    options.cache(command, "")
    add("script", metavar="SCRIPT", type=Path)
    add("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="arguments of the script")


def main(args: argparse.Namespace) -> int:
    """Compile every program of a script's steps into the cache; returns 1 where one is refused, or there is none."""
    if args.jobs < 1:
        raise UsageError("--jobs is at least 1", code="TRN540", got=args.jobs, remedy="such as --jobs 8")
    script = Script(args.script, args.arguments)
    script.file  # noqa: B018  (says at once when it cannot be read)
    targets, session, _ = targets_of(args)
    if len(targets) > 1:
        raise UsageError(
            "programs are compiled for one target", code="TRN540", got=args.target, remedy="one command for each"
        )
    started = time.perf_counter()
    needed = _needed(args, targets, session)
    followed = time.perf_counter() - started
    if args.dry_run:
        return _predicted(needed, session, args)
    made, problems = _compiled(needed.graphs, session, args), needed.problems
    wall = time.perf_counter() - started
    if args.json:
        record = {
            "programs": [asdict(m) for m in made],
            "followed_s": followed,
            "wall_s": wall,
            "problems": problems,
            "effects": needed.effects.as_json(),
        }
        print(json.dumps(record, indent=2))
    else:
        _told(made, problems, followed, wall, args.jobs)
        print("\n".join(effect_lines(needed.effects)))
    return 0 if made and not problems and not any(m.problem for m in made) else 1


@dataclass
class _Needed:
    """What the script's steps need, see `frontends.torch.check.programs`, and what else it would have done. vendor:
    minutes on the vendor's stack."""

    graphs: list[Graph]
    problems: list[str]
    parameters: int
    vendor: dict[str, Any]
    effects: Effects


def _needed(args: argparse.Namespace, targets: list[Target], session: Session) -> _Needed:
    """Follow the script in a view; the session is then of the rank that it turned out to be."""
    try:
        (found, codes), effects = in_view("trnlab.cli.compile:in_process", args, session)
    except ScriptExitedError as ended:
        for line in effect_lines(ended.effects):
            say(line)
        raise ended.error() from None
    whole_instance(targets, session, codes, args)
    graphs, problems, parameters, vendor = found
    return _Needed(graphs, problems, parameters, vendor, effects)


def in_process(args: argparse.Namespace) -> tuple[tuple[Any, ...], list[str]]:
    """Within a view: what a script's steps need, and the codes of what was in its way when it was followed alone."""
    targets, session, cluster = targets_of(args)
    lend(session)
    prepared()
    from trnlab.frontends.torch.check.programs import graphs_of  # PyTorch takes a while
    from trnlab.frontends.torch.check.vendor import vendor_minutes

    script = Script(args.script, args.arguments)
    with as_one_of(cluster, session):
        needed = graphs_of(script, session)
    codes = [line[:6] for line in needed.problems]
    whole = whole_instance(targets, session, codes, args)
    if whole is not None:
        with as_one_of(whole, session):
            needed = graphs_of(script, session)
    return (needed.graphs, needed.problems, needed.parameters, vendor_minutes(needed.parameters)), codes


def _predicted(needed: _Needed, session: Session, args: argparse.Namespace) -> int:
    """Say what compiling would take here and on the vendor's stack; nothing is compiled."""
    found = compile_cost.ahead(precompile.distinct(needed.graphs, session), session.cache)
    vendor = needed.vendor
    total = compile_cost.wall(found, args.jobs)
    if args.json:
        record = {
            "programs": [asdict(each) for each in found],
            "wall": asdict(total),
            "vendor": vendor,
            "parameters": needed.parameters,
            "problems": needed.problems,
            "effects": needed.effects.as_json(),
        }
        print(json.dumps(record, indent=2))
    else:
        print("\n".join([*(each.row() for each in found), *needed.problems]))
        print(
            f"{len(found)} programs, {sum(not e.there for e in found)} to compile: {total.words()} of {args.jobs} "
            f"processes, {total.basis}"
        )
        print(vendor_words(vendor) if vendor else "nothing is known of the vendor's stack without parameters")
        print("\n".join(effect_lines(needed.effects)))
    return 0 if found and not needed.problems else 1


def _compiled(graphs: list[Graph], session: Session, args: argparse.Namespace) -> list[PrecompiledProgram]:
    made = []
    for each in precompile.compile_all(precompile.distinct(graphs, session), session, args.jobs):
        made.append(each)
        if not args.json:
            print(_row(each), flush=True)
    return made


def _row(made: PrecompiledProgram) -> str:
    how = {"miss": "compiled", "hit": "in the cache", "off": "compiled, not kept"}.get(made.how, made.how)
    cost = f"{made.seconds:8.2f} s  {format_bytes(made.size):>10}"
    return f"{made.key[:12]}  {made.name:24} {cost}  {how}  {made.problem}".rstrip()


def _told(made: list[PrecompiledProgram], problems: list[str], followed: float, wall: float, jobs: int) -> None:
    for problem in problems:
        print(problem)
    new = [m for m in made if m.how == "miss"]
    print(
        f"{len(made)} programs, {len(new)} compiled in {sum(m.seconds for m in new):.1f} s of {jobs} processes, "
        f"{format_bytes(sum(m.size for m in new))}; the script was followed in {followed:.1f} s; {wall:.1f} s in all"
    )
