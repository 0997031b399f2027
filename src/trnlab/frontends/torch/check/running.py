# SPDX-License-Identifier: Apache-2.0
"""The script itself, run to its end or until its walk has seen enough, and what is told of an end of its own."""

from __future__ import annotations

import runpy
import sys
import traceback
from typing import Any, Protocol

from trnlab.errors import Location, UsageError
from trnlab.estimate.job import RANKS_WANTED
from trnlab.frontends.torch.autoload import script_starts
from trnlab.frontends.torch.check import ranks
from trnlab.frontends.torch.check.captured_output import OutputTail
from trnlab.frontends.torch.cuda import finding
from trnlab.frontends.torch.findings.survey import Survey
from trnlab.runtime.script import Script, failure
from trnlab.runtime.session import current


class StopTracing(BaseException):
    """The walk has seen enough."""


class ScriptObserver(Protocol):
    """Who follows."""

    survey: Survey
    complete: bool
    made_up: dict[Location | None, Any]

    def ended(self) -> None:
        """The script came to its end by itself."""


def run(script: Script, walk: ScriptObserver, said: OutputTail) -> None:
    """Run the script; an error of it is one of the walk's findings."""
    path, argv = list(sys.path), sys.argv
    sys.argv = [str(script.path), *script.arguments]
    sys.path.insert(0, str(script.file.parent))
    script_starts(str(script.file))
    try:
        runpy.run_path(str(script.path), run_name="__main__")
        walk.ended()
    except StopTracing:
        pass
    except SystemExit as exit:
        walk.complete = exit.code in (None, 0)
        if not walk.complete:
            walk.survey.raised(_ended_early(exit, _line(exit, script), said.line))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        walk.complete = False
        place = _line(error, script)
        told = failure(error, "TRN259")
        if current().communicator is None and ranks.asks_for_ranks(error):
            told = ranks.alone(current())
        own = told.code == "TRN259"
        told.where = place or told.where if own or told.code == RANKS_WANTED else told.where or place
        told.what = told.what.strip().splitlines()[0] if own else told.what
        if own:
            told.got, told.remedy = _made_up(walk), _REMEDY_MADE_UP if walk.made_up else _REMEDY
        walk.survey.raised(told)
    finally:
        finding.ended(walk.survey)
        sys.argv, sys.path[:] = argv, path


def _ended_early(exit: SystemExit, where: Location | None, said: str) -> UsageError:
    """said: the last line that the script wrote to standard error; a message that it ends with is not written yet."""
    status = exit.code if isinstance(exit.code, int) else 1
    return UsageError(
        f"the script ended with exit status {status} before its first step",
        code="TRN259",
        where=where,
        got=(said if isinstance(exit.code, int) else str(exit.code)) or None,
        remedy="see what it says; what follows its name on the command line is the script's, so that options of "
        "trnlab stand before it",
    )


_REMEDY = "see the line: the script had been given no number that is made up here"
_REMEDY_MADE_UP = "check computes no values: let the line take any finite number; `trnlab run` computes them"


def _made_up(walk: ScriptObserver) -> str | None:
    """The numbers behind an error that Python was given though nobody computed them, latest first."""
    latest = [f"{number} at {place or 'an unknown line'}" for place, number in [*walk.made_up.items()][:-4:-1]]
    return f"numbers of tensors that are made up here: {'; '.join(latest)}" if latest else None


def _line(error: BaseException, script: Script) -> Location | None:
    """The line of the script at which an error arrived."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(script.path)]
    last = frames[-1] if frames else None
    return Location(last.filename, last.lineno or 0, last.name, last.line or "") if last is not None else None
