# SPDX-License-Identifier: Apache-2.0
"""Views that ask a question: a form whose address is a command line, and the answer or how far it is."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from trnlab.cli.commands import COMMANDS
from trnlab.cli.web.jobs import ANSWERED
from trnlab.cli.web.shell import View
from trnlab.cli.web.site import ServedSite
from trnlab.cli.web.work import Words
from trnlab.quoting import markup as escape

PATIENCE_S = 0.9  # that a page waits for an answer before it shows how far it is
SCRIPT = "questions.js"


def options(said: Mapping[str, str]) -> list[str]:
    """Options of a command line, those that are empty left out; each in one word, so that no value is an option."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in said.items() if value]


def shown(words: Sequence[str]) -> str:
    """The command line that says the same, where there is one."""
    if words[0] not in COMMANDS:
        return ""
    told = [word for word in words if not word.startswith("--cache=") and word != "--"]
    return f'<p class="over">The same on a command line: <code>trnlab {escape(shlex.join(told))}</code></p>'


def asking(site: ServedSite, title: str, here: str, before: str, words: Words | None, about: str) -> View:
    """A view: the form, then the answer to `words`; where there is no question yet, what can be asked."""
    site.work.start()
    if words is None:
        body = f'{before}<div class="answer" data-answer="{here}/part"><p class="say">{escape(about)}</p></div>'
        return View(title, body, [], here=here)
    found = site.work.ask(words, PATIENCE_S)
    over = found["state"] == ANSWERED
    content = found["html"] if over else _working(found)
    state = "" if over else ' data-working="yes"'
    body = f'{before}<div class="answer" data-answer="{here}/part"{state}>{shown(words)}{content}</div>'
    return View(title, body, found.get("scripts", []), here=here)


def asking_first(site: ServedSite, title: str, here: str, before: str, words: Words | None, about: str) -> View:
    """The same of what runs the user's code: begun by a button, and never by an address."""
    if words is not None and site.work.known(words):
        return asking(site, title, here, before, words, about)
    said = "" if words is None else shown(words)
    body = f'{before}<div class="answer" data-answer="{here}/part">{said}<p class="say">{escape(about)}</p></div>'
    return View(title, body, [], here=here)


def part(site: ServedSite, words: Words) -> dict[str, Any]:
    """The answer, or how far it is, for a script that asks again."""
    found = site.work.ask(words, PATIENCE_S)
    return {**found, "html": shown(words) + found["html"] if "html" in found else ""}


def cancelled(site: ServedSite, words: Words) -> dict[str, Any]:
    """Nobody wants to know any more."""
    site.work.cancel(words)
    return {"over": True}


def _working(found: Mapping[str, Any]) -> str:
    lines = "".join(f"<li>{escape(line)}</li>" for line in found["lines"])
    said = "<p>Compiling what is not compiled yet.</p><progress></progress>"
    return f'<div class="working" role="status">{said}<ol>{lines}</ol></div>'
