# SPDX-License-Identifier: Apache-2.0
"""The pages of docs/tutorials as programs: their Python blocks in order, in one namespace, with what each prints.

    python tests/docs/tutorial_pages.py         # executes all pages, and writes what they print, and their pictures

A block that is fenced as `output` shows what the Python block before it printed. Pictures are files beside the page
that a block writes.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "tutorials"
PAGES = sorted(FOLDER.glob("*.md"))
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")


@dataclass(frozen=True)
class Block:
    """One Python block: its code, the line it starts at, and the span of the output shown after it, if any."""

    code: str
    line: int
    shown: tuple[int, int] | None


def blocks(text: str) -> list[Block]:
    """The Python blocks of a page."""
    found: list[Block] = []
    for fence in _FENCE.finditer(text):
        kind, line = fence[1], text.count("\n", 0, fence.start(2))
        if kind == "python":
            found.append(Block(fence[2], line, None))
        elif kind == "output":
            found[-1] = Block(found[-1].code, found[-1].line, fence.span(2))
    return found


def run(page: Path, folder: Path) -> Iterator[tuple[Block, str]]:
    """Execute a page in `folder`; yields each block with what it printed.

    Lines of the program are those of the page, so that messages name them; the folder is left out of what is printed.
    """
    text = page.read_text()
    program = folder / f"{page.stem}.py"
    lines = [""] * text.count("\n")
    for block in blocks(text):
        code = block.code.splitlines()
        lines[block.line : block.line + len(code)] = code
    program.write_text("\n".join(lines))
    names: dict[str, object] = {"__name__": "__main__", "__file__": str(program)}
    for block in blocks(text):
        printed = io.StringIO()
        with redirect_stdout(printed), _within(folder):
            exec(compile("\n" * block.line + block.code, str(program), "exec"), names)
        yield block, printed.getvalue().replace(f"{folder}/", "")


@contextmanager
def _within(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def alike(shown: str, printed: str) -> bool:
    """Whether the words are the same and the numbers near: the model of time is refined, and the pages still hold."""
    if _NUMBER.sub("0", _squeezed(shown)) != _NUMBER.sub("0", _squeezed(printed)):
        return False
    pairs = zip(_numbers(shown), _numbers(printed), strict=True)
    return all(abs(a - b) <= max(0.15 * abs(a), 3 if a >= 1 else 0.1) for a, b in pairs)


def _squeezed(text: str) -> str:
    return "\n".join(" ".join(line.split()) for line in text.strip().splitlines())


def _numbers(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in _NUMBER.findall(text)]


def rewrite(page: Path, folder: Path) -> None:
    """Put what the blocks print now into the page, and the pictures that it shows beside it."""
    for _ in range(3):  # what is put in moves the lines that messages name
        text = before = page.read_text()
        for block, printed in reversed(list(run(page, folder))):
            if block.shown is not None:
                text = text[: block.shown[0]] + printed + text[block.shown[1] :]
        page.write_text(text)
        if text == before:
            break
    for picture in folder.glob("*.svg"):
        if f"({picture.name})" in text:
            shutil.copy(picture, FOLDER / picture.name)


if __name__ == "__main__":
    import tempfile

    chosen = [page for page in PAGES if page.stem in sys.argv[1:] or len(sys.argv) == 1]
    for page in chosen:
        with tempfile.TemporaryDirectory() as folder:
            rewrite(page, Path(folder))
