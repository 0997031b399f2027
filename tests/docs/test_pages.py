# SPDX-License-Identifier: Apache-2.0
"""Commands and examples on all pages: each command is understood, and Python that no other test runs runs."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import processes
from trnlab.cli.commands import parsed

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("docs/tutorials/*.md"))]
_COMMAND = re.compile(r"^(?:    |\$ )?(?:[A-Z_]+=\S+ )*trnlab ([a-z][a-z-]* ?.*)$", re.MULTILINE)
_END = re.compile(r"\s[#|>&]")  # of the command, in a line of a shell


def commands(text: str) -> Iterator[list[str]]:
    """The commands of a page's code: lines that begin with `trnlab`, continued or not, but for those with gaps."""
    code = re.findall(r"^```(?:sh)?\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    code += re.findall(r"^    .*$(?:\n    .*$)*", prose, re.MULTILINE)
    for block in code:
        for found in _COMMAND.finditer(block.replace("\\\n", "")):
            command = _END.split(found[1])[0]
            if "..." not in command:
                yield shlex.split(command)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_are_understood(page):
    for command in commands(page.read_text()):
        assert parsed(command).command == command[0]


def test_commands_are_found():
    fenced = "```sh\ntrnlab run \\\n  a.py  # one\n```\n\n"
    text = f"{fenced}    A=1 trnlab chips | head\n    trnlab plan ...\n\ntrnlab is none.\n"
    assert list(commands(text)) == [["run", "a.py"], ["chips"]]
    assert sum(len(list(commands(page.read_text()))) for page in PAGES) > 80


def test_the_examples_of_tensorflow_run(tmp_path):
    pytest.importorskip("tensorflow")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/tensorflow.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    script = tmp_path / "script.py"
    script.write_text("\n".join([*blocks, 'print(f"step {float(loss):.3f}")']))
    environment = {
        **os.environ,
        "TRNLAB_TARGET": "trn1.2xlarge",
        "TRNLAB_CACHE": str(tmp_path),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    done = processes.run([sys.executable, str(script)], cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^step 0\.[4-9]\d+$", done.stdout, re.MULTILINE)
