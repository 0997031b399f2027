# SPDX-License-Identifier: Apache-2.0
"""What the core's installation brings is what a user of the chip needs: nothing is there for the planner alone."""

from __future__ import annotations

import ast
import sys
import tomllib
from pathlib import Path

import pytest

from trnlab.cli import executors
from trnlab.errors import UsageError
from trnlab.fleet.models.configurations import model

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src" / "trnlab"
PLANNER = ("fleet", "estimate", "operations", "cli/planning", "cli/executors.py")
OPTIONAL = {"yaml", "distributed"}  # imported where a user asks for them: a model in YAML, executors of Dask


def others_imported(path: Path, everywhere: bool = True) -> set[str]:
    """Names of packages that a module imports and that are neither Python's nor ours; else those at its top alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree)) if everywhere else tree.body
    names = [a.name for n in nodes if isinstance(n, ast.Import) for a in n.names]
    names += [n.module or "" for n in nodes if isinstance(n, ast.ImportFrom) and not n.level]
    return {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"trnlab"}


def modules(planner: bool) -> list[Path]:
    """Modules of the planner and its relatives, or all others."""
    folders = [SOURCES / name for name in PLANNER]
    return [p for p in sorted(SOURCES.rglob("*.py")) if any(f in (p, *p.parents) for f in folders) is planner]


def core() -> set[str]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        wanted = tomllib.load(file)["project"]["dependencies"]
    return {requirement.partition(">")[0] for requirement in wanted}


def test_the_planner_imports_numpy_and_nothing_else_that_is_no_option():
    assert set().union(*map(others_imported, modules(planner=True))) == {"numpy"} | OPTIONAL
    at_once = set().union(*(others_imported(p, everywhere=False) for p in modules(planner=True)))
    assert at_once == {"numpy"}, "options are imported where they are asked for"


def test_every_dependency_of_the_core_is_imported_without_the_planner():
    assert core() == {"numpy", "ml_dtypes", "numba", "shtab"}
    assert core() <= set().union(*map(others_imported, modules(planner=False)))


@pytest.mark.parametrize(
    ("missing", "code", "remedy"),
    [("yaml", "TRN172", "pip install pyyaml"), ("distributed", "TRN178", "pip install 'trnlab[distributed]'")],
)
def test_an_option_that_is_not_installed_is_told(missing, code, remedy, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, missing, None)
    (tmp_path / "model.yaml").write_text("model_type: gpt2\n")

    def use():
        if missing == "yaml":
            model(str(tmp_path / "model.yaml"))
        else:
            with executors.dask("dask://localhost:1"):
                pass

    with pytest.raises(UsageError) as raised:
        use()
    assert raised.value.code == code
    assert remedy in str(raised.value)
