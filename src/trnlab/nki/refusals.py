# SPDX-License-Identifier: Apache-2.0
"""What a kernel's author can be refused, and where each refusal comes from: docs/refusals.md is made of this.

    python -m trnlab.nki.refusals docs/refusals.md

The refusals are read from the package's own sources, so that none is left out; their sources stand in refusals.toml,
or, for checks of one instruction, in `Instruction.source`.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

from trnlab import errors, isa
from trnlab.isa.documentation import rule_lines

PACKAGE = Path(__file__).parent.parent
FOLDERS = ("nki", "lang", "isa", "program", "sim", "kernels")
OURS, CALL = "trnlab: ", "call: "  # sources of a limit of trnlab's own, and of what is no rule of kernels
HELD = {  # the tests that meet each folder's refusals
    "isa": "tests/isa (test_refusals.py, test_refusals_options.py, test_constraints.py)",
    "lang": "tests/nki (test_nki_wrong_kernels.py, test_nki_transfers.py, test_nki_registers.py)",
    "nki": "tests/nki (test_nki_wrong_kernels.py, test_nki_new_dialect.py, test_nki_collectives.py, test_old_*.py)",
    "program": "tests/program",
    "sim": "tests/sim (test_sim_checks.py), tests/nki/test_nki_checks.py",
    "kernels": "tests/kernels",
}
_HEAD = """# Refusals

Everything that a kernel can be refused, and where the refusal comes from. Made by
`python -m trnlab.nki.refusals docs/refusals.md` from the sources of the package and `nki/refusals.toml`; a test holds
the two and this page together, and that none is without a source. What is only unwise is a warning of a check
([checks.md](checks.md)); the codes are explained in [errors.md](errors.md).

{places} places refuse: {document} by a document of aws-neuron/aws-neuron-sdk (release 2.32.0 unless it says
otherwise), {ours} are limits of trnlab and say so, {call} are about how trnlab itself is called or
keeps its programs."""
_CODE = re.compile(r"TRN\d{3}")
_DEFAULTS = {"refuse": "TRN409", "self.refuse": "TRN400", "instr.refuse": "TRN400"}


@dataclass(frozen=True)
class Refusal:
    """One place that refuses."""

    file: str
    function: str  # its name with its class
    codes: tuple[str, ...]  # usually one
    what: str
    limit: str
    message: str  # all texts of the call


@cache
def refusals() -> tuple[Refusal, ...]:
    """All of them, by file and line."""
    found: list[Refusal] = []
    for folder in FOLDERS:
        for path in sorted((PACKAGE / folder).rglob("*.py")):
            name = path.relative_to(PACKAGE).as_posix()
            found.extend(_within(ast.parse(path.read_text(encoding="utf-8")), name, ""))
    return tuple(found)


def _within(node: ast.AST, file: str, function: str) -> Iterator[Refusal]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        function = f"{function}.{node.name}" if function else node.name
    if isinstance(node, ast.Call):
        codes = _codes(node)
        if codes:
            named = {k.arg: k.value for k in node.keywords}
            texts = [a for a in node.args if not _CODE.fullmatch(_text(a))]
            what = max((t for t in map(_text, texts)), key=len, default="")
            limit = _text(named["limit"]) if "limit" in named else ""
            says = " ".join(_text(part) for part in (*node.args, *named.values()))
            yield Refusal(file, function, codes, what, limit, says)
    for child in ast.iter_child_nodes(node):
        yield from _within(child, file, function)


def _codes(call: ast.Call) -> tuple[str, ...]:
    """Codes of a call that refuses; none for other calls, and for those that hand on the code of another."""
    name, named = ast.unparse(call.func), {k.arg: k.value for k in call.keywords}
    if not ({"limit", "remedy", "code"} & named.keys()) or name == "replace":
        return ()
    written = [named["code"]] if "code" in named else call.args
    codes = tuple(_CODE.findall(" ".join(ast.unparse(part) for part in written)))
    if codes or "code" in named:
        return codes
    kind = getattr(errors, name, None)
    default = _DEFAULTS.get(name) or str(getattr(kind, "code", ""))
    return (default,) if default else ()


def _text(node: ast.expr) -> str:
    """Words of an expression; what is filled in is written as in the source."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return f"<{ast.unparse(node.value)}>"
    return ast.unparse(node)


@cache
def sources() -> dict[str, dict[str, str]]:
    """File, then function (or function and code), then the source."""
    with (PACKAGE / "nki" / "refusals.toml").open("rb") as stream:
        return tomllib.load(stream)


def source_of(refusal: Refusal) -> str:
    """Where it comes from; empty where nobody says so."""
    listed = sources().get(refusal.file, {})
    found = listed.get(f"{refusal.function} {refusal.codes[0]}") or listed.get(refusal.function)
    return found or _of_instruction(refusal)


def _of_instruction(refusal: Refusal) -> str:
    """The source of the instruction whose own check it is."""
    folder, _, rest = refusal.file.partition("/")
    kind, _, method = refusal.function.partition(".")
    if folder != "isa" or not method:
        return ""
    made = getattr(import_module(f"trnlab.isa.{rest.removesuffix('.py').replace('/', '.')}"), kind, None)
    return str(getattr(made, "source", ""))


def kind_of(source: str) -> str:
    """What stands behind a refusal: "document", "limit of trnlab" or "call"."""
    return "limit of trnlab" if source.startswith(OURS) else "call" if source.startswith(CALL) else "document"


def page() -> str:
    """docs/refusals.md."""
    kinds = Counter(kind_of(source_of(refusal)) for refusal in refusals())
    lines = [
        _HEAD.format(
            places=kinds.total(), document=kinds["document"], ours=kinds["limit of trnlab"], call=kinds["call"]
        )
    ]
    for folder in FOLDERS:
        lines += ["", f"## {folder}", "", f"Held by {HELD[folder]}.", "", "| code | refused | limit | source |"]
        lines += ["|---|---|---|---|", *(_row(r) for r in refusals() if r.file.startswith(f"{folder}/"))]
    lines += ["", "## Limits of single instructions", "", "| instruction | limits | source |", "|---|---|---|"]
    for name, instr in sorted(isa.REGISTRY.items()):
        lines.append(f"| {name} | {_cell('; '.join(rule_lines(instr)))} | {_cell(instr.source)} |")
    return "\n".join(lines) + "\n"


def _row(refusal: Refusal) -> str:
    codes = ", ".join(refusal.codes)
    return f"| {codes} | {_cell(refusal.what)} | {_cell(refusal.limit)} | {_cell(source_of(refusal))} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
