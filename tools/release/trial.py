# SPDX-License-Identifier: Apache-2.0
"""A distribution in an empty environment: whether it installs, says its version and runs the README's kernel."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from tools.release.rules import version


def problem(file: Path, root: Path, here: bool) -> str:
    """What is wrong with a distribution, "" where nothing is. here: with the dependencies of this environment."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        environment = place / "environment"
        venv.create(environment, with_pip=True, symlinks=True)
        if here:
            (site,) = environment.glob("lib/python*/site-packages")
            for own in site.glob("setuptools*"):  # Python 3.11 brings one that is too old to build with
                shutil.rmtree(own)
            (site / "dependencies.pth").write_text("".join(f"{p}\n" for p in sys.path if p.endswith("site-packages")))
        return _tried(file, root, environment / "bin", place, here)


def _tried(file: Path, root: Path, programs: Path, place: Path, here: bool) -> str:
    alone = ["--no-deps", "--no-build-isolation", "--no-index"] if here else []
    pip = [str(programs / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check", *alone, str(file)]
    installed = subprocess.run(pip, cwd=place, capture_output=True, text=True, check=False)
    if installed.returncode:
        return f"does not install:\n{installed.stderr}"
    code, shown = kernel(root)
    script = place / "kernel.py"
    script.write_text(code)
    for command, expected in (("trnlab --version", f"trnlab {version(root)}\n"), (f"python {script}", shown)):
        program, *words = command.split(" ")
        environment = {"HOME": str(place), "PATH": "/usr/bin:/bin"}
        line = [str(programs / program), *words]
        done = subprocess.run(line, cwd=place, env=environment, capture_output=True, text=True, check=False)
        if done.returncode or done.stdout != expected:
            return f"`{command}` prints {done.stdout!r} and not {expected!r}\n{done.stderr}"
    return ""


def kernel(root: Path) -> tuple[str, str]:
    """The kernel of README.md, and what it prints there."""
    text = (root / "README.md").read_text()
    code, shown = re.search(r"```python\n(.*?)```.*?```output\n(.*?)```", text, re.DOTALL).groups()
    return code, shown
