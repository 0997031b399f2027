# SPDX-License-Identifier: Apache-2.0
"""docs/settings.md is made from the declarations, and there is no variable that it does not have."""

from __future__ import annotations

import re
from pathlib import Path

from settings_page import PAGE, page

from trnlab.runtime.settings import OF_PARTS, SETTINGS

ROOT = Path(__file__).parents[2]
# What trnlab tells the processes that it starts itself; users have nothing to do with them.
OWN = {"TRNLAB_FAULTS_STRUCK", "TRNLAB_RESTART", "TRNLAB_LOOPS_PROCESSOR", "TRNLAB_LOOPS_SILENT"}


def test_the_page_is_current():
    text = PAGE.read_text()
    assert text == page(text), "run: python tests/docs/settings_page.py"


def test_every_variable_of_the_sources_is_declared():
    found = {
        name
        for path in (ROOT / "src").rglob("*.py")
        for name in re.findall(r"TRNLAB_[A-Z_]+[A-Z]", path.read_text(encoding="utf-8"))
    }
    declared = {each.variable for each in (*SETTINGS.values(), *OF_PARTS) if each.variable.startswith("TRNLAB_")}
    assert found - OWN == declared


def test_every_error_of_a_setting_is_explained():
    explained = set(re.findall(r"^### (TRN\d{3})", (ROOT / "docs/errors.md").read_text(encoding="utf-8"), re.M))
    assert {each.code for each in (*SETTINGS.values(), *OF_PARTS) if each.code} <= explained
