# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/settings.md, from the declarations of the settings.

python tests/docs/settings_page.py      # puts them into the page
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from trnlab.runtime.settings import OF_PARTS, SETTINGS, Setting

PAGE = Path(__file__).parents[2] / "docs/settings.md"
HEAD = "| variable | option | what it says | default | error |\n|---|---|---|---|---|\n"


def table(settings: Iterable[Setting]) -> str:
    """A row for each setting: variable, option, one sentence, default, code of the error."""
    return HEAD + "".join(row(each) for each in settings)


def row(setting: Setting) -> str:
    """One row, in which what is absent is left empty."""
    names = (f"`{name}`" if name else "" for name in (setting.variable, setting.option))
    sentence = f"{setting.about[0].upper()}{setting.about[1:]}."
    return "| " + " | ".join((*names, sentence, setting.default_words, setting.code)) + " |\n"


def page(text: str) -> str:
    """The page with its tables made anew; the rest of `text` stays."""
    lines = [line for line in text.splitlines() if not line.startswith("|")]
    parts = "\n".join(lines).strip().split("\n## ")
    head, run, others = (part.strip() for part in parts)
    return f"{head}\n\n## {run}\n\n{table(SETTINGS.values())}\n## {others}\n\n{table(OF_PARTS)}"


def main() -> int:
    """Write the page."""
    PAGE.write_text(page(PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
