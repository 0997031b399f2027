# SPDX-License-Identifier: Apache-2.0
"""The process beside a server that answers what takes a while: plans, bake-offs, benches,
searches. What it says on stderr is
the progress of who asked; what it found stays in its memory, so that a question that is nearly the same is quick."""

from __future__ import annotations

import signal
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from trnlab import documents
from trnlab.cli.commands import parsed
from trnlab.cli.web.shell import trouble
from trnlab.documents import Document
from trnlab.errors import TrnlabError, UsageError
from trnlab.files import why
from trnlab.quoting import one_line

Words = tuple[str, ...]  # a command line, without the name of the program
SAID, DONE = "said", "done"
KEPT = 12  # plans that are remembered


class RememberedPlans:
    """Searches plans; one whose steps are known from another question is put together anew."""

    def __init__(self) -> None:
        self._plans: OrderedDict[int, Any] = OrderedDict()

    def search(self, asked: Any, folder: Path | None, said: Callable[[str], None], *more: Any) -> Any:
        """As `fleet.planning.plan.plan`."""
        from trnlab.fleet.planning.plan import asked_again, differs_in_steps, plan

        for number, known in self._plans.items():
            if not differs_in_steps(known.question, asked):
                self._plans.move_to_end(number)
                return asked_again(known, asked, said)
        found = plan(asked, folder, said, *more)
        self._plans[id(found)] = found
        if len(self._plans) > KEPT:
            self._plans.popitem(last=False)
        return found


class _Lines:
    """An output whose lines are progress."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._left = say, ""

    def write(self, text: str) -> int:
        *lines, self._left = (self._left + text).split("\n")
        for line in lines:
            self._say(one_line(line.removeprefix("trnlab: ").strip()))
        return len(text)

    def flush(self) -> None:
        """Nothing waits."""

    def isatty(self) -> bool:
        """It is none."""
        return False


def main(connection: Connection) -> None:
    """Answer until the server is gone: takes (number, words), says (number, SAID, line), (number, DONE, answer)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server ends it
    plans, number = RememberedPlans(), 0

    def say(line: str) -> None:
        connection.send((number, SAID, line))

    sys.stderr = _Lines(say)
    while True:
        try:
            number, words = connection.recv()
        except EOFError:
            return
        connection.send((number, DONE, answered(words, plans)))


def answered(words: Words, plans: RememberedPlans) -> dict[str, Any]:
    """What a command answers, as HTML with the scripts that it needs, or what is wrong with it."""
    try:
        if words[0] == "timeline":
            return _timeline(words, plans)
        found = _DOCUMENTS[words[0]](words, plans)
    except TrnlabError as error:
        return {"html": trouble(error), "scripts": []}
    except OSError as error:
        return {"html": trouble(UsageError(why(error), code="TRN100", got=error.filename)), "scripts": []}
    except SystemExit:
        return {"html": trouble(_unread(words)), "scripts": []}
    return {"html": documents.body(found), "scripts": [script.name for script in found.scripts]}


def _unread(words: Sequence[str]) -> UsageError:
    return UsageError("the question cannot be read", code="TRN855", got=" ".join(words), remedy="use the form")


def _plan(words: Words, plans: RememberedPlans) -> Document:
    from trnlab.cli.planning.plan_answer import answer

    return answer(parsed(words), plans.search)[0]


def _bakeoff(words: Words, plans: RememberedPlans) -> Document:
    from trnlab.cli.planning.bakeoff import answer

    return answer(parsed(words))


def _serve_plan(words: Words, plans: RememberedPlans) -> Document:
    from trnlab.cli.planning.serve_plan import answer

    return answer(parsed(words))[1]


def _goodput(words: Words, plans: RememberedPlans) -> Document:
    from trnlab.cli.planning.goodput import answer

    return answer(parsed(words))[1]


def _tune(words: Words, plans: RememberedPlans) -> Document:
    from trnlab.cli.kernels.tune import searched

    return searched(parsed(words))[1]


def _bench(words: Words, plans: RememberedPlans) -> Document:
    from trnlab.bench.document import document
    from trnlab.cli.kernels.bench import judged

    return document(judged(parsed(words)))


def _timeline(words: Words, plans: RememberedPlans) -> dict[str, Any]:
    """The timeline of a kernel that is recorded in a contained process, and its source."""
    from trnlab.bench import contained
    from trnlab.bench.candidate import candidates
    from trnlab.bench.explanation import recorded_step
    from trnlab.bench.recording import on_target
    from trnlab.cli.kernels.bench import bench_of
    from trnlab.cli.web.source import NAMES, beside
    from trnlab.nki import portable
    from trnlab.nki.target import default_chip
    from trnlab.profile.pages import pictures

    args = parsed(("bench", *words[1:]))
    first = candidates(args.kernels)[0]
    with on_target(args.target or ""):
        bench = bench_of(args, False)
        (found,) = contained.recordings([bench.job(first, bench.arguments())], bench.limits)
        if found.error is not None:
            raise found.error
        step = recorded_step(portable.loads(found.contents[""], default_chip()), default_chip())
    script = str(first.path)
    section = pictures.timeline({"script": script}, step, (), f"{first.name} on {default_chip().name}")
    return {"html": beside(section, step, script), "scripts": NAMES}


_DOCUMENTS: dict[str, Callable[[Words, RememberedPlans], Document]] = {
    "plan": _plan,
    "serve-plan": _serve_plan,
    "bakeoff": _bakeoff,
    "goodput": _goodput,
    "bench": _bench,
    "tune": _tune,
}
