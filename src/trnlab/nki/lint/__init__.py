# SPDX-License-Identifier: Apache-2.0
"""What the vendor's compiler would refuse in a kernel, found by reading it: nothing is run.

for finding in lint_file("my_kernel.py", chip): print(finding)
"""

from __future__ import annotations

import ast
import inspect
import linecache
import tokenize
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from trnlab import chips
from trnlab.chips.spec import Chip
from trnlab.errors import UsageError
from trnlab.nki.lint import calls, constructs, old
from trnlab.nki.lint.finding import ERROR, WARNING, LintFinding
from trnlab.nki.lint.source import NEW, KernelSource, SourceFile, read
from trnlab.runtime.settings import GENERATIONS

__all__ = ["ERROR", "WARNING", "LintFinding", "lint_file", "lint_function", "lint_text"]


def lint_file(path: Path | str, chip: Chip, chosen: bool = False) -> tuple[list[LintFinding], int]:
    """Findings in the order of the lines, and how many kernels were looked at.

    chosen: somebody named this chip, so that what it does not have is an error; a kernel may name another one itself.
    Warnings that say the same are one, with their number. Raises UsageError for a file that cannot be read or is
    not Python.
    """
    try:
        with tokenize.open(path) as file:  # in the encoding that its first lines declare, as Python reads it
            text = file.read()
    except (SyntaxError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{str(path)!r} is not text in the encoding that it declares: {error}",
            code="TRN128",
            remedy="save it as UTF-8",
        ) from error
    except OSError as error:
        raise UsageError(
            f"{str(path)!r} cannot be read: {error.strerror}", code="TRN123", remedy="check the path"
        ) from error
    return lint_text(str(path), text, chip, chosen)


def lint_text(path: str, text: str, chip: Chip, chosen: bool = False) -> tuple[list[LintFinding], int]:
    """As `lint_file`, of a text. Raises UsageError for what is not Python."""
    try:
        source = read(path, text)
    except SyntaxError as error:
        raise UsageError(
            f"{path}:{error.lineno}: not Python: {error.msg}", code="TRN128", remedy="correct the line"
        ) from error
    return sorted(_folded(_findings(source, chip, chosen))), len(source.kernels)


def lint_function(function: Callable[..., Any], chip: Chip) -> list[LintFinding]:
    """Findings about one kernel and the functions of its file that it calls; none where its source is not known."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    source = _parsed(code.co_filename, "".join(linecache.getlines(code.co_filename))) if code else None
    if code is None or source is None:
        return []
    mine = [k for k in source.kernels if k.node.name == code.co_name and _head(k.node) == code.co_firstlineno]
    return sorted(_findings(replace(source, kernels=mine), chip, chosen=False))


@lru_cache(maxsize=64)
def _parsed(file: str, text: str) -> SourceFile | None:
    try:
        return read(file, text)
    except (SyntaxError, ValueError):
        return None


def _head(node: ast.FunctionDef) -> int:
    """The line that Python calls the function's first: that of its first decorator."""
    return min([node.lineno, *(d.lineno for d in node.decorator_list)])


def _findings(source: SourceFile, chip: Chip, chosen: bool) -> set[LintFinding]:
    found: set[LintFinding] = set()
    for function, kernel in source.within():
        found.update(calls.check(source, function, kernel, *_chip_of(kernel, chip, chosen)))
        if kernel.dialect == NEW:
            found.update(constructs.check(source, function, kernel))
        else:
            found.update(old.check(source, function, kernel))
    return found


def _chip_of(kernel: KernelSource, chip: Chip, chosen: bool) -> tuple[Chip, bool]:
    """The chip that the kernel's decorator names, else the given one; and whether somebody chose it."""
    try:
        return (chips.get(GENERATIONS.get(kernel.target, kernel.target)), True) if kernel.target else (chip, chosen)
    except UsageError:  # a generation of the future: running the kernel says so
        return chip, False


def _folded(found: Iterable[LintFinding]) -> list[LintFinding]:
    """Errors one by one; warnings that say the same as one, and deprecated names as one line of a file."""
    errors = [f for f in found if f.severity == ERROR]
    same: dict[tuple[str, str], list[LintFinding]] = {}
    for finding in sorted(f for f in found if f.severity != ERROR):
        same.setdefault((finding.code, finding.what), []).append(finding)
    warnings = [replace(group[0], times=len(group)) for group in same.values()]
    old_names = [f for f in warnings if f.code == calls.DEPRECATED]
    others = [f for f in warnings if f.code != calls.DEPRECATED]
    return [*errors, *others, *([_one_line(old_names)] if old_names else [])]


def _one_line(found: list[LintFinding]) -> LintFinding:
    """One finding about all deprecated names of a file, the most frequent first."""
    names = Counter({f.what.removesuffix(calls.IS_DEPRECATED): f.times for f in found})
    listed = ", ".join(name if n == 1 else f"{name} ({n} times)" for name, n in names.most_common())
    remedies = "; ".join(dict.fromkeys(f.remedy for f in sorted(found, key=lambda f: -f.times)))
    first = min(found)
    return replace(first, what=f"deprecated: {listed}", remedy=remedies, times=1)
