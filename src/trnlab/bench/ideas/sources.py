# SPDX-License-Identifier: Apache-2.0
"""Changes written into the source of a kernel, where they are as simple as an argument of a call."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from trnlab.bench.candidate import KernelCandidate
from trnlab.bench.ideas.candidates import trial_of
from trnlab.bench.ideas.change import SourceEdit
from trnlab.bench.ideas.search import WORTH, IdeaStep
from trnlab.bench.ideas.trial import TriedChange
from trnlab.bench.ladder import KernelBench
from trnlab.errors import TrnlabError


@dataclass(frozen=True)
class WrittenSource:
    """A source with changes in it, and what it is when it is recorded and executed again."""

    text: str
    total: int  # picoseconds
    promised: int  # of the changed list of instructions
    broken: tuple[str, ...]  # cases in which it computes other bits than the kernel that was changed

    @property
    def holds(self) -> bool:
        """Whether it computes the same bits, and takes as long as was promised as far as changes are told apart."""
        return not self.broken and self.total <= self.promised * (1 + WORTH)


def written(bench: KernelBench, one: KernelCandidate, steps: Sequence[IdeaStep]) -> WrittenSource | None:
    """The source with all of these changes, recorded, timed and executed; None where one of them cannot be written
    so, or what was written is no kernel."""
    edits = [s.tried.change.edit for s in steps]
    text = edited(one.path.read_text(encoding="utf-8"), [e for e in edits if e is not None])
    if text is None or None in edits or not edits:
        return None
    with TemporaryDirectory(prefix="trnlab-") as folder:
        path = Path(folder) / one.path.name
        path.write_text(text, encoding="utf-8")
        try:
            found = trial_of(bench, replace(one, path=path))
        except TrnlabError:
            return None
    last = steps[-1].tried
    checked = trial_of(bench, one).checked(TriedChange(last.change, found.kernel, found.total))
    return WrittenSource(text, found.total, last.total, checked.broken or ())


def edited(source: str, edits: Sequence[SourceEdit]) -> str | None:
    """The source with an engine named in each of these calls; None where a line has no such call, or several."""
    for edit in edits:
        calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and _is(node, edit)]
        changed = _named(source, calls[0], edit.engine) if len(calls) == 1 else None
        if changed is None:
            return None
        source = changed
    return source


def _is(node: ast.Call, edit: SourceEdit) -> bool:
    within = node.lineno <= edit.line <= (node.end_lineno or node.lineno)
    return within and isinstance(node.func, ast.Attribute) and node.func.attr == edit.call


def _named(source: str, call: ast.Call, engine: str) -> str | None:
    """The source with `engine=` of this call. Lines stay where they are, so that further edits find theirs."""
    assert isinstance(call.func, ast.Attribute)
    value = f"{ast.unparse(call.func.value)}.{engine}"
    known = [k.value for k in call.keywords if k.arg == "engine"]
    lines = [line.encode() for line in source.splitlines(keepends=True)]
    if known:
        (node,) = known
        last, end = (node.end_lineno or 0) - 1, node.end_col_offset or 0
        if node.lineno - 1 != last:
            return None
        lines[last] = lines[last][: node.col_offset] + value.encode() + lines[last][end:]
    else:
        last, end = (call.end_lineno or 0) - 1, (call.end_col_offset or 0) - 1  # the closing parenthesis
        before = lines[last][:end].rstrip()
        comma = b"" if before.endswith((b",", b"(")) or not before else b", "
        lines[last] = lines[last][:end] + comma + f"engine={value}".encode() + lines[last][end:]
    text = b"".join(lines).decode()
    try:
        ast.parse(text)
    except SyntaxError:
        return None
    return text
