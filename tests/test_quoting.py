# SPDX-License-Identifier: Apache-2.0
"""Text that others chose is text in every medium."""

from __future__ import annotations

import shlex

import pytest

from trnlab.documents import Document, Note, Section, Table, page, text
from trnlab.errors import RunError
from trnlab.quoting import csv_cell, markup, metric_label, one_line, shell_comment, shell_value, visible
from trnlab.runtime.notices import say, tell

HOSTILE = "x\ny\x1b[2J\x9b\u202e<b>'\"`$(id)\\"


def test_a_line_has_only_what_can_be_seen() -> None:
    assert one_line(HOSTILE) == "x?y?[2J??<b>'\"`$(id)\\"
    assert visible("a\n\tb\x1b") == "a\n\tb?"
    assert one_line("größe 4 × 4") == "größe 4 × 4"


def test_shells_see_a_word_or_a_comment() -> None:
    assert shell_comment(HOSTILE).count("\n") == 0
    assert shlex.split(f"X={shell_value(HOSTILE)}") == [f"X={one_line(HOSTILE)}"]


def test_pages_see_text() -> None:
    assert markup('<b a="1">') == "&lt;b a=&quot;1&quot;&gt;"


@pytest.mark.parametrize("value", ["=1+1", "+1", "-1", "@x", "\t=1", "|x", "%x"])
def test_tables_compute_nothing(value: str) -> None:
    assert str(csv_cell(value)).startswith("'")


def test_numbers_of_tables_stay() -> None:
    assert [csv_cell(value) for value in (-1.5, 3, True, None, "trn1")] == [-1.5, 3, True, None, "trn1"]


def test_a_label_is_one() -> None:
    assert metric_label('a"b\\c\nd') == r"a\"b\\c?d"


def test_reports_notices_and_errors_show_names_only(capsys: pytest.CaptureFixture[str]) -> None:
    report = Document(HOSTILE, [Section(HOSTILE, [Note(HOSTILE), Table([(HOSTILE, "1")])])])
    say(HOSTILE)
    tell(RunError(HOSTILE, got=HOSTILE))
    for shown in (text(report), capsys.readouterr().err):
        assert all(c.isprintable() or c == "\n" for c in shown)
    assert "<b>'" not in page(report).replace("<b>x", "")
