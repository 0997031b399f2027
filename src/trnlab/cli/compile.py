# SPDX-License-Identifier: Apache-2.0
"""`trnlab compile`."""

from __future__ import annotations

import argparse
import json
import time
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING

from trnlab.cli.check import as_one_of, prepared, targets_of, whole_instance
from trnlab.errors import UsageError
from trnlab.graph.ir import Graph
from trnlab.porting.text import vendor_words
from trnlab.runtime import ahead, compile_cost
from trnlab.runtime.ahead import Made
from trnlab.runtime.script import Script
from trnlab.runtime.session import Session
from trnlab.units import format_bytes

if TYPE_CHECKING:
    from trnlab.frontends.torch.check.programs import Needed


def main(args: argparse.Namespace) -> int:
    """Compile every program of a script's steps into the cache; returns 1 where one is refused, or there is none."""
    if args.jobs < 1:
        raise UsageError("--jobs is at least 1", code="TRN540", got=args.jobs, remedy="such as --jobs 8")
    script = Script(args.script, args.arguments)
    script.file  # noqa: B018  (says at once when it cannot be read)
    targets, session, cluster = targets_of(args)
    if len(targets) > 1:
        raise UsageError(
            "programs are compiled for one target", code="TRN540", got=args.target, remedy="one command for each"
        )
    started = time.perf_counter()
    prepared()
    from trnlab.frontends.torch.check.programs import graphs_of  # PyTorch takes a while

    with ExitStack() as stack:
        stack.enter_context(as_one_of(cluster, session))
        needed = graphs_of(script, session)
        whole = whole_instance(targets, session, (line[:6] for line in needed.problems), args)
        if whole is not None:
            stack.enter_context(as_one_of(whole, session))
            needed = graphs_of(script, session)
        followed = time.perf_counter() - started
        if args.dry_run:
            return _predicted(needed, session, args)
        made, problems = _compiled(needed.graphs, session, args), needed.problems
    wall = time.perf_counter() - started
    if args.json:
        record = {"programs": [asdict(m) for m in made], "followed_s": followed, "wall_s": wall, "problems": problems}
        print(json.dumps(record, indent=2))
    else:
        _told(made, problems, followed, wall, args.jobs)
    return 0 if made and not problems and not any(m.problem for m in made) else 1


def _predicted(needed: Needed, session: Session, args: argparse.Namespace) -> int:
    """Say what compiling would take here and on the vendor's stack; nothing is compiled."""
    from trnlab.frontends.torch.check.vendor import vendor_minutes

    found = compile_cost.ahead(ahead.distinct(needed.graphs, session), session.cache)
    vendor = vendor_minutes(needed.parameters)
    total = compile_cost.wall(found, args.jobs)
    if args.json:
        record = {
            "programs": [asdict(each) for each in found], "wall": asdict(total), "vendor": vendor,
            "parameters": needed.parameters, "problems": needed.problems,
        }  # fmt: skip
        print(json.dumps(record, indent=2))
    else:
        print("\n".join([*(each.row() for each in found), *needed.problems]))
        print(f"{len(found)} programs, {sum(not e.there for e in found)} to compile: {total.words()} of {args.jobs} "
              f"processes, {total.basis}")  # fmt: skip
        print(vendor_words(vendor) if vendor else "nothing is known of the vendor's stack without parameters")
    return 0 if found and not needed.problems else 1


def _compiled(graphs: list[Graph], session: Session, args: argparse.Namespace) -> list[Made]:
    made = []
    for each in ahead.compile_all(ahead.distinct(graphs, session), session, args.jobs):
        made.append(each)
        if not args.json:
            print(_row(each), flush=True)
    return made


def _row(made: Made) -> str:
    how = {"miss": "compiled", "hit": "in the cache", "off": "compiled, not kept"}.get(made.how, made.how)
    cost = f"{made.seconds:8.2f} s  {format_bytes(made.size):>10}"
    return f"{made.key[:12]}  {made.name:24} {cost}  {how}  {made.problem}".rstrip()


def _told(made: list[Made], problems: list[str], followed: float, wall: float, jobs: int) -> None:
    for problem in problems:
        print(problem)
    new = [m for m in made if m.how == "miss"]
    print(
        f"{len(made)} programs, {len(new)} compiled in {sum(m.seconds for m in new):.1f} s of {jobs} processes, "
        f"{format_bytes(sum(m.size for m in new))}; the script was followed in {followed:.1f} s; {wall:.1f} s in all"
    )
