# SPDX-License-Identifier: Apache-2.0
"""Commands that follow a script do so in a view, in which it changes nothing: see `trnlab.view`."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trnlab.errors import TrnlabError, UsageError
from trnlab.estimate.result import Report
from trnlab.findings import ERROR, Finding, UserLine
from trnlab.loops import places
from trnlab.runtime.cache.view_cache import Lender, LentCache
from trnlab.runtime.session import Session
from trnlab.view.effects import ALLOWED, NETWORK, SUBPROCESSES, Effects
from trnlab.view.followed import ENDED, ROOM, ScriptExitedError, follow
from trnlab.view.request import ViewRequest

_LOOPS = (".nbi", ".nbc")
_FAILED = ("TRN259", "TRN193")  # what a script raised by itself


def in_view(work: str, args: argparse.Namespace, session: Session) -> tuple[Any, Effects]:
    """Call the function `work`, "module:name", with the arguments of a command in a view; returns what it returned,
    which is plain data, and what the script would have done. Raises Ended, and what the function raised."""
    lender = Lender(session.cache)
    request = ViewRequest(
        work,
        (args,),
        allowed(args),
        _places(args),
        ((str(places.own_folder()), _LOOPS),),
        "trnlab.cli.check:waiting",
    )
    try:
        return follow(request, lambda kind, *words: lender.answer(*words))
    except TrnlabError as error:
        effects = getattr(error, "effects", None)
        if effects is not None and error.code in _FAILED:
            hint = hints(effects, f"{error.what} {error.got}")
            error.remedy = "; ".join([*hint, *([error.remedy] if error.remedy else [])])
        raise
    finally:
        lender.close()


def lend(session: Session) -> Session:
    """For the function in the view: its cache is the one outside."""
    if session.cache is not None:
        session.cache = LentCache(session.cache.place)
    return session


def allowed(args: argparse.Namespace) -> frozenset[str]:
    """What the command line allows the script to do. Raises UsageError for what there is not."""
    words = [word.strip() for said in getattr(args, "allow", None) or () for word in said.split(",")]
    unknown = [word for word in words if word not in ALLOWED]
    if unknown:
        raise UsageError(
            "there is nothing of this name to allow a script",
            code="TRN100",
            got=", ".join(unknown),
            limit=", ".join(ALLOWED),
            remedy="such as --allow network,subprocesses",
        )
    return frozenset(words)


def _places(args: argparse.Namespace) -> tuple[str, ...]:
    """Folders that the script is likely to write to."""
    known = [os.getcwd(), os.path.expanduser("~"), tempfile.gettempdir(), str(Path(args.script).resolve().parent)]
    given = getattr(args, "arguments", None) or ()
    words = given.split() if isinstance(given, str) else given
    known += [os.path.abspath(word.rpartition("=")[2]) for word in words if "/" in word]
    return tuple(dict.fromkeys(path for path in known if os.path.isdir(path)))


def hints(effects: Effects, said: str) -> list[str]:
    """What may help a script that failed in a view."""
    found = []
    if "No space left" in said or "Errno 28" in said:
        found.append(f"what the script writes has {effects.room / (1 << 30):.1f} GiB in memory; {ROOM}=N gives it N")
    if effects.sent and NETWORK not in effects.allowed:
        to = ", ".join(each["to"] for each in effects.sent[:2])
        found.append(f"it asked the network for {to}, which is closed: --allow network opens it")
    if effects.started and SUBPROCESSES not in effects.allowed:
        command = effects.started[0]["command"][:60]
        found.append(f"it was not let start {command!r}: --allow subprocesses does")
    return found


def with_effects(report: Report, effects: Effects) -> Report:
    """The report, with what the script would have done, and how to let it where it failed without."""
    report.effects = effects
    for finding in report.findings:
        if finding.code in _FAILED and finding.severity == ERROR:
            finding.do = "; ".join([*hints(effects, finding.what), *([finding.do] if finding.do else [])])
    return report


def report_of(ended: ScriptExitedError, args: argparse.Namespace, session: Session) -> Report:
    """Report of a script that ended its process: what it would have done is known."""
    error = ended.error()
    found = Finding(ENDED, ERROR, f"{error.what}: {error.got}", UserLine(), do=error.remedy or "")
    report = Report(str(args.script), session.precision, complete=False, findings=[found])
    return with_effects(report, ended.effects)


def effect_lines(effects: Effects | None) -> Sequence[str]:
    """Lines for commands without a report."""
    from trnlab.documents import blocks
    from trnlab.estimate.document import effects as sections

    return "\n".join(blocks(sections(effects))).splitlines()
