# SPDX-License-Identifier: Apache-2.0
"""`trnlab completion`: what the shells themselves propose after they read it."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from trnlab.cli.commands import COMMANDS
from trnlab.cli.completion import SHELLS, script
from trnlab.cli.main import main

BASH = """
source {file}
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_shtab_trnlab
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
FISH = "source {file}; complete -C '{line}'"
ZSH = """
autoload -Uz compinit && compinit -D
eval "$(<{file})"
(( $+functions[_shtab_trnlab] )) && print ${{_comps[trnlab]}}
"""


def proposed(shell, line, folder):
    """What a shell proposes for the last word of a line."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    file = folder / "completion"
    file.write_text(script(shell))
    words = " ".join(f"'{word}'" for word in line.split(" "))
    code = {"bash": BASH, "fish": FISH, "zsh": ZSH}[shell].format(file=file, line=line, words=words)
    done = subprocess.run([shell, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return {row.split("\t")[0] for row in done.stdout.splitlines()}


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_a_shell_proposes_commands_options_targets_and_files(shell, tmp_path):
    (tmp_path / "train.py").write_text("")
    assert proposed(shell, "trnlab ", tmp_path) == set(COMMANDS)
    assert proposed(shell, "trnlab che", tmp_path) == {"check", "checkpoint"}
    assert "--precision-rules" in proposed(shell, "trnlab run --pre", tmp_path)
    assert proposed(shell, "trnlab run --target trn2.4", tmp_path) == {"trn2.48xlarge"}
    assert "train.py" in proposed(shell, "trnlab check tr", tmp_path)
    assert {"ls", "verify"} <= proposed(shell, "trnlab cache ", tmp_path)


def test_zsh_takes_it_for_the_command(tmp_path):
    assert proposed("zsh", "trnlab ", tmp_path) == {"_shtab_trnlab"}


@pytest.mark.parametrize("shell", SHELLS)
def test_the_command_prints_what_has_every_command(shell, capsys):
    assert main(["completion", shell]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in COMMANDS)


def test_without_the_package_the_way_out_is_told(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    told = capsys.readouterr().err
    assert "TRN107" in told
    assert "pip install shtab" in told
