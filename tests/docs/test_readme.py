# SPDX-License-Identifier: Apache-2.0
"""What README.md shows works: its Python runs, its commands are commands, and what it names is there."""

import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from tests import processes
from trnlab.cli.commands import parsed
from trnlab.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = [
    line.split("#")[0].strip() for line in "".join(re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)).splitlines()
]


@pytest.mark.torch
@pytest.mark.parametrize("number", range(len(PYTHON)))
def test_python_blocks_run(number, tmp_path):
    environment = {**os.environ, "TRNLAB_TARGET": "trn1.2xlarge", "TRNLAB_CACHE": str(tmp_path)}
    done = processes.run([sys.executable, "-c", PYTHON[number]], cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert re.match(r"loss [01]\.\d+|gelu\(1\) = 0\.8413", done.stdout)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_commands(command, capsys):
    program, *arguments = shlex.split(command)
    assert program == "trnlab"
    assert parsed(arguments)
    if arguments[0] in ("chips", "isa"):
        assert main(arguments) == 0
        assert capsys.readouterr().out


def test_what_it_names_is_there():
    """Files in backquotes and links, and targets of make."""
    for name in re.findall(r"`((?:docs|tests|src)/[\w./-]+)`", TEXT) + re.findall(r"\]\((docs/[^)]+)\)", TEXT):
        assert (ROOT / name).exists(), name
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"(?:^    |`)make ([a-z]+)", TEXT, re.MULTILINE)) <= set(targets)


def test_architecture_names_modules_that_exist():
    for page in [ROOT / "docs/architecture.md", *sorted((ROOT / "docs/adr").glob("*.md"))]:
        for name in re.findall(r"`((?:[a-z_0-9]+/)+(?:[a-z_0-9]+\.py)?)`", page.read_text()):
            places = (ROOT / name, ROOT / "src/trnlab" / name)
            assert any(place.exists() for place in places), f"{page.name} names {name}"
