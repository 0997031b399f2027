# SPDX-License-Identifier: Apache-2.0
"""Views that ask a question: a form whose address is a command line, and the answer or how far it is."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trnlab.cli.commands import COMMANDS
from trnlab.cli.web.jobs import ANSWERED
from trnlab.cli.web.shell import View
from trnlab.cli.web.site import ServedSite
from trnlab.cli.web.work import Words
from trnlab.quoting import markup as escape

PATIENCE_S = 0.9  # that a page waits for an answer before it shows how far it is
SCRIPT = "questions.js"
Asked = Mapping[str, str]


def options(said: Mapping[str, str]) -> list[str]:
    """Options of a command line, those that are empty left out; each in one word, so that no value is an option."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in said.items() if value]


def shown(words: Sequence[str]) -> str:
    """The command line that says the same, where there is one."""
    if words[0] not in COMMANDS:
        return ""
    told = [word for word in words if not word.startswith("--cache=") and word != "--"]
    return f'<p class="over">The same on a command line: <code>trnlab {escape(shlex.join(told))}</code></p>'


@dataclass(frozen=True)
class QuestionView:
    """A view whose address is a command line: its page, the part that a script asks for again, and what stops it.

    form and words raise UsageError for an address that no command takes.
    """

    command: str
    path: str
    heading: str
    about: str  # what can be asked
    form: Callable[[ServedSite, Asked], str]  # HTML
    words: Callable[[ServedSite, Asked], Words]  # the command line of an address
    needs: str  # the parameter without which nothing is asked
    pressed: bool = False  # it runs the user's code: a button begins it, and never an address
    rest: Callable[[ServedSite], str] = lambda site: ""  # HTML below the answer
    scripts: Sequence[str] = ()  # beside those of the answer
    doing: str = "Compiling what is not compiled yet"  # what takes its time

    def view(self, site: ServedSite, asked: Asked) -> View:
        """The form, then the answer of the address or how far it is; else what can be asked."""
        site.work.start()
        words = self.words(site, asked) if asked.get(self.needs) else None
        head = f"<header><p class='over'>trnlab {self.command}</p><h1>{escape(self.heading)}</h1></header>"
        state, said, scripts = "", f'<p class="say">{escape(self.about)}</p>', []
        if words is not None and self.pressed and not site.work.known(words):
            said = shown(words) + said
        elif words is not None:
            found = site.work.ask(words, PATIENCE_S)
            over = found["state"] == ANSWERED
            said = shown(words) + (found["html"] if over else self._working(found))
            state, scripts = "" if over else ' data-working="yes"', found.get("scripts", [])
        answer = f'<div class="answer" data-answer="{self.path}/part" data-doing="{self.doing}"{state}>{said}</div>'
        body = f"{head}{self.form(site, asked)}{answer}{self.rest(site)}"
        return View(self.heading.lower(), body, [*scripts, SCRIPT, *self.scripts], here=self.path)

    def part(self, site: ServedSite, asked: Asked) -> Mapping[str, Any]:
        """The answer, or how far it is, for a script that asks again."""
        words = self.words(site, asked)
        found = site.work.ask(words, PATIENCE_S)
        return {**found, "html": shown(words) + found["html"] if "html" in found else ""}

    def cancel(self, site: ServedSite, asked: Asked) -> Mapping[str, Any]:
        """Nobody wants to know any more."""
        site.work.cancel(self.words(site, asked))
        return {"over": True}

    def _working(self, found: Mapping[str, Any]) -> str:
        lines = "".join(f"<li>{escape(line)}</li>" for line in found["lines"])
        said = f"<p>{escape(self.doing)}.</p><progress></progress>"
        return f'<div class="working" role="status">{said}<ol>{lines}</ol></div>'
