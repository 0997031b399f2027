# SPDX-License-Identifier: Apache-2.0
"""Names of models, files, runs and ranks that are more than names, in every medium that trnlab writes.

Newlines, quotes, markup, escape sequences, formulas, shell and YAML syntax, characters that turn the direction of
writing. A page has the elements that it has with a plain name, a shell runs nothing, a terminal gets no control
character, a table no formula, a metric no further sample.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import json
import os
import random
import shutil
import subprocess
import tempfile
from html.parser import HTMLParser
from pathlib import Path

from tools.attack import Outcome
from trnlab.cli.main import main
from trnlab.documents import Bar, Bars, Document, Note, Section, Table, page, text
from trnlab.fleet import Question, plan
from trnlab.fleet.layers.sizes import Attention, Dense
from trnlab.fleet.models.transformer import Block, Model
from trnlab.fleet.planning import launch_files
from trnlab.fleet.planning.plan import Plan
from trnlab.fleet.search.layout import pinned
from trnlab.operations.monitor_text import MetricSamples
from trnlab.quoting import csv_cell, one_line, shell_comment, shell_value

PARTS = (
    "\n",
    "\r\n",
    "\t",
    "\0",
    "\x1b[2J",
    "\x1b]0;title\x07",
    "\x9b31m",
    "\u202e",
    "\u2028",
    "'",
    '"',
    "`",
    "$(touch ran)",
    "`touch ran`",
    "; touch ran;",
    "\ntouch ran\n",
    "&& touch ran",
    "| touch ran",
    "<script>alert(1)</script>",
    '" onload="x',
    "</title>",
    "<!--",
    "]]>",
    "=1+1",
    "+1",
    "-1",
    "@SUM(A1)",
    "=cmd|'/c calc'!A1",
    "%0a",
    "---\n",
    "key: value",
    "- item",
    "{{x}}",
    "*",
    "~",
    "..",
    "/",
    "\\",
    "#",
    "é",
    "model",
    " ",
)
PLAIN = "model"


def names(inputs: int, seed: int) -> Outcome:
    """As the module says."""
    outcome = Outcome()
    shell = _Shell()
    try:
        found = _plan()
        for number in range(inputs):
            pick = random.Random(f"{seed} {number}")
            name = "".join(pick.choices(PARTS, k=pick.randint(1, 5)))
            wrong = [*_document(name), *_metric(name), *_cell(name), *_json(name)]
            if number % 10 == 0:
                wrong += [*shell.comment_and_value(name), *shell.launches(found, name), *_files(name)]
            outcome.counts["names"] += 1
            outcome.failures += [f"{what}: {name!r}" for what in wrong]
    finally:
        shell.close()
    return outcome


def _plan() -> Plan:
    model = Model(PLAIN, 256, ((2, Block(256, Attention(4, 2, 64, 64), Dense(512))),), 128, 512)
    return plan(Question(model, 1e12, ("trn2.48xlarge",), (2, 2), batch=64, fixed=pinned("tp=2,mb=1,pp=2,vp=1")))


# -- documents, metrics, tables --------------------------------------------------------------------------------------
def _report(name: str) -> Document:
    bars = Bars([Bar.of(name, 0.5, name)])
    return Document(name, [Section(name, [Note(f"of {name}"), Table([(name, "1")], (name, "n")), bars])], lede=name)


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, tuple[str, ...]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, tuple(name for name, _ in attrs)))


def _elements(html: str) -> list[tuple[str, tuple[str, ...]]]:
    parser = _Elements()
    parser.feed(html)
    return parser.found


def _document(name: str) -> list[str]:
    wrong = []
    if _elements(page(_report(name))) != _elements(page(_report(PLAIN))):
        wrong.append("a page has other elements")
    shown = text(_report(name))
    if any(not (c.isprintable() or c == "\n") for c in shown):
        wrong.append("a terminal gets a control character")
    if shown.count("\n") > text(_report(PLAIN)).count("\n") + 2 * name.count("\n"):
        wrong.append("a terminal gets further lines")
    return wrong


def _metric(name: str) -> list[str]:
    samples = MetricSamples()
    samples.add("m", "gauge", "about", {"tag": name}, 1.0)
    lines = samples.text().split("\n")
    return [] if len(lines) == 4 and lines[2].startswith('m{tag="') and lines[2].endswith('"} 1.0') else ["a metric"]


def _cell(name: str) -> list[str]:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow([csv_cell(name), csv_cell(-1.5)])
    ((first, second),) = csv.reader(io.StringIO(out.getvalue()))
    return ["a formula"] if first[:1] in ("=", "+", "-", "@", "\t", "\r", "|", "%") or second != "-1.5" else []


def _json(name: str) -> list[str]:
    return [] if json.loads(Document(name, [], record=lambda: {"name": name}).json()) == {"name": name} else ["JSON"]


# -- shells and files -----------------------------------------------------------------------------------------------
class _Shell:
    """A folder in which `touch ran` would leave a file, and a torchrun that does nothing."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.bash = shutil.which("bash") or "bash"
        bin = self.folder / "bin"
        bin.mkdir()
        (bin / "torchrun").write_text("#!/bin/sh\nexit 0\n")
        (bin / "torchrun").chmod(0o755)

    def close(self) -> None:
        """Take the folder away."""
        shutil.rmtree(self.folder)

    def ran(self, script: str) -> bool:
        """Whether a script runs something of a name, or does not parse."""
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        environment = {"PATH": path, "HEAD": "h", "NODE": "0"}
        done = subprocess.run([self.bash, "-c", script], cwd=self.folder, env=environment, capture_output=True)
        left = [each for each in self.folder.iterdir() if each.name != "bin"]
        for each in left:
            each.unlink()
        return bool(left) or done.returncode != 0

    def comment_and_value(self, name: str) -> list[str]:
        """A name in a comment, and as a value, which comes through as it is shown."""
        script = f'{shell_comment(name)}\nX={shell_value(name)}\n[ "$X" = {shell_value(one_line(name))} ]\n'
        return ["a shell"] if self.ran(script) else []

    def launches(self, found: Plan, name: str) -> list[str]:
        """A model of this name in what starts it."""
        model = dataclasses.replace(found.question.model, name=name)
        hostile = dataclasses.replace(found, question=dataclasses.replace(found.question, model=model))
        with tempfile.TemporaryDirectory() as folder:
            launch_files.write(hostile, Path(folder))
            script = (Path(folder) / "launch.sh").read_text()
            wrong = ["launch.sh"] if self.ran(script) else []
            for part in (Path(folder) / "job.yaml").read_text().split("\n---\n"):
                wrong += [] if set(json.loads(part)) >= {"apiVersion", "kind", "metadata", "spec"} else ["job.yaml"]
        return wrong


def _files(name: str) -> list[str]:
    """A file of this name, as commands that read files tell of it."""
    usable = name.replace("\0", "").replace("/", "")[:60]
    if usable in ("", ".", ".."):
        return []
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{usable}.py")
        path.write_text("import neuronxcc.nki as nki\n@nki.jit\ndef f(x):\n    return lambda: x\n")
        for command in (
            ["lint", str(path)],
            ["graph", str(path)],
            ["profile", str(path)],
            ["checkpoint", "verify", folder],
        ):
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), contextlib.suppress(SystemExit):
                main(command)
            shown = out.getvalue() + err.getvalue()
            if any(not (c.isprintable() or c in "\n\t") for c in shown):
                wrong.append(f"{command[0]} shows a control character")
            if "Traceback" in shown:
                wrong.append(f"{command[0]} ends in a traceback")
    return wrong
