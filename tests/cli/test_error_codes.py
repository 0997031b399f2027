# SPDX-License-Identifier: Apache-2.0
"""Every error code of the source has its section in `docs/errors.md`, and no section is of a code that is gone."""

from __future__ import annotations

import re
from pathlib import Path

import trnlab

SOURCE = Path(trnlab.__file__).parent
DOCUMENT = Path(__file__).parents[2] / "docs" / "errors.md"


def test_the_codes_of_the_source_are_the_codes_of_the_document() -> None:
    used = {code for path in SOURCE.rglob("*.py") for code in re.findall(r'"(TRN\d{3})"', path.read_text())}
    assert set(re.findall(r"^### (TRN\d{3})$", DOCUMENT.read_text(), re.MULTILINE)) == used


def test_the_codes_of_the_document_are_in_order_and_explained() -> None:
    sections = re.split(r"^### ", DOCUMENT.read_text(), flags=re.MULTILINE)[1:]
    codes = [section[:6] for section in sections]
    assert codes == sorted(set(codes))
    assert all(len(section.split("\n", 1)[1].split("\n## ")[0].strip()) > 10 for section in sections)
