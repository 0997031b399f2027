# SPDX-License-Identifier: Apache-2.0
"""The command's help: groups of commands in plain words, and the nearest command to one that does not exist."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from trnlab.cli.commands import COMMANDS, GROUPS, parsed, parser
from trnlab.cli.main import main


def test_the_command_alone_shows_the_help(capsys):
    texts = []
    for argv in ([], ["--help"], ["-h"]):
        with pytest.raises(SystemExit) as ended:
            main(argv)
        assert not ended.value.code
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] == texts[2]


def test_the_help_has_every_command_once_in_one_line_within_its_group():
    lines = parser().format_help().splitlines()
    for title, commands in GROUPS.items():
        first = lines.index(f"{title}:") + 1
        assert [line.split()[0] for line in lines[first : first + len(commands)]] == [c.name for c in commands]
        assert not lines[first + len(commands)]
    assert max(map(len, lines)) <= 80
    assert sorted(c.name for commands in GROUPS.values() for c in commands) == sorted(COMMANDS)


def test_every_command_has_a_module_and_a_help_of_its_own():
    for command in COMMANDS.values():
        assert importlib.util.find_spec(command.module) is not None
        with pytest.raises(SystemExit) as ended:
            parsed([command.name, "--help"])
        assert not ended.value.code


@pytest.mark.parametrize(
    ("word", "nearest"), [("chek", "check"), ("serve", "serve-plan"), ("checkpoints", "checkpoint"), ("zzz", None)]
)
def test_an_unknown_command_is_answered_with_the_nearest(word, nearest, capsys):
    assert main([word, "train.py"]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"trnlab: there is no command '{word}'")
    assert (f"did you mean '{nearest}'?" in told) == (nearest is not None)
    assert "`trnlab --help`" in told


def test_the_help_loads_no_command():
    code = (
        "import sys\nfrom trnlab.cli.main import main\n"
        "try:\n    main([])\nexcept SystemExit:\n    pass\n"
        "print([m for m in sys.modules if m in ('trnlab.cli.run', 'trnlab.cli.planning.plan', 'numpy', 'torch')])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines()[-1] == "[]"
