# SPDX-License-Identifier: Apache-2.0
"""What README.md and the pages that it leads to show works: Python runs and prints what is shown, commands are
commands, and what they name is there."""

import os
import re
import shlex
import sys
from pathlib import Path

import pytest
from tutorial_pages import alike

from tests import processes
from trnlab.cli.commands import COMMANDS, parsed
from trnlab.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = [README, *(ROOT / "docs" / f"{name}.md" for name in ("index", "installation", "kernels", "pytorch", "scope"))]
MOST = 120  # lines of README.md
_SHELL = re.compile(r"```sh\n(.*?)```", re.DOTALL)
_PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
SHOWN = [
    line.split("#")[0].strip()
    for page in PAGES
    for block in _SHELL.findall(page.read_text())
    for line in block.splitlines()
]


def printed(page, folder, **environment):
    """What the one Python block of a page prints, as a script of its own."""
    (code,) = _PYTHON.findall(page.read_text())
    script = folder / "script.py"
    script.write_text(code)
    clean = {name: value for name, value in os.environ.items() if name != "TRNLAB_TARGET"}
    environment = {**clean, "TRNLAB_CACHE": str(folder), **environment}
    done = processes.run([sys.executable, str(script)], cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.torch
def test_the_kernel_of_the_readme_prints_what_is_shown(tmp_path):
    shown = re.findall(r"```output\n(gelu.*?)```", README.read_text(), re.DOTALL)
    assert len(shown) == 1
    assert alike(shown[0], printed(README, tmp_path))


@pytest.mark.torch
def test_the_step_in_pytorch_learns(tmp_path):
    found = printed(ROOT / "docs/pytorch.md", tmp_path, TRNLAB_TARGET="trn1.2xlarge")
    assert re.match(r"loss [01]\.\d+\n$", found)


@pytest.mark.parametrize("command", SHOWN)
def test_commands_are_commands(command, capsys):
    program, *arguments = shlex.split(command)
    assert program == "trnlab"
    assert parsed(arguments)
    if arguments[0] in ("chips", "isa"):
        assert main(arguments) == 0
        assert capsys.readouterr().out


def test_its_first_commands_do_everything_and_the_first_screen_answers():
    """On a fresh machine: what CI calls is the second one."""
    text = README.read_text()
    assert text.count("\n") <= MOST
    assert re.findall(r"^    (\S+ \S+)", text, re.MULTILINE)[:3] == ["make demo", "make test", "pip install"]
    assert (ROOT / ".ci/run").read_text().rstrip().endswith("exec make test")
    screen = text.partition("<!-- end of the first screen -->")[0].splitlines()
    assert len(screen) < 55


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_it_names_is_there(page):
    """Files in backquotes and links, targets of make, and commands."""
    text = page.read_text()
    for name in re.findall(r"`((?:docs|tests|src)/[\w./-]+)`", text):
        assert (ROOT / name).exists(), name
    for name in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / name).exists(), name
    targets = re.findall(r"^([a-z -]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    made = set(re.findall(r"(?:^    |`)make ([a-z-]+)", text, re.MULTILINE))
    assert made <= {name for each in targets for name in each.split()}
    assert set(re.findall(r"`trnlab ([a-z-]+)", text)) <= set(COMMANDS)


def test_architecture_names_modules_that_exist():
    for page in [ROOT / "docs/architecture.md", *sorted((ROOT / "docs/adr").glob("*.md"))]:
        for name in re.findall(r"`((?:[a-z_0-9]+/)+(?:[a-z_0-9]+\.py)?)`", page.read_text()):
            places = (ROOT / name, ROOT / "src/trnlab" / name)
            assert any(place.exists() for place in places), f"{page.name} names {name}"
