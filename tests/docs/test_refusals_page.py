# SPDX-License-Identifier: Apache-2.0
"""Each refusal that a kernel can meet has a source, and the page that lists them is the one that the code makes."""

from __future__ import annotations

import re
from pathlib import Path

from trnlab import isa
from trnlab.nki import refusals as audit

ROOT = Path(__file__).parents[2]
CLASSES = re.compile(r"nki|nl\.|\.rst|release|err_|SBUF|Available|the engines|signature|Memory|Data|Layout|Tile")


def test_every_refusal_has_a_source() -> None:
    without = [f"{r.file} {r.function} {r.codes}" for r in audit.refusals() if not audit.source_of(r)]
    assert without == [], "add a line to src/trnlab/nki/refusals.toml: a document, or 'trnlab: why'"


def test_every_source_says_where() -> None:
    """A document is named; a limit of trnlab's own has a reason."""
    for refusal in audit.refusals():
        source = audit.source_of(refusal)
        if audit.kind_of(source) == "document":
            assert CLASSES.search(source), (refusal, source)
        else:
            assert len(source.partition(": ")[2]) > 8, (refusal, source)


def test_a_limit_of_trnlab_says_so_to_the_user_and_is_rare() -> None:
    ours = [r for r in audit.refusals() if audit.kind_of(audit.source_of(r)) == "limit of trnlab"]
    assert [r for r in ours if "trnlab" not in r.message] == []
    assert 0 < len(ours) <= 12


def test_every_line_is_about_a_refusal() -> None:
    met = {(r.file, r.function) for r in audit.refusals()} | {
        (r.file, f"{r.function} {code}") for r in audit.refusals() for code in r.codes
    }
    listed = {(file, function) for file, lines in audit.sources().items() for function in lines}
    assert listed - met == set(), "src/trnlab/nki/refusals.toml names what refuses nothing any more"


def test_every_instruction_has_a_source() -> None:
    assert [name for name, instr in isa.REGISTRY.items() if not instr.source] == []


def test_the_scan_finds_refusals_of_every_form() -> None:
    """Through a helper, by an exception, with a code that hangs on the case, with none, by a check."""
    forms = {(r.file, r.codes) for r in audit.refusals()}
    assert ("isa/rules.py", ("TRN405",)) in forms
    assert ("lang/addresses.py", ("TRN502", "TRN501")) in forms
    assert ("lang/tensor.py", ("TRN409",)) in forms
    assert ("sim/checks/findings.py", ("TRN434",)) in forms
    assert len(audit.refusals()) > 250


def test_codes_are_explained() -> None:
    known = set(re.findall(r"^### (TRN\d{3})", (ROOT / "docs/errors.md").read_text(encoding="utf-8"), re.M))
    assert {code for r in audit.refusals() for code in r.codes} <= known


def test_the_page_is_the_one_that_the_code_makes() -> None:
    written = (ROOT / "docs/refusals.md").read_text(encoding="utf-8")
    assert written == audit.page(), "run: python -m trnlab.nki.refusals docs/refusals.md"
