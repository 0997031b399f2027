# SPDX-License-Identifier: Apache-2.0
"""The imports that a script begins with, which a process can make before it is copied for each rank."""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

Imports = tuple[tuple[str, tuple[str, ...]], ...]
KNOWN = frozenset({"numpy", "torch", "trnlab"})  # whose imports leave nothing but modules


def leading(script: Path) -> Imports:
    """Modules and names of them that a script imports before it does anything else, in its order.

    They end where anything else stands, such as a setting in os.environ, or the import of a package that is not
    known, so that each rank still makes its imports in the order and in the environment that the script gives them.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            statements = ast.parse(script.read_bytes()).body
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ()  # which the rank says
    found: list[tuple[str, tuple[str, ...]]] = []
    for statement in statements:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue  # its docstring
        of_it = list(_imports(statement))
        if not of_it or not all(_known(module, script.parent) for module, _ in of_it):
            break
        found += of_it
    return tuple(found)


def _imports(statement: ast.stmt) -> Iterator[tuple[str, tuple[str, ...]]]:
    if isinstance(statement, ast.Import):
        for each in statement.names:
            yield each.name, ()
    elif isinstance(statement, ast.ImportFrom) and statement.module is not None and not statement.level:
        yield statement.module, tuple(each.name for each in statement.names)


def _known(module: str, folder: Path) -> bool:
    top = module.partition(".")[0]
    beside = (folder / f"{top}.py").exists() or (folder / top).is_dir()  # which a script finds first
    return not beside and (top in KNOWN or top in sys.stdlib_module_names)
