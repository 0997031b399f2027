# SPDX-License-Identifier: Apache-2.0
"""The recipes of CONTRIBUTING.md work: each is carried out on a copy of the package, then what it tries is run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import trnlab

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(trnlab.__file__).parent
RECIPES = {
    "Add an instruction": 4,
    "Add a chip": 4,
    "Add an op": 7,
    "Add an architecture": 2,
    "Add a command": 6,
}  # and how many blocks each has
BLOCK = re.compile(r"```(\w+)\n# (.*?)\n(.*?)```", re.DOTALL)
CLOSING = re.compile(r"^[)\]}]", re.MULTILINE)


def recipe(title):
    """The code blocks of one recipe: language, heading and text."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    return BLOCK.findall(text.split(f"## {title}\n")[1].split("\n## ")[0])


class Copy:
    """The package with some files changed. What is not changed is linked, compiled loops included.

    Its root is where scripts run: it has the package, and of `docs/` and `tests/` only what the recipe touches.
    """

    def __init__(self, root):
        self.root = root
        (root / "trnlab").symlink_to(PACKAGE)

    def path(self, name):
        """A file of the copy that may be written: the folders above it become real, their other contents links."""
        if not name.startswith("src/"):
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).exists() and not path.exists():
                path.write_text((ROOT / name).read_text())
            return path
        parts = Path(name).relative_to("src").parts
        folder = self.root
        for part in parts[:-1]:
            folder /= part
            if folder.is_symlink():
                origin = folder.resolve()
                folder.unlink()
                folder.mkdir()
                for child in origin.iterdir():
                    if child.name != "__pycache__":
                        (folder / child.name).symlink_to(child)
        path = folder / parts[-1]
        if path.is_symlink():
            text = path.read_text()
            path.unlink()
            path.write_text(text)
        return path

    def carry_out(self, language, heading, text):
        """One block; returns the script if it is one to try."""
        if heading == "try it":
            return text
        if heading.startswith("new file: "):
            path = self.path(heading.removeprefix("new file: "))
            assert not path.exists(), f"{path} is there already"
            path.write_text(text)
        elif language == "diff":
            old = "".join(line[1:] for line in text.splitlines(keepends=True) if line.startswith("-")).rstrip("\n")
            new = "".join(line[1:] for line in text.splitlines(keepends=True) if line.startswith("+")).rstrip("\n")
            path = self.path(heading)
            assert path.read_text().count(old) == 1, f"{heading} has changed: {old!r}"
            path.write_text(path.read_text().replace(old, new))
        else:
            name, _, table = heading.removeprefix("in ").partition(", ")
            path = self.path(name)
            path.write_text(insert(path.read_text(), table, text))
        return None


def insert(source, table, text):
    """Put `text` at the end of a table, or of the file when no table is named."""
    if not table:
        return f"{source}\n\n{text}"
    start = re.search(rf"^{table}\b", source, re.MULTILINE).start()
    end = CLOSING.search(source, start).start()
    return source[:end] + text + source[end:]


@pytest.mark.torch
@pytest.mark.parametrize("title", RECIPES)
def test_the_recipe_works(title, tmp_path):
    copy, scripts = Copy(tmp_path), []
    blocks = recipe(title)
    assert len(blocks) == RECIPES[title]
    for block in blocks:
        script = copy.carry_out(*block)
        if script is not None:
            scripts.append(script)
    (script,) = scripts
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "TRNLAB_CACHE": str(tmp_path / "cache")}
    check = f"import trnlab\nassert trnlab.__file__.startswith({str(tmp_path)!r})\n"
    command = [sys.executable, "-c", check + script]
    done = subprocess.run(command, env=environment, cwd=tmp_path, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_what_make_test_leaves_out_is_listed():
    """Each file, or its folder, stands in the table."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    listed = re.findall(r"^\| `(tests/[\w/.]+)`", text, re.MULTILINE)
    long = [path for path in (ROOT / "tests").rglob("test_*.py") if "mark.slow" in path.read_text()]
    for path in (str(path.relative_to(ROOT)) for path in long if path != Path(__file__)):
        assert any(path == name or path.startswith(f"{name}/") for name in listed), path
    assert all((ROOT / name).exists() for name in listed)


def test_without_the_recipes_their_examples_are_unknown():
    """A recipe adds what was missing: were it known, the example would show nothing."""
    from trnlab import isa
    from trnlab.cli.commands import COMMANDS
    from trnlab.fleet.models.architectures import READERS
    from trnlab.graph.ops import OPS

    assert "trn.mish" not in OPS
    assert "midpoint" not in isa.REGISTRY
    assert "gptj" not in READERS
    assert "prices" not in COMMANDS


def test_an_architecture_takes_at_most_eighty_lines():
    """The recipe's file, and each that is there."""
    ((_, _, text),) = [block for block in recipe("Add an architecture") if block[1].startswith("new file")]
    folder = PACKAGE / "fleet/models/architectures"
    sizes = {path.name: path.read_text().count("\n") for path in folder.glob("*.py")} | {
        "falcon.py": text.count("\n")
    }
    assert max(sizes.values()) <= 80, sizes
